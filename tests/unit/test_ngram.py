"""n-gram embeddings: predecessors and hash rows (spec kv_cache.md 8)."""

from __future__ import annotations

import numpy as np

from kvsim.tensors.ngram import hash_rows, previous_tokens

EOS = 0
TABLE = {"eos": EOS, "multipliers": [1, 3, 5], "vocab_sizes": [128] * 4, "offsets": [0, 128, 256, 384]}


def rows(token: int, two_back: int, one_back: int) -> list[int]:
    found = hash_rows(np.array([token]), np.array([[two_back, one_back]]), **TABLE)
    return found[0].tolist()


def previous(pos: list[int], seq: list[int], cells: dict[int, list[tuple[int, int]]], by_order: bool = False):
    """``cells``: per sequence its cells as (position, token), in (position, cell) order."""

    def history(s: int) -> tuple[np.ndarray, np.ndarray]:
        table = np.array(cells.get(s, []), np.int32).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    return previous_tokens(np.array(pos, np.int32), seq, 2, by_order, history).tolist()


def test_predecessor_is_the_nearest_cell_at_or_before() -> None:
    assert previous([7], [0], {0: [(4, 44), (6, 66), (7, 77)]}) == [[44, 66]]


def test_none_before_position_0_or_in_another_sequence() -> None:
    assert previous([0, 3], [0, 1], {0: [(0, 9), (1, 8), (2, 7)], 1: [(3, 5)]}) == [[-1, -1], [-1, -1]]


def test_highest_cell_of_a_repeated_position() -> None:
    assert previous([6], [0], {0: [(4, 1), (4, 2), (6, 3)]}) == [[2, 2]]


def test_embeddings_look_back_by_order_within_their_sequence() -> None:
    cells = {0: [(3, 30), (4, 40), (5, -1)], 1: [(8, 80)]}
    assert previous([5, 9, 5, 5], [0, 1, 0, 0], cells, by_order=True) == [
        [30, 40],
        [-1, 80],
        [40, -1],
        [-1, -1],
    ]
    assert previous([5], [0], cells, by_order=False) == [[30, 40]]


def test_bigram_heads_ignore_the_older_token() -> None:
    assert rows(10, 20, 30) == [10 ^ 90, (10 ^ 90) + 128, (10 ^ 90 ^ 100) + 256, (10 ^ 90 ^ 100) + 384]


def test_everything_before_an_eos_or_a_gap_reads_as_eos() -> None:
    assert rows(10, 20, EOS) == rows(10, EOS, EOS) == rows(10, 20, -1)
    assert rows(10, -1, 30) == rows(10, EOS, 30)


def test_own_eos_hides_nothing() -> None:
    assert rows(EOS, 20, 30) == [90, 90 + 128, (90 ^ 100) + 256, (90 ^ 100) + 384]


def test_products_are_64_bit() -> None:
    big = hash_rows(np.array([200_000]), np.array([[3]]), 0, [2 * 10**13, 1], [1_000_003], [0])
    assert big.tolist() == [[((200_000 * 2 * 10**13) ^ 3) % 1_000_003]]
    wrapped = hash_rows(np.array([2**30]), np.array([[0]]), 0, [2**40 + 1, 1], [97], [0])
    assert wrapped.tolist() == [[(2**70 + 2**30) % 2**64 % 97]]
