"""A picture as text: what each character means, folding, and two pictures side by side."""

from kvsim.trace.cellmap import cell_in_words, differing_cells, fold_rows, map_rows, side_by_side


def stream(*cells, head=0):
    return {"head": head, "used": len(cells), "has_shift": False, "cells": list(cells)}


def cell(index, pos=0, seq=(0,), shift=0, tok=5, x=0, y=0):
    return [index, pos, list(seq), shift, tok, x, y]


def test_owners_shared_empty_and_head():
    picture = stream(cell(0), cell(1, seq=[11]), cell(3, seq=[0, 2]), cell(4, pos=-1, seq=[]), head=5)
    assert [row.text for row in map_rows(picture, 8, columns=4)] == [" 0 b . +", " ?>. . ."]
    assert map_rows(picture, 8, columns=4)[0].cells[3].seq == (0, 2)


def test_ids_past_the_letters_start_over():
    assert map_rows(stream(cell(0, seq=[37])), 1)[0].text == ">1"


def test_last_row_may_be_short_and_the_head_past_the_end():
    rows = map_rows(stream(head=6), 6, columns=4)
    assert [row.text for row in rows] == [" . . . .", " . ."]


def test_runs_of_quiet_rows_fold():
    picture = stream(cell(5), head=5)
    rows = list(fold_rows(map_rows(picture, 20, columns=2)))
    assert rows[0] == range(4)
    assert rows[1].text == " .>0"
    assert rows[2:] == [range(6, 20)]


def test_a_single_quiet_row_does_not_fold():
    rows = list(fold_rows(map_rows(stream(cell(4), head=0), 6, columns=2)))
    assert [row.text for row in rows] == [">. .", " . .", " 0 ."]


def test_differing_cells_are_marked_on_both_sides():
    recorded = stream(cell(0), cell(2), cell(9, pos=4))
    computed = stream(cell(0), cell(3), cell(9, pos=5))
    assert differing_cells(recorded, computed) == [2, 3, 9]
    pairs = side_by_side(recorded, computed, 16, columns=4)
    assert [(left.first, left.text, right.text) for left, right in pairs] == [
        (0, ">0 .!0!.", ">0 .!.!0"),
        (8, " .!0 . .", " .!0 . ."),
    ]


def test_cells_in_words():
    assert cell_in_words(None) == "empty"
    assert cell_in_words(cell(3, pos=7, seq=[1, 2], shift=-4, tok=9)) == (
        "position 7, seq 1, 2, shift -4 pending, token 9"
    )
    assert (
        cell_in_words(cell(3, pos=-1, seq=[], tok=-1, x=2, y=1))
        == "position -1, no sequence, no token, x 2, y 1"
    )
