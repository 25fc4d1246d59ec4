"""Delta debugging: what is left cannot be spared."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.testing.shrink import shrink, simpler_ops


@given(st.lists(st.integers(0, 9), max_size=60), st.sets(st.integers(0, 9), max_size=4))
def test_no_operation_that_is_left_can_be_left_out(seqs: list[int], needed: set[int]) -> None:
    """The list fails as long as it keeps each of the needed sequences."""

    def fails(ops: Sequence[Op]) -> bool:
        return needed <= {op.args["seq"] for op in ops}

    ops = [Op.seq_keep(seq) for seq in seqs]
    if fails(ops):
        small = shrink(ops, fails)
        assert fails(small)
        assert sorted(op.args["seq"] for op in small) == sorted(needed)


@given(st.integers(1, 12), st.integers(0, 11))
def test_a_batch_keeps_only_the_tokens_that_matter(n: int, wanted: int) -> None:
    def fails(ops: Sequence[Op]) -> bool:
        return any(wanted in op.args["pos"] for op in ops if op.op == "decode")

    ops = [Op.clear(), Op.decode_run(0, 0, range(n), Fault(1)), Op.seq_rm(0, 3, 4)]
    if fails(ops):
        [decode] = shrink(ops, fails)
        assert decode.args == {
            "tokens": [wanted],
            "pos": [wanted],
            "seq": [[0]],
            "out": [int(wanted == n - 1)],
        }


def test_the_order_of_what_is_left_is_kept() -> None:
    def fails(ops: Sequence[Op]) -> bool:
        names = [op.op for op in ops]
        return "seq_keep" in names and "clear" in names[names.index("seq_keep") :]

    ops = [Op.clear(), Op.seq_keep(0), Op.seq_cp(0, 1), Op.clear(), Op.seq_keep(1)]
    assert [op.op for op in shrink(ops, fails)] == ["seq_keep", "clear"]


def test_simpler_means_fewer_tokens_open_ranges_no_fault_no_damage() -> None:
    assert list(simpler_ops(Op.seq_rm(0, 2, 4))) == [Op.seq_rm(0, -1, 4), Op.seq_rm(0, 2, -1)]
    assert list(simpler_ops(Op.seq_rm(0))) == []
    assert list(simpler_ops(Op.state_seq_set(0, 1, xor0=3))) == [Op.state_seq_set(0, 1)]
    assert list(simpler_ops(Op.decode_run(0, 0, [5], Fault(0)))) == [Op.decode_run(0, 0, [5])]
    images = Op.decode(None, [0, 0, 0, 1, 0, 1, 0, 0], [[0], [0]])
    assert list(simpler_ops(images)) == [], "positions in sections are left alone"
