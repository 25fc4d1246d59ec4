"""Lessons about cells: allocation, sharing, streams."""

from __future__ import annotations

from app.lessons.answers import freed, head, held, outcome, used, written
from app.lessons.lesson import Cells, Choice, Lesson, LessonStep, Number

OUTCOMES = (
    "It is done.",
    "It finds no slot: 1, and nothing is written.",
    "It is refused, and nothing changes.",
    "llama.cpp ends its process.",
)

ALLOCATION = Lesson(
    "allocation",
    "Allocation and the head",
    "memory llama cells=32 ubatch=32",
    (
        LessonStep(
            "A cache is a row of cells. Each holds one token: its position, and which sequences own it. The "
            "pin is the head, where the search for free cells begins. Nothing is held yet.",
            Cells("Where do the first 6 tokens of seq 0 go?", written("kv")),
            "prompt 0 6",
            "The search starts at the head and takes empty cells in order.",
            rule="Start at the head and take empty cells, in order.",
        ),
        LessonStep(
            "Seq 0 holds cells 0–5. Now 8 tokens of seq 1 are decoded. They are another text: their "
            "positions start at 0 again.",
            Number("At which cell does the head stand afterwards?", head("kv")),
            "prompt 1 8",
            "After a decode the head stands behind the last cell that was taken.",
            rule="The head stays behind the last cell taken.",
        ),
        LessonStep(
            "seq_rm(1, 2, 6) removes positions 2–5 of seq 1. Their four cells become empty in the middle of "
            "the row.",
            Number("Where does the head stand now?", head("kv")),
            "remove 1 2 6",
            "A freed cell before the head draws the head back to it, so that holes are found first.",
            rule="A freed cell before the head draws it back.",
        ),
        LessonStep(
            "There is a hole of four cells at the head, then cells 12 and 13, which seq 1 still holds.",
            Cells("Where do the next 6 tokens of seq 0 go?", written("kv")),
            "prompt 0 6",
            "A slot need not be one run: the tokens fill the hole and go on behind what is held. Positions "
            "and cells are two different orders.",
            rule="A slot may be scattered.",
        ),
    ),
)

SHARING = Lesson(
    "sharing",
    "Sharing a prompt",
    "memory llama cells=32 ubatch=32",
    (
        LessonStep(
            "Seq 0 holds a prompt of 8 tokens. A second chat begins with the same prompt: seq_cp(0, 1) lets "
            "seq 1 have it too.",
            Number("How many cells are in use afterwards?", used("kv")),
            "share 0 1",
            "Nothing is copied: seq 1 becomes a second owner of the same 8 cells. Two bands in a cell are "
            "two owners.",
            first=("prompt 0 8",),
            rule="Sharing adds an owner, not a cell.",
        ),
        LessonStep(
            "Both chats go on with a token of their own, in one batch.",
            Cells("Which cells do the two tokens take?", written("kv")),
            "decode 0 1",
            "New tokens are private. Both are at position 8, in two cells.",
            rule="What is decoded after sharing is private.",
        ),
        LessonStep(
            "Seq 0 ends: seq_rm(0) removes all of its 9 positions.",
            Number("How many cells become empty?", freed("kv")),
            "remove 0",
            "A cell is freed when its last owner lets go of it. The 8 shared ones stay with seq 1.",
            rule="A cell is freed by its last owner.",
        ),
        LessonStep(
            "A part can be shared too: seq 2 takes positions 0–3 of seq 1. Then seq 1 is removed.",
            Number("How many cells are still in use?", used("kv")),
            "remove 1",
            "Only the four cells that seq 2 owns are left.",
            first=("share 1 2 0 4",),
        ),
    ),
)

STREAMS = Lesson(
    "streams",
    "Streams",
    "memory llama cells=32 ubatch=32 sequences=2 unified=no",
    (
        LessonStep(
            "Without a unified buffer every sequence has a stream: a table of cells and a head of its own. "
            "Seq 0 holds 6 tokens in stream 0.",
            Cells("Where do 4 tokens of seq 1 go?", written("kv")),
            "prompt 1 4",
            "Stream 1 is empty and its head stands at 0. Streams never take each other's cells.",
            first=("prompt 0 6",),
            rule="One stream a sequence, each with its head.",
        ),
        LessonStep(
            "seq_cp(0, 1, 0, 3) would give seq 1 the positions 0–2 of seq 0. The two live in different "
            "streams, so owners alone cannot do it.",
            Choice("What happens?", OUTCOMES, outcome),
            "share 0 1 0 3",
            "Between streams only whole sequences can be copied. llama.cpp asserts this and ends; kvsim "
            "refuses the call before anything has changed.",
            rule="Across streams only whole sequences are copied.",
        ),
        LessonStep(
            "seq_cp(0, 1) copies all of seq 0. Seq 1 holds 4 tokens of its own.",
            Number("How many positions does seq 1 hold afterwards?", held(1, "kv")),
            "share 0 1",
            "Seq 1 takes over the whole stream, into the same cell numbers. What it held is forgotten. The "
            "rows themselves follow at the next decode.",
            rule="A copy replaces what the other stream held.",
        ),
        LessonStep(
            "Now both sequences go on, one token each. First the rows of stream 0 are copied to stream 1.",
            Cells("Which cells do the two tokens take?", written("kv")),
            "decode 0 1",
            "Each goes to the head of its own stream: the same number in both.",
        ),
    ),
)
