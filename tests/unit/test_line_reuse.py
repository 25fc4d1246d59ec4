"""Lines parsed with what they share with the line before are the values ``json`` gives."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from operator import is_
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.trace.reuse import LineParser, common_ends

FILES = sorted(Path("fixtures/traces").glob("*/*-0[03].jsonl.gz"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_recorded_lines(file: Path) -> None:
    parser = LineParser()
    for line in gzip.decompress(file.read_bytes()).splitlines():
        assert parser.parse(line) == json.loads(line)


number = st.integers(-3, 12)
cell = st.tuples(number, number, st.lists(number, max_size=3), number).map(list)
odd = st.recursive(
    number | st.text('],["0', max_size=6), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
cells = st.lists(cell, max_size=9) | st.lists(cell | odd, max_size=5)
record = st.fixed_dictionaries({"head": number, "cells": cells})


@given(st.lists(st.fixed_dictionaries({"i": number, "a": record, "b": record}), max_size=6))
@settings(max_examples=300)
def test_any_lines_one_after_the_other(values: list[dict]) -> None:
    """Cells of any shape, also ones that look like separators, also strings that hold them."""
    parser = LineParser()
    for value in values:
        assert parser.parse(json.dumps(value, separators=(",", ":")).encode()) == value


LINE = b'{"a":{"cells":[[0,1,[2],3],[1,2,[2],3],[2,3,[2],3]]},"b":{"cells":[[5,1,[],0]]}}\n'


@given(st.integers(0, len(LINE) - 1), st.binary(max_size=3))
@settings(max_examples=300)
def test_a_damaged_line_is_refused_as_json_refuses_it(at: int, put: bytes) -> None:
    parser = LineParser()
    parser.parse(LINE)
    damaged = LINE[:at] + put + LINE[at + 1 :]
    try:
        expected = json.loads(damaged.decode())
    except ValueError as error:
        with pytest.raises(type(error)):
            parser.parse(damaged)
    else:
        assert parser.parse(damaged) == expected
    assert parser.parse(LINE) == json.loads(LINE)


def test_equal_cells_are_the_same_objects() -> None:
    parser = LineParser()
    first = parser.parse(LINE)
    second = parser.parse(LINE.replace(b"[1,2,[2],3]", b"[1,9,[2],3]"))
    assert [a is b for a, b in zip(first["a"]["cells"], second["a"]["cells"], strict=True)] == [
        True,
        False,
        True,
    ]
    assert second["a"]["cells"][1] == [1, 9, [2], 3]


@given(st.lists(record, min_size=2, max_size=6))
def test_what_a_list_says_it_shares_is_shared(records: list[dict]) -> None:
    parser = LineParser()
    lists = [parser.parse(json.dumps(r, separators=(",", ":")).encode())["cells"] for r in records]
    for old, new in pairwise(lists):
        start, stop = common_ends(old, new)
        assert start + stop <= min(len(old), len(new))
        assert all(map(is_, old[:start], new[:start]))
        assert all(map(is_, old[len(old) - stop :], new[len(new) - stop :]))


@pytest.mark.parametrize(
    "lists",
    [
        ([[0, [1], [2], [3], [4], [5]], 5, 5, 5, [1]], [[0, [1], [9], [3], [4], [5]], 5, 5, 5, [1]]),
        ([[0, "],[],["], 5, [1]], [[0, "],[9],["], 5, [1]]),
    ],
)
def test_separators_inside_a_cell_do_not_pass_for_cells(lists: tuple[list, list]) -> None:
    """As many separators as an innocent list of that length has, but not between its cells."""
    parser = LineParser()
    for cells in lists:
        line = json.dumps({"a": {"cells": cells}}, separators=(",", ":")).encode()
        assert parser.parse(line) == {"a": {"cells": cells}}
