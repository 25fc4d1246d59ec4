"""Comparing steps: every field is looked at, and a difference says where it is."""

import copy
import itertools

import pytest
from trace_samples import DSV4, HYBRID, ISWA, KV

from kvsim.trace import MISSING, Difference, Step, compare_step, read_trace


def step_of(path, op="decode", **wanted) -> Step:
    """The first step of an operation with saved cells; a decode: one that succeeded."""
    for step in read_trace(path):
        if step.op == op and (op != "decode" or step.ret == 0) and wanted.items() <= step.after.items():
            return step
    raise LookupError


def changed(step: Step, path: str, value: object) -> Step:
    """A copy of ``step`` with the value at ``a.b.0`` replaced."""
    other = copy.deepcopy(step)
    target: object = other.__dict__
    *parents, last = path.split(".")
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[int(last) if isinstance(target, list) else last] = value
    return other


def test_equal_steps_do_not_differ():
    for step in itertools.islice(read_trace(ISWA), 30):
        assert compare_step(step, copy.deepcopy(step)) == []


FIELDS = {
    "ret": (KV, "ret", 1, "ret"),
    "token index": (KV, "ubatches.0.idx.0", 7, "ubatches[0].idx[0]"),
    "split": (KV, "ubatches.0.n_seqs", 99, "ubatches[0].n_seqs"),
    "slot": (KV, "ubatches.0.slots.kv.idxs.0.0", 200, "ubatches[0].slots.kv.idxs[0][0]"),
    "stream": (KV, "ubatches.0.slots.kv.strm.0", 3, "ubatches[0].slots.kv.strm[0]"),
    "n_kv": (KV, "ubatches.0.slots.kv.n_kv", 0, "ubatches[0].slots.kv.n_kv"),
    "mask": (ISWA, "ubatches.0.mask.swa.0", [0, 5, 7, 8], "ubatches[0].mask.swa[0]"),
    "head": (ISWA, "after.caches.swa.0.head", 400, "after.caches.swa[0].head"),
    "used": (ISWA, "after.caches.base.0.used", 400, "after.caches.base[0].used"),
    "has_shift": (KV, "after.caches.kv.2.has_shift", True, "after.caches.kv[2].has_shift"),
    "range": (KV, "after.pos.1.0", 77, "after.pos[1][0]"),
    "recurrent cell": (HYBRID, "after.recurrent.cells.1", [1, 9, 9, 9, 9, [9]], "after.recurrent.cells[1]"),
    "recurrent in a ubatch": (HYBRID, "ubatches.0.recurrent.rs_z", 9, "ubatches[0].recurrent.rs_z"),
    "plan": (DSV4, "ubatches.0.plan.csa.n_kv", 1, "ubatches[0].plan.csa.n_kv"),
    "rollback index": (DSV4, "after.rs_idx.0", 5, "after.rs_idx[0]"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_is_compared(name):
    path, place, value, reported = FIELDS[name]
    recorded = step_of(path)
    [difference] = compare_step(recorded, changed(recorded, place, value))
    assert difference.path == reported
    assert difference.computed == value


def test_cells_are_told_by_their_index_in_the_cache():
    recorded = step_of(KV)
    stream = next(i for i, s in enumerate(recorded.after["caches"]["kv"]) if len(s["cells"]) > 1)
    ours = recorded.after["caches"]["kv"][stream]["cells"]
    computed = copy.deepcopy(recorded)
    cells = computed.after["caches"]["kv"][stream]["cells"]
    gone = cells.pop(0)
    cells[0][1] += 1
    cells.append([250, 9, [0], 0, 1, 0, 0])
    where = f"after.caches.kv[{stream}].cells"
    assert compare_step(recorded, computed) == [
        Difference(f"{where}[{gone[0]}]", gone, MISSING),
        Difference(f"{where}[{ours[1][0]}]", ours[1], cells[0]),
        Difference(f"{where}[250]", MISSING, [250, 9, [0], 0, 1, 0, 0]),
    ]


def test_missing_keys_and_other_lengths_are_differences():
    recorded = step_of(KV)
    computed = changed(recorded, "after.pending_copies", {"kv": [[0, 1]]})
    [difference] = compare_step(recorded, computed)
    assert str(difference) == "after.pending_copies: recorded nothing, computed {'kv': [[0, 1]]}"
    computed = changed(recorded, "ubatches", [])
    [difference] = compare_step(recorded, computed)
    assert (difference.path, difference.computed) == ("ubatches", [])


def test_size_of_a_saved_state_is_compared_if_computed():
    recorded = step_of(KV, "state_seq_get")
    computed = Step(**{**recorded.__dict__, "extra": {"size": 5}})
    [difference] = compare_step(recorded, computed)
    assert (difference.path, difference.computed) == ("extra.size", 5)
    assert compare_step(recorded, Step(**{**recorded.__dict__, "extra": {}})) == []


def test_steps_of_different_operations_cannot_be_compared():
    one, two = itertools.islice(read_trace(KV), 2)
    with pytest.raises(ValueError, match=r"step 0 \(init\) cannot be compared with step 1 \(decode\)"):
        compare_step(one, two)
