"""The printed cells of a slot search, read back: any positions, any owners, any width of the terminal."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import SMALL, as_bytes, lines_of, refusal

from kvsim.logs import grid
from kvsim.logs.searches import SearchReader
from kvsim.trace import TraceWriter, read_trace

SIZE = 256


def printed(cells: list[tuple[int, tuple[int, ...]] | None]) -> tuple[list[str], list[str]]:
    """As llama.cpp prints them: owners in lines of 256, positions in lines of 64."""
    tokens = ["." if c is None else str(c[1][0]) if len(c[1]) == 1 else "M" for c in cells]
    fields = [("." if c is None else str(c[0])).ljust(5) for c in cells]
    owners = ["".join(tokens[at : at + 256]) + " *" for at in range(0, len(cells), 256)]
    rows = [
        "".join(fields[at : at + 64]) + (" *" if at % 256 == 192 else "") for at in range(0, len(cells), 64)
    ]
    return owners, rows


def spans_of(cells: list[tuple[int, tuple[int, ...]] | None]) -> dict[int, tuple[int, int]]:
    held: dict[int, list[int]] = {}
    for pos, seqs in filter(None, cells):
        for seq in seqs:
            held.setdefault(seq, []).append(pos)
    return {seq: (min(found), max(found)) for seq, found in held.items()}


@st.composite
def streams(
    draw: st.DrawFn, highest: int = 300_000, n_seq: int = 4
) -> list[tuple[int, tuple[int, ...]] | None]:
    """Cells of a stream: runs of sequences and holes, as decoding and removing leave them."""
    cells: list[tuple[int, tuple[int, ...]] | None] = []
    while len(cells) < SIZE:
        n = draw(st.integers(1, 60))
        seqs = draw(st.sets(st.integers(0, n_seq - 1), max_size=2))
        start = draw(st.integers(0, highest))
        cells += [(start + i, tuple(sorted(seqs))) if seqs else None for i in range(n)]
    return cells[:SIZE]


@settings(max_examples=60)
@given(streams(highest=90_000), st.integers(60, 400), st.booleans())
def test_positions_of_up_to_five_digits_come_back_at_any_width(cells, width, stripped):
    _, rows = printed(cells)
    wrapped = [row[at : at + width] for row in rows for at in range(0, len(row), width)]
    lines = [line.rstrip() for line in wrapped] if stripped else wrapped
    assert grid.positions(lines, SIZE, width) == [None if c is None else c[0] for c in cells]


@settings(max_examples=30)
@given(st.integers(99_900, 1_000_010), st.integers(0, 200))
def test_longer_positions_push_the_others_to_the_right_and_still_come_back(start, n):
    cells = [(start + i, (0,)) if i < n else None for i in range(SIZE)]
    assert grid.positions(printed(cells)[1], SIZE) == [None if c is None else c[0] for c in cells]


def test_a_large_cache_of_long_positions_is_read_in_seconds():
    n = 256
    lines = ["".join(f"{100_000 + i}" for i in range(at, at + 64)) for at in range(0, 64 * n, 64)]
    began = process_time()
    assert grid.positions(lines, 64 * n) == [*range(100_000, 100_000 + 64 * n)]
    assert process_time() - began < 6
    assert grid.positions(["1" * 449], 64) is None, "no line is so long"


@settings(max_examples=60)
@given(streams(highest=500, n_seq=10))
def test_owners_of_one_digit_come_back_and_shared_cells_never_wrongly(cells):
    owners, _ = printed(cells)
    positions = [None if c is None else c[0] for c in cells]
    found = grid.owners("".join(owners).replace(" *", ""), positions, spans_of(cells))
    for got, cell in zip(found, cells, strict=True):
        wanted = () if cell is None else cell[1]
        assert got == wanted or (got is None and len(wanted) == 2)


@settings(max_examples=60)
@given(streams(highest=500, n_seq=30))
def test_owners_of_two_digits_are_right_or_unknown(cells):
    owners, _ = printed(cells)
    positions = [None if c is None else c[0] for c in cells]
    found = grid.owners("".join(owners).replace(" *", ""), positions, spans_of(cells))
    for got, cell in zip(found, cells, strict=True):
        assert got in ((() if cell is None else cell[1]), None)


def test_owners_that_only_the_ranges_tell_apart():
    # "12" is cell 0 of sequence 12, or two cells of 1 and 2: there is one cell, so it is 12
    assert (
        grid.owners("12.", [7, None, None], {1: (0, 9), 2: (0, 9), 12: (7, 7)}) is None
    )  # one dot is missing
    assert grid.owners("12..", [7, None, None], {1: (0, 9), 2: (0, 9), 12: (7, 7)}) == [(12,), (), ()]
    # "112": 1 and 12, or 11 and 2; the ranges of 11 and 2 don't hold the positions
    spans = {1: (0, 3), 12: (4, 8), 11: (9, 9), 2: (9, 9)}
    assert grid.owners("112", [3, 4], spans) == [(1,), (12,)]
    # nothing tells which of the two it is
    spans = {1: (0, 8), 12: (0, 8), 11: (0, 8), 2: (0, 8)}
    assert grid.owners("112", [3, 4], spans) == [None, None]


def test_a_shared_cell_that_three_sequences_could_hold_is_unknown():
    spans = {0: (0, 9), 1: (0, 9), 2: (5, 9)}
    assert grid.owners("MM", [4, 5], spans) == [(0, 1), None]


@pytest.mark.parametrize("lines", [[], ["0    1    2"], ["0    x    " * 32] * 4, ["1    " * 64] * 3])
def test_positions_that_are_damaged_or_missing_are_none(lines):
    assert grid.positions(lines, SIZE) is None


def test_lines_of_numbers_before_a_print_belong_to_nothing():
    reader = SearchReader()
    assert reader.feed(1, "12 34") == (False, None)
    counts = "find_slot: stream[1], n =     3, used =     2, head =     1, size =   256, n_swa =    32"
    assert reader.feed(2, counts) == (True, None)
    assert reader.feed(3, "find_slot: stream[1] min[4] =     5, max[4] =     9") == (True, None)
    assert reader.feed(4, "12 34") == (False, None)
    found = reader.end()
    assert (found.line, found.counts, found.n_swa, found.spans) == (2, (1, 3, 2, 1, 256), 32, {4: (5, 9)})
    assert found.cells() is None


# -- in the trace format ---------------------------------------------------------------------------


def with_line(line: dict, after: dict | None = None) -> bytes:
    lines = lines_of(SMALL)[:2]
    picture = None if after is None else {**lines[1]["after"], **after}
    return as_bytes([*lines, {"i": 1, "ret": None, **line, "after": picture}])


SEEN = {"op": "seen", "args": {"line": 3, "cache": "kv", "stream": 0}}
SAID = {"op": "said", "args": {"line": 3, "text": "decode: no", "explanation": "no-slot"}}


@pytest.mark.parametrize(
    ("line", "after", "wanted"),
    [
        (SEEN, None, None),
        (SEEN, {"unseen": {"kv": [0]}}, None),
        (SAID, None, None),
        ({**SEEN, "args": {**SEEN["args"], "cache": "swa"}}, None, "seen args.cache is 'swa'"),
        ({**SEEN, "args": {**SEEN["args"], "stream": 1}}, None, "seen args.stream is 1"),
        (SEEN, {"unseen": {"swa": [0]}}, "after.unseen.swa: the header has no such cache"),
        (SEEN, {"unseen": {"kv": [1]}}, "after.unseen.kv is [1]"),
        ({**SAID, "args": {**SAID["args"], "text": "x" * 1001}}, None, "at most 1000 characters"),
        ({**SAID, "args": {**SAID["args"], "text": "\x1b[31m"}}, None, "printable text"),
        ({**SEEN, "ret": 0}, None, "seen.ret is 0"),
    ],
)
def test_the_lines_of_an_imported_log_are_checked(line, after, wanted, tmp_path):
    error = refusal(with_line(line, after))
    assert (error is None) if wanted is None else wanted in str(error)
    if wanted is None:
        trace = read_trace(with_line(line, after))
        with TraceWriter(tmp_path / "again.jsonl", trace.header) as writer:
            for step in trace:
                writer.write(step)
        assert list(read_trace(tmp_path / "again.jsonl")) == list(trace)
