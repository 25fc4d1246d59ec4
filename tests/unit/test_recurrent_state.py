"""Saving and restoring recurrent states: spec/state.md, section 4."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from recurrent_driver import LAYERS, decode, memory_of, owners, positions

from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import CacheUsageError, StateError
from kvsim.state import ON_DEVICE, DeviceStates, load_all, load_sequence, save_all, save_sequence

ARCH = "mamba"
HEAD = 8  # magic and source id of a sequence state
ROWS = 2 * (4 + 8) * 2 + 8  # type and row size of r and s of two layers, and the row size of p


def filled(size: int = 4, n_rs_seq: int = 0) -> RecurrentMemory:
    """A memory with rows that tell where they are: 100 * layer + row, plus a fraction for the part."""
    memory = memory_of(size, n_rs_seq, store=True)
    assert memory.store is not None
    for k, part in enumerate("rsp"):
        for il, rows in memory.store.rows[part].items():
            rows[:] = 100 * il + np.arange(len(rows))[:, None] + k / 4
    return memory


def row(memory: RecurrentMemory, part: str, il: int, i: int) -> float:
    assert memory.store is not None
    return float(memory.store.rows[part][il][i, 0])


def test_layout_of_one_sequence_byte_for_byte() -> None:
    memory = filled()
    decode(memory, 1, n=3)
    r, s = (np.full(width, v, "<f4").tobytes() for width, v in ((2, 0.0), (3, 0.25)))
    r2, s2, p2 = (np.full(width, v, "<f4").tobytes() for width, v in ((2, 200), (3, 200.25), (1, 200.5)))
    expected = (
        struct.pack("<IiI", 0xAF143CD8, 1, 1)
        + struct.pack("<iI", 2, 0)
        + struct.pack("<II", 0, 3)
        + struct.pack("<iQ", 0, 8) + r
        + struct.pack("<iQ", 0, 8) + r2 + struct.pack("<Q", 4) + p2
        + struct.pack("<iQ", 0, 12) + s
        + struct.pack("<iQ", 0, 12) + s2
    )  # fmt: skip
    assert save_sequence(memory, 1) == expected


def test_whole_state_lists_all_owners() -> None:
    memory = memory_of(4)
    decode(memory, 0, 2)
    memory.seq_cp(0, 3, -1, -1)
    blob = save_all(memory, ARCH)[4 + len(ARCH) :]
    assert struct.unpack_from("<I iIii iIi", blob) == (2, 0, 2, 0, 3, 0, 1, 2)


def test_rc1_rows_come_from_where_the_state_is() -> None:
    memory = filled()
    decode(memory, 0)
    decode(memory, 1)
    memory.cells.src[1] = 3  # moved, not yet read
    other = filled()
    assert load_sequence(other, save_sequence(memory, 1), 0) > 0
    assert (row(other, "s", 0, 0), row(other, "p", 2, 0)) == (3.25, 203.5)


def test_rc1_a_pending_rollback_is_saved_as_what_it_goes_back_to() -> None:
    memory = filled(n_rs_seq=2)
    decode(memory, 0, 1, n=3)
    memory.seq_rm(1, 1, -1)
    one, everything = filled(n_rs_seq=2), filled(n_rs_seq=2)
    load_sequence(one, save_sequence(memory, 1), 1)
    load_all(everything, save_all(memory, ARCH), ARCH)
    for other in (one, everything):
        assert (positions(other)[1], other.rs_idx[1]) == (0, 0)
        assert row(other, "r", 0, other.cells.cell_of(1)) == 2 * 4 + 1  # plane 2, cell 1


def test_rc2_sharing_sequences_that_disagree_on_the_rollback_cannot_be_saved_whole() -> None:
    memory = memory_of(3, n_rs_seq=2)
    decode(memory, 0, n=3)
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_rm(0, 2, -1)
    with pytest.raises(CacheUsageError, match=r"share cell 0 .* \{0: 1, 1: 0\}"):
        save_all(memory, ARCH)
    assert save_sequence(memory, 0)


def test_rc3_a_restored_sequence_is_placed_like_a_ubatch() -> None:
    memory = filled()
    decode(memory, 0, 1, n=3)
    blob = save_sequence(memory, 1)
    other = memory_of(4, store=True)
    decode(other, 0, 3)
    assert load_sequence(other, blob, 2) == len(blob)
    record = other.record()
    assert (record["head"], record["n"], record["rs_z"], record["used"]) == (2, 1, 2, 3)
    assert record["cells"][2] == [2, 2, 2, 2, 2, [2]]
    assert row(other, "s", 2, 2) == row(memory, "s", 2, 1)
    other.check_integrity()


def test_rc3_an_empty_sequence_restores_as_empty() -> None:
    memory = memory_of(4)
    blob = save_sequence(memory, 3)
    other = memory_of(4)
    decode(other, 0, 1)
    assert load_sequence(other, blob, 1) == len(blob)
    record = other.record()
    assert (owners(other), record["n"], record["used"]) == ([[0], [], [], []], 2, 1)


def test_rc3_a_whole_restore_compacts() -> None:
    memory = filled(n_rs_seq=1)
    decode(memory, 0, 1, 2, n=2)
    memory.seq_rm(0, -1, -1)
    other = filled(n_rs_seq=1)
    decode(other, 3, n=2)
    other.seq_rm(3, 1, -1)
    blob = save_all(memory, ARCH)
    assert load_all(other, blob, ARCH) == len(blob)
    record = other.record()
    assert (owners(other), record["head"], record["used"], record["rs_idx"]) == (
        [[1], [2], [], []],
        0,
        2,
        [0] * 4,
    )
    assert [cell[2] for cell in record["cells"]] == [0, 1, -1, -1]
    assert (row(other, "r", 2, 0), row(other, "r", 2, 1), row(other, "r", 2, 2)) == (201, 202, 0)
    assert save_all(other, ARCH) == blob


def test_surprise_9_a_sequence_state_restored_as_everything_has_no_owner() -> None:
    memory = memory_of(4)
    decode(memory, 2, n=5)
    blob = save_sequence(memory, 2)
    other = memory_of(4)
    assert load_sequence(other, blob, -1) == len(blob)
    record = other.record()
    assert record["cells"][0] == [0, 4, 0, -1, -1, []]
    assert (record["used"], positions(other)) == (1, [-1] * 4)


# -- refusals ------------------------------------------------------------------------------------


def blob_of_1() -> bytes:
    memory = filled()
    decode(memory, 1, n=3)
    return save_sequence(memory, 1)


def patched(at: int, value: int) -> bytes:
    blob = bytearray(blob_of_1())
    blob[at : at + 4] = struct.pack("<I", value)
    return bytes(blob)


def test_rc5_cut_before_the_count_changes_nothing_and_cut_in_the_cells_drops_the_target() -> None:
    for cut, left in (
        (HEAD + 3, [[0], [1], [], []]),
        (HEAD + 4, [[0], [], [], []]),
        (HEAD + 11, [[0], [], [], []]),
    ):
        other = filled()
        decode(other, 0, 1, n=2)
        before = other.record()
        with pytest.raises(StateError, match="truncated"):
            load_sequence(other, blob_of_1()[:cut], 1)
        assert owners(other) == left
        if cut == HEAD + 3:
            assert other.record() == before
        assert row(other, "s", 0, 1) == 1.25  # rows are as they were


@pytest.mark.parametrize("cut", [HEAD + 12, HEAD + 20, HEAD + 40, -1])
def test_rc4_data_cut_short_drops_the_target_and_zeroes_its_row(cut: int) -> None:
    other = filled()
    decode(other, 0, 1, n=2)
    with pytest.raises(StateError, match="truncated"):
        load_sequence(other, blob_of_1()[:cut], 1)
    assert owners(other) == [[0], [], [], []]
    assert [row(other, "s", 2, i) for i in range(4)] == [200.25, 0, 202.25, 203.25]
    assert (other.record()["head"], other.record()["n"]) == (1, 1)  # what placing did stays
    other.check_integrity()


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (HEAD, 5, "the state has 5 recurrent cells, the memory 4"),
        (HEAD + 8, 1, "lists 1 sequences"),
        (HEAD + 12, 1, "the layout of S is 1"),
        (HEAD + 16, 2, "the number of layers is 2 in the state, 3 in the memory"),
        (HEAD + 20, 1, "the type of r rows in layer 0 is 1"),
        (HEAD + 24, 9, "the bytes of a r row in layer 0 is 9"),
        (HEAD + 60, 9, "the bytes of a p row in layer 2 is 9"),
        (HEAD + 72, 1, "the type of s rows in layer 0 is 1"),
    ],
)
def test_rc4_what_does_not_fit_is_named_and_the_target_dropped(at: int, value: int, words: str) -> None:
    other = filled()
    decode(other, 0, 1, n=2)
    with pytest.raises(StateError, match=words):
        load_sequence(other, patched(at, value), 1)
    assert owners(other) == [[0], [], [], []]
    other.check_integrity()


def test_strict_restoring_leaves_everything_as_it_was() -> None:
    other = filled()
    decode(other, 0, 1, n=2)
    before = other.record()
    with pytest.raises(StateError):
        load_sequence(other, blob_of_1()[:-1], 1, strict=True)
    assert other.record() == before
    assert row(other, "s", 2, 1) == 201.25


def test_several_cells_for_one_sequence_end_the_process_before_anything_changes() -> None:
    two = blob_of_1()
    two = two[:HEAD] + struct.pack("<I", 2) + two[HEAD + 4 : HEAD + 12] * 2 + two[HEAD + 12 :]
    other = filled()
    decode(other, 0, 1)
    before = other.record()
    with pytest.raises(CacheUsageError, match="lists 2 recurrent cells"):
        load_sequence(other, two, 1)
    assert other.record() == before


def test_a_sequence_beyond_the_cells_is_refused() -> None:
    with pytest.raises(StateError, match="sequence 4 is beyond the 4 cells"):
        load_sequence(filled(), blob_of_1(), 4)


def test_an_empty_state_into_an_unknown_sequence_ends_the_process_if_there_are_snapshots() -> None:
    blob = save_sequence(memory_of(4), 0)
    assert load_sequence(memory_of(4), blob, 9) == len(blob)
    with pytest.raises(CacheUsageError, match="from 0 to 3"):
        load_sequence(memory_of(4, n_rs_seq=1), blob, 9)


def test_an_empty_state_into_a_negative_id_forgets_every_rollback() -> None:
    memory = memory_of(2, n_rs_seq=1)
    decode(memory, 0, n=3)
    memory.seq_rm(0, 2, -1)
    load_sequence(memory, save_sequence(memory, 1), -2)
    assert (memory.rs_idx, positions(memory)) == ([0, 0], [1, -1])


def whole_state(*cells: tuple[int, list[int]], count: int | None = None) -> bytes:
    memory = memory_of(4)
    blob = save_all(memory, ARCH)
    at = 4 + len(ARCH)
    meta = b"".join(struct.pack(f"<iI{len(ids)}i", pos, len(ids), *ids) for pos, ids in cells)
    return blob[:at] + struct.pack("<I", len(cells) if count is None else count) + meta + blob[at + 4 :]


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (whole_state((3, [0]), (4, [1, 4])), "belongs to sequence 4, this context has 4"),
        (whole_state((3, [0, 1]), (4, [1])), "belongs to sequence 1, and so does cell 0"),
        (whole_state(count=2**31), "has 2147483648 recurrent cells"),
    ],
)
def test_rc3_a_bad_list_of_cells_clears_everything(blob: bytes, words: str) -> None:
    other = filled()
    decode(other, 0, 1)
    with pytest.raises(StateError, match=words):
        load_all(other, blob, ARCH)
    assert (owners(other), other.record()["used"], row(other, "s", 2, 3)) == ([[]] * 4, 0, 0)


def test_rc5_a_whole_list_cut_short_stays_half_filled() -> None:
    other = filled()
    decode(other, 0, 1)
    at = 4 + len(ARCH)
    with pytest.raises(StateError, match="truncated"):
        load_all(other, whole_state((3, [2]), (4, [1]))[: at + 4 + 12 + 8], ARCH)
    record = other.record()
    assert (record["head"], record["used"]) == (0, 0)
    assert record["cells"][:2] == [[0, 3, -1, 0, -1, [2]], [1, 4, -1, 0, -1, []]]
    other.check_integrity()


def test_od5_neighbouring_cells_only_can_stay_on_the_device() -> None:
    memory = filled()
    decode(memory, 0, 1, 2)
    device = DeviceStates()
    blob = save_sequence(memory, 1, ON_DEVICE, device)
    assert len(blob) == HEAD + 4 + 8 + 8 + ROWS
    other = filled()
    assert load_sequence(other, blob, 3, ON_DEVICE, device) == len(blob)
    assert row(other, "s", 2, other.cells.cell_of(3)) == 201.25
    memory.seq_rm(1, -1, -1)
    with pytest.raises(CacheUsageError, match=r"cells \[0, 2\], which are not neighbours"):
        save_sequence(memory, -1, ON_DEVICE, device)


def test_without_rows_sizes_are_the_same() -> None:
    for memory in (filled(), memory_of(4)):
        decode(memory, 0, 1)
        assert len(save_sequence(memory, 1)) == HEAD + 20 + ROWS + 44
        assert len(save_all(memory, ARCH)) == 9 + 4 + 2 * 12 + 8 + ROWS + 2 * 44


def test_a_layer_keeps_its_entry_for_s_even_without_width() -> None:
    memory = RecurrentMemory(1, 0, [(2, 0, 0)], 1)
    assert len(save_sequence(memory, 0)) == HEAD + 4 + 8 + 2 * 12
    assert LAYERS[1] == (0, 0, 0)  # and a layer without a state has none, see the layout above
