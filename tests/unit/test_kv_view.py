"""What a graph sees of a KV cache: indices, masks, predecessor tokens (spec kv_cache.md, sections 6 to 8)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_memories import kv_cache, put, streams, window_cache

from kvsim.caches.kv_view import KVView, ranges
from kvsim.models.params import SwaType


def rows(view: KVView) -> list[list[int]]:
    """Per row the cells it may attend to."""
    return [np.flatnonzero(row).tolist() for row in view.mask()]


# -- masks (section 6; tensors/mask.py is tested against the rule by itself) ---------------------


def test_a_row_sees_its_sequence_up_to_its_own_position() -> None:
    cache = kv_cache(8)
    put(cache, range(2), 0)
    put(cache, range(3), 1)
    view = put(cache, [2, 3, 3], [0, 0, 1])
    assert rows(view) == [[0, 1, 5], [0, 1, 5, 6], [2, 3, 4, 7]]
    assert view.mask().shape == (3, 8)


def test_the_first_id_of_a_token_is_the_one_that_masks() -> None:
    cache = kv_cache(8)
    put(cache, range(2), 0)
    put(cache, range(2), 1)
    view = put(cache, [2, 3], [(1, 0), (0, 1)])
    assert rows(view) == [[2, 3, 4], [0, 1, 4, 5]]


def test_rows_of_several_streams_see_cells_of_their_own() -> None:
    cache = streams(3)
    put(cache, range(3), 0)
    put(cache, range(1), 2)
    view = put(cache, [3, 4, 1, 2], [0, 0, 2, 2])
    assert view.n_stream == 2
    assert rows(view) == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1], [0, 1, 2]]


def test_a_window_hides_older_cells() -> None:
    """STANDARD, n_swa 4: position 9 sees 6 to 9."""
    cache = window_cache(4, 16)
    put(cache, range(9))
    assert rows(put(cache, [9])) == [[6, 7, 8, 9]]


def test_a_cell_at_position_minus_one_is_seen_by_nobody() -> None:
    cache = kv_cache(4)
    assert rows(put(cache, [-1, 0])) == [[], [1]]


def test_two_dimensional_positions_hide_what_comes_later_in_raster_order() -> None:
    cache = kv_cache(8, n_pos_per_embd=4)
    image = np.array([[3, 3, 3, 3], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], np.int32)  # t, y, x
    view = put(cache, [3, 3, 3, 3], pos=image, tokens=None, has_embd=True)
    assert rows(view) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_non_causal_rows_see_the_whole_sequence() -> None:
    cache = kv_cache(8)
    view = put(cache, range(3))
    assert view.mask(causal=False)[0, :4].tolist() == [True, True, True, False]


# -- indices (section 7) ------------------------------------------------------------------------


def test_k_indices_count_over_all_streams() -> None:
    cache = streams(3, size=8)
    put(cache, range(3), 2)
    view = put(cache, [0, 3], [1, 2])
    assert view.k_idxs().tolist() == [8, 19]
    assert view.v_idxs(5).tolist() == [8, 19]


def test_v_indices_of_a_transposed_cache_are_one_per_scalar() -> None:
    """strm * size * E + j * size + cell."""
    cache = streams(2, size=8, v_trans=True)
    put(cache, range(2), 1)
    view = put(cache, [2, 3], [1, 1])
    assert view.k_idxs().tolist() == [10, 11]
    assert view.v_idxs(3).tolist() == [24 + 2, 24 + 10, 24 + 18, 24 + 3, 24 + 11, 24 + 19]


# -- predecessors (section 8) --------------------------------------------------------------------


def test_text_looks_back_by_position_and_sees_its_own_ubatch() -> None:
    cache = kv_cache(8)
    put(cache, [0, 1], tokens=np.array([7, 8], np.int32))
    view = put(cache, [2, 3], tokens=np.array([9, 10], np.int32))
    assert view.prev_tokens(3).tolist() == [[-1, 7, 8], [7, 8, 9]]


def test_a_hole_is_bridged_by_the_nearest_token_before_it() -> None:
    cache = kv_cache(8)
    put(cache, range(4), tokens=np.array([5, 6, 7, 8], np.int32))
    cache.seq_rm(0, 1, 3)
    view = put(cache, [4], tokens=np.array([9], np.int32))
    assert view.prev_tokens(4).tolist() == [[5, 5, 5, 8]]


def test_other_sequences_are_not_seen_and_the_first_id_decides() -> None:
    cache = kv_cache(8)
    put(cache, range(2), 0, tokens=np.array([5, 6], np.int32))
    put(cache, range(2), 1, tokens=np.array([7, 8], np.int32))
    view = put(cache, [2, 2], [(1, 0), (0, 1)], tokens=np.array([9, 10], np.int32))
    assert view.prev_tokens(2).tolist() == [[7, 8], [5, 6]]


def test_embeddings_look_back_by_their_order_and_have_no_token() -> None:
    cache = kv_cache(8)
    put(cache, range(3), tokens=np.array([5, 6, 7], np.int32))
    view = put(cache, [3, 3, 3], tokens=None, has_embd=True)
    # rank 0: positions 2 and 1; rank 1: its predecessor in the ubatch (3), then 2; rank 2: both in the ubatch
    assert view.prev_tokens(2).tolist() == [[6, 7], [7, -1], [-1, -1]]


def test_embeddings_that_begin_before_the_stored_position() -> None:
    """Known gap (M-RoPE): an image may begin at the position the text ended at; the lookup before the ubatch
    goes by position, so it finds the highest cell there, which is one of the image's."""
    cache = kv_cache(8, n_pos_per_embd=4)
    put(cache, range(3), tokens=np.array([5, 6, 7], np.int32))
    pos = np.array([[2, 2], [0, 0], [0, 1], [0, 0]], np.int32)
    view = put(cache, [2, 2], pos=pos, tokens=None, has_embd=True)
    assert view.prev_tokens(2).tolist() == [[5, 6], [6, -1]]


def test_with_n_gram_embeddings_the_image_token_is_found() -> None:
    cache = kv_cache(8, ngram_token=99)
    view = put(cache, range(3), tokens=None, has_embd=True)
    assert view.prev_tokens(1).tolist() == [[-1], [99], [99]]


def test_a_mixed_ubatch_looks_back_by_order() -> None:
    cache = kv_cache(8)
    mixed = {"tokens": np.array([7, 0, 8], np.int32), "is_embd": np.array([False, True, False])}
    view = put(cache, [0, 0, 1], has_embd=True, **mixed)
    assert view.prev_tokens(1).tolist() == [[-1], [-1], [-1]]
    # row 1 looks at position 0, where the highest cell (its own) wins; row 2 too


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9),
    st.integers(0, 4),
    st.booleans(),
)
def test_predecessors_equal_the_rule(cells: list[tuple[int, bool]], n: int, text: bool) -> None:
    """``get_prev_tokens`` written out row by row; each entry: a position, and whose it is."""
    cache = kv_cache(16)
    cut = len(cells) // 2
    for start, part in ((0, cells[:cut]), (100, cells[cut:])):
        if not part:
            continue
        pos, seqs = [p for p, _ in part], [int(s) for _, s in part]
        toks = np.arange(start, start + len(part), dtype=np.int32)
        view = put(cache, pos, seqs, tokens=toks if text or start == 0 else None, has_embd=not text)
    table, expected = cache.cells[0], []
    ids = [i[0] for i in view.ubatch.seq_ids]
    for i, s in enumerate(ids):
        same = [k for k, other in enumerate(ids) if other == s]
        row = []
        for d in range(n, 0, -1):
            k = same.index(i) - d
            p = pos[i] - d if text else pos[same[k]] if k >= 0 else pos[same[0]] + k
            row.append(-1 if p < 0 else table.seq_pos_tok_le(s, p))
        expected.append(row)
    assert view.prev_tokens(n).tolist() == expected


# -- the record and the graph's key ----------------------------------------------------------------


@pytest.mark.parametrize(("row", "wanted"), [("", []), ("...", []), ("##.#", [0, 2, 3, 4]), (".##", [1, 3])])
def test_ranges_of_a_row(row: str, wanted: list[int]) -> None:
    assert ranges(np.array([c == "#" for c in row], np.bool_)) == wanted


def test_the_record_of_a_ubatch_has_slots_and_masks() -> None:
    cache = streams(2, size=8)
    put(cache, range(2), 1)
    record: dict[str, object] = {}
    put(cache, [0, 2], [0, 1]).describe("kv", record)
    assert record == {
        "slots": {"kv": {"strm": [0, 1], "idxs": [[0], [2]], "n_kv": 8}},
        "mask": {"kv": [[0, 1], [0, 3]]},
    }
    cache.has_mask = False
    record.clear()
    put(cache, [1], [0]).describe("idx", record)
    assert record.keys() == {"slots"}


def test_a_graph_is_bound_to_the_padded_length_and_the_streams() -> None:
    cache = streams(2, size=1024)
    assert put(cache, range(256), 0).reuse_key() == {"n_kv": 256, "n_stream": 1}
    assert put(cache, [256, 0], [0, 1]).reuse_key() == {"n_kv": 512, "n_stream": 2}


def test_symmetric_windows_hide_the_future_too() -> None:
    cache = window_cache(4, 16, SwaType.SYMMETRIC)
    view = put(cache, range(8))
    assert np.flatnonzero(view.mask(causal=False)[4]).tolist() == [2, 3, 4, 5, 6]
