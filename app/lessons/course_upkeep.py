"""Lessons about what is done to a cache besides decoding: shifts, defragmentation, saved states."""

from __future__ import annotations

from app.lessons.answers import (
    cells_moved,
    cells_of_seq,
    freed,
    held,
    last_position,
    moved_to,
    moves_with,
    n_moves,
    shifts_pending,
    written,
)
from app.lessons.lesson import Cells, Lesson, LessonStep, Number

_FRAGMENTS = ("prompt 0 2", "prompt 1 5", "prompt 0 4", "prompt 1 2", "prompt 0 1", "prompt 1 4", "remove 0")

SHIFT = Lesson(
    "shift",
    "Context shift",
    "memory llama cells=32 ubatch=32",
    (
        LessonStep(
            "A chat of 24 tokens is near the end of its context. A server keeps the first four, drops the "
            "next eight, positions 4–11, and moves the rest down.",
            Number("How many cells does seq_rm(0, 4, 12) free?", freed("kv")),
            "remove 0 4 12",
            "Eight cells are empty, and the sequence has a gap: 3 is followed by 12.",
            first=("prompt 0 24",),
        ),
        LessonStep(
            "seq_add(0, 12, -1, -8) moves positions 12–23 down by 8. A key is stored already rotated by its "
            "position.",
            Number("How many keys now carry a rotation that does not fit?", shifts_pending("kv")),
            "shift 0 12 end -8",
            "Renumbering is free, no cell moves. The keys of all 12 must still be turned: a corner marks "
            "each. Values are not rotated and need nothing.",
            rule="A shift renumbers at once and turns keys later.",
        ),
        LessonStep(
            "The next token of seq 0 is decoded.",
            Number("At which position?", last_position(0)),
            "decode 0",
            "Seq 0 ended at 15 after the shift. Before the token was placed, the 12 keys were turned by −8, "
            "each by the difference of its two angles.",
            rule="Pending keys turn before the next decode.",
        ),
        LessonStep(
            "Seven more tokens come, one by one.",
            Cells("Which cells do they take?", written("kv")),
            "decode 0 x7",
            "The hole that the dropped positions left. The cache is as full as before the shift.",
        ),
    ),
)

DEFRAGMENTATION = Lesson(
    "defragmentation",
    "Defragmentation",
    "memory llama cells=32 ubatch=32 sequences=2",
    (
        LessonStep(
            "Two chats took turns, then seq 0 ended. Seq 1 holds 11 cells among holes. Since attention runs "
            "up to the last used cell, llama.cpp until 2025 moved the last cells into the holes; kvsim still "
            "can. Only cells behind the first 11 need to move.",
            Number("How many cells move?", cells_moved("kv")),
            "defragment classic",
            "As many as lie at or behind cell 11: no plan can do with fewer, since in the end the first 11 "
            "cells are used and the rest is free.",
            first=_FRAGMENTS,
            rule="With n cells used, what lies behind cell n − 1 moves.",
        ),
        LessonStep(
            "The same holes once more. A copy moves one run of cells, in every layer. The classic plan fills "
            "each hole, from the first on, with the last cells that are still to move.",
            Number("How many block copies does it take?", moves_with("classic", "kv")),
            "defragment classic",
            "The hole of two takes the end of the run of four, which leaves pieces for the hole of four: "
            "three copies.",
            first=("clear", *_FRAGMENTS),
            rule="Classic: first hole first, from the end.",
        ),
        LessonStep(
            "The minimal plan looks for runs and holes whose lengths add up to each other.",
            Number("How many block copies does it take?", n_moves("kv")),
            "defragment minimal",
            "The run of two goes into the hole of two, the run of four into the hole of four: two copies.",
            first=("clear", *_FRAGMENTS),
            rule="Minimal: match lengths.",
        ),
        LessonStep(
            "Everything is cleared; seq 0 and seq 1 hold three cells each, then seq 0 is removed.",
            Cells("Which cells are filled by defragmenting?", moved_to("kv")),
            "defragment minimal",
            "Cells keep their position and owner; only their index changes, so attention sees the same.",
            first=("clear", "prompt 0 3", "prompt 1 3", "remove 0"),
        ),
    ),
)

STATES = Lesson(
    "states",
    "Save and restore",
    "memory llama cells=32 ubatch=32",
    (
        LessonStep(
            "Seq 0 holds 10 tokens in cells 0–5 and 12–15, and is saved: positions, keys and values. Then "
            "three cells of seq 1 are freed. Save 0 is restored into seq 2.",
            Cells("Where do its 10 positions go?", cells_of_seq("kv", 2)),
            "restore 2 from 0",
            "A restore looks for a slot as a decode does: first the hole, then the end. A save does not say "
            "which cells to use.",
            first=("prompt 0 6", "prompt 1 6", "prompt 0 4", "save 0", "remove 1 2 5"),
            rule="A restore takes a slot like a batch.",
        ),
        LessonStep(
            "Seq 0 holds the very same text as the save. The save is restored into seq 0 itself.",
            Number("How many positions does seq 0 hold afterwards?", held(0, "kv")),
            "restore 0 from 0",
            "The sequence is removed first, then written again: nothing is doubled.",
            rule="A restore first removes the sequence.",
        ),
        LessonStep(
            "The same bytes are cut to 60 and restored into seq 1, which holds three tokens.",
            Number("How many positions does seq 1 hold afterwards?", held(1, "kv")),
            "restore 1 from 0 cut 60",
            "None: the restore is refused, but seq 1 had already been removed for it. A caller who wants to "
            "keep it must save it first.",
            rule="A refused restore loses what was there.",
        ),
        LessonStep(
            "The whole state can be saved as well. Everything is saved, cleared, and restored.",
            Number("How many positions does seq 2 hold afterwards?", held(2, "kv")),
            "restore all from 1",
            "A whole state brings back every sequence, with shared cells shared again.",
            first=("save all", "clear"),
        ),
    ),
)
