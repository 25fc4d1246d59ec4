"""The rows of recurrent states: what the graph reads and writes, and whose history they hold.

The little model here folds each token into its state; a state is then known by the tokens it has seen.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.batch import Batch, BatchAllocator, Ubatch
from kvsim.caches.recurrent import RecurrentMemory, RecurrentView
from kvsim.tensors.recurrent_store import RecurrentStore

LAYERS = [(1, 1, 0)]


def fold(state: float, token: int) -> float:
    """The state after one more token; small enough integers that float32 is exact."""
    return (state * 31 + token + 1) % 65_521


def fold_all(tokens: list[int]) -> float:
    state = 0.0
    for token in tokens:
        state = fold(state, token)
    return state


def run_graph(memory: RecurrentMemory, view: RecurrentView, ubatch: Ubatch) -> None:
    """All states after each token; the last ``n_rs_seq + 1`` of them are kept, newest first."""
    assert memory.store is not None
    assert ubatch.tokens is not None
    start = memory.store.initial_states("s", 0, view.head, view.rs_z, view.s_copy, view.n_seqs)
    states = [start]
    for step in ubatch.tokens.reshape(ubatch.n_seqs, -1).T:
        states.append(
            np.array([[fold(float(s), int(t))] for s, t in zip(states[-1][:, 0], step, strict=True)])
        )
    n_planes = min(ubatch.n_seq_tokens, memory.n_rs_seq + 1)
    memory.store.write_states("s", 0, view.head, np.stack(states[::-1][:n_planes]).astype(np.float32))


def state_of(memory: RecurrentMemory, seq: int) -> float:
    """What the next graph would start this sequence from."""
    assert memory.store is not None
    cells = memory.cells
    cell = cells.cell_of(seq)
    return float(memory.store.rows["s"][0][memory.rs_idx[seq] * memory.size + cells.src[cell], 0])


class Histories:
    """Drives a memory and keeps, beside it, the tokens of every sequence."""

    def __init__(self, size: int, n_rs_seq: int) -> None:
        self.memory = RecurrentMemory(
            size, n_rs_seq, LAYERS, size, store=RecurrentStore(size, n_rs_seq, LAYERS)
        )
        self.tokens: dict[int, list[int]] = {}
        self.last_length: dict[int, int] = {}  # tokens of the sequence's last ubatch

    def decode(self, tokens: dict[int, list[int]], n_ubatch: int) -> None:
        memory = self.memory
        batch = BatchAllocator(1, memory.n_seq_max)
        batch.init(Batch.joined(*[Batch.tokens_of(seq, new) for seq, new in tokens.items()]), memory)
        context = memory.init_batch(batch, n_ubatch)
        while True:
            cells = {seq: memory.cells.cell_of(seq) for seq in range(memory.size)}
            assert context.apply()
            view = context.views["recurrent"]
            assert isinstance(view, RecurrentView)
            view.set_inputs()
            run_graph(memory, view, context.ubatch)
            for seq, cell in cells.items():
                if memory.cells.cell_of(seq) != cell:
                    self.last_length[seq] = 0  # the state moved to another cell, its snapshots did not
            self.last_length.update(dict.fromkeys(context.ubatch.seq_id_unq, context.ubatch.n_seq_tokens))
            if not context.next():
                break
        for seq, new in tokens.items():
            self.tokens[seq] = self.tokens.get(seq, []) + new

    def roll_back(self, seq: int, depth: int) -> None:
        """Where it is exact (R11): one owner, nothing pending, not past the last ubatch, and no later ubatch
        has swapped the state into another cell (the gather copies plane 0 alone)."""
        memory = self.memory
        held = self.tokens.get(seq, [])
        cell = memory.cells.cell_of(seq)
        if cell < 0 or memory.cells.owners[cell] != 1 << seq or depth >= len(held):
            return
        fits = depth <= memory.n_rs_seq and memory.rs_idx[seq] == 0
        if fits and depth >= self.last_length[seq]:
            return
        assert memory.seq_rm(seq, len(held) - depth, -1) is fits
        if fits:
            self.tokens[seq] = held[:-depth]
            self.last_length[seq] -= depth

    def copy(self, src: int, dst: int) -> None:
        """Not while a rollback is pending: the copy would not go back (surprise 2)."""
        if src == dst or self.memory.rs_idx[src]:
            return
        self.remove(dst)
        self.memory.seq_cp(src, dst, -1, -1)
        if src in self.tokens:
            self.tokens[dst] = list(self.tokens[src])
            self.last_length[dst] = 0

    def remove(self, seq: int) -> None:
        assert self.memory.seq_rm(seq, -1, -1)
        self.tokens.pop(seq, None)

    def keep(self, seq: int) -> None:
        self.memory.seq_keep(seq)
        for other in range(self.memory.size):
            if other != seq:
                self.remove(other)  # else its rollback would stay noted (surprise 3)

    def check(self) -> None:
        memory = self.memory
        memory.check_integrity()
        for seq in range(memory.size):
            held = self.tokens.get(seq, [])
            assert memory.seq_pos_max(seq) == len(held) - 1
            if held:
                assert state_of(memory, seq) == fold_all(held), f"sequence {seq}"


SIZE = 5
SEQ = st.integers(0, SIZE - 1)
TOKENS = st.lists(st.integers(0, 99), min_size=1, max_size=9)
OPERATIONS = st.one_of(
    st.tuples(st.just("decode"), st.dictionaries(SEQ, TOKENS, min_size=1), st.integers(5, 12)),
    st.tuples(st.just("roll_back"), SEQ, st.integers(1, 5)),
    st.tuples(st.just("copy"), SEQ, SEQ),
    st.tuples(st.just("remove"), SEQ),
    st.tuples(st.just("keep"), SEQ),
)


@example(1, [("decode", {1: [0]}, 5), ("decode", {0: [0, 0], 1: [0], 2: [0]}, 5), ("roll_back", 0, 1)])
@settings(deadline=None)
@given(st.integers(0, 3), st.lists(OPERATIONS, max_size=25))
def test_every_state_has_seen_exactly_the_tokens_of_its_sequence(
    n_rs_seq: int, operations: list[tuple]
) -> None:
    histories = Histories(SIZE, n_rs_seq)
    for name, *args in operations:
        getattr(histories, name)(*args)
        histories.check()


# -- the store ----------------------------------------------------------------------------------


def store_with_rows() -> RecurrentStore:
    store = RecurrentStore(4, 1, [(1, 2, 0)])
    store.rows["s"][0][:] = np.arange(8)[:, None]
    return store


def test_rows_are_read_before_any_is_written() -> None:
    store = store_with_rows()
    start = store.initial_states("s", 0, head=0, rs_z=-1, s_copy=[2, 0, 1], n_seqs=2)
    assert start[:, 0].tolist() == [2, 0]
    assert store.rows["s"][0][:, 0].tolist() == [0, 1, 1, 3, 4, 5, 6, 7]


def test_sources_may_lie_in_a_snapshot_plane() -> None:
    start = store_with_rows().initial_states("s", 0, head=1, rs_z=-1, s_copy=[4 + 1], n_seqs=1)
    assert start.tolist() == [[5, 5]]


def test_surprise_11_a_nan_survives_zeroing() -> None:
    store = store_with_rows()
    store.rows["s"][0][3] = [np.nan, 7]
    start = store.initial_states("s", 0, head=3, rs_z=3, s_copy=[3], n_seqs=1)
    assert np.isnan(start[0, 0])
    assert start[0, 1] == 0


def test_new_states_fill_only_the_planes_given() -> None:
    store = store_with_rows()
    store.write_states("s", 0, 2, np.full((1, 2, 2), 9, np.float32))
    assert store.rows["s"][0][:, 0].tolist() == [0, 1, 9, 9, 4, 5, 6, 7]
    store.write_states("s", 0, 0, np.array([[[20, 20]], [[21, 21]]], np.float32))
    assert store.rows["s"][0][:, 0].tolist() == [20, 1, 9, 9, 21, 5, 6, 7]


def test_zeroing_cells_leaves_snapshots() -> None:
    store = store_with_rows()
    store.zero_cells(1, 2)
    assert store.rows["s"][0][:, 0].tolist() == [0, 0, 0, 3, 4, 5, 6, 7]
    store.zero()
    assert not store.rows["s"][0].any()


def test_bytes_go_in_and_out_by_row() -> None:
    store = store_with_rows()
    data = store.read("s", 0, [6, 1])
    assert np.frombuffer(data, "<f4").tolist() == [6, 6, 1, 1]
    store.write("s", 0, 2, data)
    assert store.rows["s"][0][:, 0].tolist() == [0, 1, 6, 1, 4, 5, 6, 7]


@pytest.mark.parametrize(("widths", "parts"), [((2, 0, 0), "rs"), ((0, 3, 1), "rsp"), ((0, 0, 0), "")])
def test_a_layer_with_a_state_has_r_and_s(widths: tuple[int, int, int], parts: str) -> None:
    store = RecurrentStore(1, 0, [widths])
    assert "".join(part for part in "rsp" if 0 in store.rows[part]) == parts
