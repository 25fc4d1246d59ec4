"""Rows of a picture that are remembered are those that would be made anew."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from kvsim.batch import Batch
from kvsim.cell_rows import WORTH, CellRows
from kvsim.cells import CellTable
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import tiny_model
from kvsim.owner_words import ids_of_words


def fresh(table: CellTable) -> list[list]:
    """The rows as a table that has never been asked makes them."""
    known, table._rows = table._rows, CellRows(ids_of_words)
    try:
        return table.rows()
    finally:
        table._rows = known


def context_of(n_cells: int) -> Context:
    params = ContextParams(n_ctx=n_cells, n_batch=n_cells, n_ubatch=64, n_seq_max=130, kv_unified=True)
    return Context(tiny_model("llama").params(), params)


def act(context: Context, rng: random.Random) -> None:
    memory, seq = context.memory, rng.choice([0, 1, 2, 127])
    last = memory.seq_pos_max(seq)
    match rng.randrange(6):
        case 0 | 1 | 2:
            n = rng.randrange(1, 60)
            pos = list(range(last + 1, last + 1 + n))
            context.decode(Batch(tokens=[7] * n, pos=pos, seq_ids=[[seq]] * n))
        case 3:
            memory.seq_rm(seq, rng.randrange(-1, max(last, 1)), -1)
        case 4:
            memory.seq_cp(seq, rng.choice([3, 4]), -1, -1)
        case 5:
            memory.seq_add(seq, 0, -1, rng.randrange(-3, 4))


@pytest.mark.parametrize("n_cells", [256, WORTH])
def test_after_any_operations(n_cells: int) -> None:
    context, rng = context_of(n_cells), random.Random(3)
    table = context.memory.leaves()["kv"].cells[0]
    for turn in range(160):
        act(context, rng)
        if turn % 3 != 1:  # not every operation is followed by a picture
            assert table.rows() == fresh(table)
    assert table.seq.shape[0] > 1  # the owners have needed a second word on the way
    context.memory.clear(True)
    assert table.rows() == []


def test_what_stays_is_the_same_object_and_old_pictures_stay_as_they_were() -> None:
    context = context_of(WORTH)
    table = context.memory.leaves()["kv"].cells[0]
    context.decode(Batch(tokens=[7] * 40, pos=list(range(40)), seq_ids=[[0]] * 40))
    before = table.rows()
    kept = copy.deepcopy(before)
    context.memory.seq_add(0, 39, 40, 5)
    after = table.rows()
    assert [a is b for a, b in zip(before, after, strict=True)] == [True] * 39 + [False]
    assert after[39][:4] == [39, 44, [0], 5]
    assert before == kept


def test_copies_of_a_table_go_their_own_way() -> None:
    context = context_of(WORTH)
    table = context.memory.leaves()["kv"].cells[0]
    context.decode(Batch(tokens=[7] * 8, pos=list(range(8)), seq_ids=[[0]] * 8))
    table.rows()
    deep, shallow = copy.deepcopy(table), copy.copy(table)
    context.memory.seq_rm(0, 4, -1)
    assert len(table.rows()) == 4
    assert len(deep.rows()) == 8
    assert shallow.rows() == fresh(shallow)


def test_a_cell_at_position_minus_one_is_listed_as_long_as_it_counts() -> None:
    rows = CellRows(ids_of_words)
    columns = [np.full(WORTH, -1, np.int32), *(np.zeros(WORTH, np.int32) for _ in range(4))]
    columns.append(np.zeros(WORTH, np.uint64))
    assert rows.of(np.array([5]), columns) == [[5, -1, [], 0, 0, 0, 0]]
    assert rows.of(np.array([], np.intp), columns) == []
    assert rows.of(np.array([5]), columns) == [[5, -1, [], 0, 0, 0, 0]]
