"""Ways to a difference that campaigns have found, shrunk, and that must stay explained."""

from __future__ import annotations

from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES
from kvsim.testing.checked import Checked


def one(seq: int, pos: int) -> Op:
    return Op.decode([5], [pos], [[seq]])


def test_a_fresh_state_in_a_dirty_row_is_told_where_cells_were_swapped() -> None:
    """hazard fresh-state-not-zero: the row that a failed graph left as it was belongs to a cell that is
    swapped before the next sequence begins in it."""
    info = CACHES["hybrid"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    for op in (
        one(2, 0), one(0, 7), Op.seq_cp(2, 1), Op.seq_rm(2), one(2, 2), Op.seq_rm(1), Op.seq_cp(1, 0),
        Op.decode([5, 5], [0, 3], [[1], [2]], fault=Fault(0, "alloc")),
        Op.decode(None, [1, 0], [[0], [1]], [1, 1]),
    ):  # fmt: skip
        checked.perform(op)
    assert [event.detail for event in checked.events if event.detail["id"] == "fresh-state-not-zero"] == [
        {"id": "fresh-state-not-zero", "seqs": [1]}
    ]


def test_rows_zeroed_by_another_parts_failure_are_told_under_a_queued_copy() -> None:
    """hazard restore-under-queued-copy: attention fails to restore, so the index drops the sequence too, and
    a queued copy has yet to read its rows."""
    info = CACHES["hybrid_idx"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    get, restore = Op.state_seq_get(1, 0), Op.state_seq_set(1, 0, truncate=146)
    for op in (one(1, 7), get, Op.seq_cp(1, 0), restore):
        checked.perform(op)
    told = {event.cache for event in checked.events if event.detail["id"] == "restore-under-queued-copy"}
    assert "idx" in told
