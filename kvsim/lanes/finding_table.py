"""The table of findings, in the order of the hazards; what its columns are is said in
:mod:`kvsim.lanes.findings`."""

from __future__ import annotations

from dataclasses import replace

from kvsim.context import Fault
from kvsim.lanes.campaign import CONFIGURATIONS
from kvsim.lanes.findings import DIFFERENT, SAME, Finding
from kvsim.models.context_params import ContextParams
from kvsim.ops import Op
from kvsim.state import ON_DEVICE, PARTIAL_ONLY
from kvsim.testing.hazard_traces import at, rows

UNIFIED, STREAMS, ROLLBACK = (CONFIGURATIONS[name] for name in ("unified", "streams", "rollback"))
NARROW = replace(UNIFIED, n_ubatch=1)
FOURS = replace(UNIFIED, n_ubatch=4)
DEEP = replace(UNIFIED, n_ctx=1024, n_batch=512, n_ubatch=64)
EIGHTS = replace(DEEP, n_ubatch=8)

ABORT = Fault(0)
NONE = [-1, -1]


BOTH = ("b11549", "b11063")


def shows(
    hazard: str, model: str, params: ContextParams, ops: tuple[Op, ...], look: str, found: object,
    wanted: object, seen: tuple[str, ...] = BOTH, gone: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    """One thing is looked at."""
    return Finding(hazard, model, params, ops, (look,), (found,), (wanted,), (), seen, gone)


def differs(
    hazard: str, model: str, params: ContextParams, ops: tuple[Op, ...], control: tuple[Op, ...],
    look: str = "logits",
) -> Finding:  # fmt: skip
    """What should be as after other operations is not."""
    return Finding(hazard, model, params, ops, (look,), (DIFFERENT,), (SAME,), control, BOTH)


def run(seq: int | list[int], start: int, n: int = 1, fault: Fault | None = None) -> Op:
    """Decode ``n`` tokens from position ``start`` on; which ones depends on that alone."""
    return Op.decode_run(seq, start, [i * 7 % 113 + 1 for i in range(start, start + n)], fault)


START = run(0, 0, 3)
REPEATED = at(0, 0, 1, 2, 3, 3, fault=Fault(1))
REFUSED = Op.decode([5] * 400, [*range(253, 353), *[0] * 300], [[0]] * 100 + [[2]] * 300)
"""Too many tokens at one position for a window cache, and before them so many that all others are passed."""

FINDINGS = (
    shows("shift-moves-other-owners", "llama", UNIFIED,
          (run([0, 1], 0, 3), Op.seq_add(0, -1, -1, 2)), "pos 1", [2, 4], [0, 2]),
    differs("division-turns-backwards", "llama", UNIFIED,
            (Op.decode_run(0, 4, [9]), Op.seq_div(0, -1, -1, 2), run(0, 3)),
            (Op.decode_run(0, 2, [9]), run(0, 3))),
    shows("keep-spares-other-streams", "llama", STREAMS,
          (run(0, 0, 2), run(1, 0, 2), Op.seq_keep(0)), "pos 1", [0, 1], NONE),
    shows("copy-ignores-range", "llama", STREAMS, (run(0, 0, 4), Op.seq_cp(0, 1, -1, 0)), "pos 1", [0, 3], NONE),
    shows("position-minus-one", "llama", UNIFIED, (run(0, -1),), "answer", 0, -1),
    shows("cell-keeps-old-owner", "llama", UNIFIED,
          (run(0, -1), Op.seq_add(1, -1, -1, 1), run(1, 0)), "saved 0", [[0]], [[]]),
    shows("undo-misses-position-minus-one", "llama", UNIFIED,
          (*(run(1, 60 * i, 60) for i in range(4)), run(0, -1, 20)), "used kv", [241], [240]),
    shows("heads-exchanged", "llama", STREAMS,
          (*(run(1, 60 * i, 60) for i in range(4)), START, Op.seq_rm(1, 230), run(1, 230, 60)),
          "heads kv", [3, 3, 0], [3, 230, 0]),
    differs("clear-keeps-copies", "llama", STREAMS,
            (START, run(1, 0, 5), Op.state_seq_get(1, 0), Op.seq_cp(0, 1), Op.clear(),
             Op.state_seq_set(1, 0), run(1, 5)),
            (START, run(1, 0, 5), Op.state_seq_get(1, 0), Op.clear(), Op.state_seq_set(1, 0), run(1, 5))),
    differs("restore-under-queued-copy", "llama", STREAMS,
            (at(0, 5, 6, 7), run(1, 0, 5), Op.state_seq_get(1, 0), Op.seq_cp(0, 1), Op.state_seq_set(1, 0),
             run(1, 5)),
            (at(0, 5, 6, 7), run(1, 0, 5), Op.state_seq_get(1, 0), Op.state_seq_set(1, 0), run(1, 5))),
    differs("save-before-copy", "llama", STREAMS,
            (START, Op.seq_cp(0, 1), Op.state_seq_get(1, 0), Op.state_seq_set(2, 0), run(2, 3)),
            (run(2, 0, 3), run(2, 3))),
    differs("save-before-shift", "llama", UNIFIED,
            (START, Op.seq_add(0, -1, -1, 3), Op.state_seq_get(0, 0), Op.seq_rm(0), Op.state_seq_set(0, 0),
             run(0, 6)),
            (START, Op.seq_add(0, -1, -1, 3), run(0, 6))),
    shows("state-omits-owner", "llama", UNIFIED,
          (START, Op.seq_cp(0, 3), Op.state_get(0), Op.state_set(0)), "saved 3", [[]], [[0, 1, 2]]),
    shows("empty-state-removes-nothing", "llama", UNIFIED,
          (Op.state_seq_get(1, 0), START, Op.state_seq_set(0, 0)), "pos 0", [0, 2], NONE),
    shows("failed-restore-loses-sequence", "llama", UNIFIED,
          (START, Op.state_seq_get(0, 0), Op.state_seq_set(0, 0, truncate=30)), "pos 0", NONE, [0, 2]),
    shows("state-not-used-up", "gemma3", UNIFIED,
          (Op.state_seq_get(0, 0), Op.state_seq_set(1, 0, PARTIAL_ONLY)), "accepted", True, False),
    shows("device-state-replaced", "llama", UNIFIED,
          (START, Op.state_seq_get(0, 0, ON_DEVICE), Op.seq_add(0, -1, -1, 1), Op.state_seq_get(0, 1, ON_DEVICE),
           Op.state_seq_set(0, 0, ON_DEVICE)), "accepted", True, False),
    shows("rollback-refused", "jamba", UNIFIED,
          (START, run(0, 3, 4, ABORT)), "saved 0", [[0, 1, 2, 3, 4, 5, 6]], [[0, 1, 2]]),
    shows("rollback-first-owner-only", "llama", UNIFIED,
          (run([0, 1], 0, 2, ABORT),), "sequences", 1, 0),
    shows("rollback-removes-older-tokens", "llama", FOURS, (REPEATED,), "pos 0", [0, 2], [0, 3]),
    shows("shared-token-sees-one-history", "llama", UNIFIED,
          (rows((0, 0), (1, 0)), run([0, 1], 1)), "answer", 0, -1),
    shows("ubatch-exceeds-limit", "mamba", NARROW,
          (rows((0, 0), (1, 0), (2, 0), fault=Fault(1)),), "sequences", 2, 1),
    differs("indexer-keys-turned-as-stored", "deepseek32", UNIFIED,
            (run(0, 0, 60), Op.seq_add(0, -1, -1, 7), run(0, 67)), (run(0, 7, 60), run(0, 67))),
    Finding("shift-although-cannot", "gemma3", DEEP, (START, Op.seq_add(0, -1, -1, 1)),
            ("can_shift", "pos 0"), (False, [1, 3]), (True, [1, 3]), (), BOTH),
    shows("trimmed-past-window", "gemma3", DEEP, (run(0, 0, 300), Op.seq_rm(0, 4)), "pos 0", NONE, [0, 3]),
    differs("purge-blinds-earlier-ubatch", "gemma3", DEEP,
            (run([0, 1], 0, 3), run(0, 3, 360), run(0, 363)),
            (run([0, 1], 0, 3), *(run(0, 3 + i, 60) for i in range(0, 360, 60)), run(0, 363))),
    differs("eviction-blinds-own-ubatch", "gemma3", EIGHTS,
            (run([1, 2], 0, 224), at(0, *range(32), 31)), (at(0, *range(32), 31),)),
    shows("purge-survives-refusal", "gemma3", DEEP,
          (run(0, 0, 253), Op.seq_cp(0, 1, 230, -1), REFUSED), "pos 0", [0, 229], [0, 252]),
    shows("partial-state-alone", "gemma3", UNIFIED,
          (START, Op.state_seq_get(0, 0, PARTIAL_ONLY), Op.state_seq_set(1, 0, PARTIAL_ONLY)), "accepted",
          True, False),
    shows("base-keeps-later-positions", "gemma3", UNIFIED,
          (START, Op.state_seq_get(0, 0, PARTIAL_ONLY), run(0, 3), Op.state_seq_set(0, 0, PARTIAL_ONLY)),
          "held base 0", [0, 1, 2, 3], [0, 1, 2]),
    Finding("half-restored", "gemma3", UNIFIED,
            (START, Op.state_seq_get(0, 0), Op.state_seq_set(1, 0, truncate=4000)),
            ("held base 1", "held swa 1"), ([0, 1, 2], []), ([], []), (), BOTH),
    shows("state-keeps-removed", "mamba", UNIFIED, (START, Op.seq_rm(0, 0, 2)), "answer", 1, 0),
    shows("remove-any-refused", "mamba", UNIFIED, (START, Op.seq_rm(-1)), "answer", 0, 1),
    shows("state-knows-last-position-only", "mamba", UNIFIED,
          (START, Op.seq_add(0, 1, -1, 3)), "pos 0", [5, 5], [2, 2]),
    shows("state-copy-ignores-range", "mamba", UNIFIED, (START, Op.seq_cp(0, 1, -1, 1)), "pos 1", [2, 2], NONE),
    shows("unknown-sequence-ignored", "jamba", UNIFIED, (START, Op.seq_cp(0, 3)), "saved 3", [[0, 1, 2]], [[]]),
    shows("state-moves-for-all-owners", "mamba", UNIFIED,
          (START, Op.seq_cp(0, 1), Op.seq_add(0, -1, -1, 2)), "pos 1", [4, 4], [2, 2]),
    shows("state-position-below-zero", "mamba", UNIFIED, (START, Op.seq_add(0, -1, -1, -4)), "pos 0", [-2, -1], [2, 2]),
    differs("rollback-beyond-snapshot", "lfm2", ROLLBACK,
            (run(0, 0, 2), run(0, 2), Op.seq_rm(0, 2), run(0, 2, 2)), (run(0, 0, 2), run(0, 2, 2))),
    differs("rollback-counts-positions", "lfm2", ROLLBACK,
            (at(0, 0, 1, 1), Op.seq_rm(0, 1), run(0, 1)), (run(0, 0), run(0, 1))),
    shows("rollback-moves-other-owners", "lfm2", ROLLBACK,
          (START, Op.seq_cp(0, 1), Op.seq_rm(0, 2)), "answer", 1, 0, seen=("b11063",), gone=("b11549",)),
    differs("copy-ignores-rollback", "lfm2", ROLLBACK,
            (START, Op.seq_rm(0, 2), Op.seq_cp(0, 1), run(1, 2)), (run(1, 0, 2), run(1, 2))),
    differs("stale-rollback-used", "lfm2", ROLLBACK,
            (START, Op.seq_rm(0, 2), Op.seq_keep(1), run(0, 0)), (run(0, 0),)),
    differs("failed-ubatch-strands-states", "mamba", UNIFIED,
            (rows((1, 0), (0, 0)), rows((1, 1), (2, 0), fault=ABORT), run(0, 1)),
            (rows((1, 0), (0, 0)), run(0, 1))),
    differs("fresh-state-not-zero", "mamba", UNIFIED,
            (rows((0, 0), (2, 0)), run(1, 0), Op.seq_rm(2), rows((0, 1), (1, 1), fault=ABORT), run(2, 0)),
            (run(2, 0),)),
    shows("state-skips-positions", "mamba", UNIFIED, (rows((0, 0), (1, 0), (1, 0)),), "answer", 0, -1),
    differs("ownerless-state", "mamba", UNIFIED,
            (START, Op.state_seq_get(0, 0), Op.state_seq_set(-1, 0), run(1, 0)), (run(1, 0),)),
    shows("halves-disagree", "jamba", UNIFIED, (START, Op.seq_cp(1, 0), run(0, 1)), "answer", 0, -1),
    shows("partial-failure-drops-all", "glm5-next", UNIFIED,
          (START, Op.state_seq_get(0, 0, PARTIAL_ONLY), Op.state_seq_set(0, 0, PARTIAL_ONLY, truncate=20)),
          "held attn 0", [], [0, 1, 2], seen=("b11549",)),
    Finding("indexer-slots-diverge", "deepseek32", UNIFIED,
            (run(0, 0), Op.state_seq_get(0, 0), Op.state_seq_set(0, 0, truncate=30), run(0, 0)),
            ("cells mla", "cells lid"), ([[0, 0]], [[0, 0], [1, 0]]), ([[0, 0]], [[0, 0]]), (), BOTH),
    shows("refuses-harmless-range", "deepseek4", UNIFIED, (Op.seq_rm(0, 5, 7),), "answer", 0, 1),
    differs("rollback-consumed-early", "deepseek4", ROLLBACK,
            (run(0, 0, 6), Op.seq_rm(0, 4), run(0, 4, fault=ABORT)), (run(0, 0, 6), Op.seq_rm(0, 4)), "rows 0"),
    differs("rollback-arms-uncomputed", "lfm2", ROLLBACK,
            (START, run(0, 3, fault=ABORT), run(0, 3)), (START, run(0, 3))),
    differs("clearing-empties-queued-copy", "deepseek4", UNIFIED,
            (run(0, 0, 6), Op.seq_cp(0, 1), Op.seq_rm(0), run(1, 6, 8)), (run(1, 0, 6), run(1, 6, 8))),
    differs("compressed-rows-of-nothing", "deepseek4", UNIFIED, (run(0, 9),), (run(0, 0),)),
)  # fmt: skip
"""Every hazard that shows."""

UNCONFIRMED = {
    "cell-keeps-old-token": "Nothing that llama.cpp prints or saves shows the token of a cell.",
    "shift-requantizes-all": (
        "It happens, but rows that are dequantised and quantised again came out the same, for q8_0, q4_0, q4_1, "
        "q5_0, q5_1 and iq4_nl."
    ),
    "window-forgets-sequence": (
        "It needs a window of 1, or a window in chunks; the tiny models have neither."
    ),
    "stale-rollback-kept": (
        "Nothing shows a pending rollback; what comes of it is the finding stale-rollback-used."
    ),
}
"""Hazards that were not seen from outside, and why."""
