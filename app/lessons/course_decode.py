"""Lessons about decoding: ubatches, failures, windows."""

from __future__ import annotations

from app.lessons.answers import (
    first_position,
    held,
    n_ubatches,
    outcome,
    tokens_in_ubatch,
    visible,
    written,
)
from app.lessons.course_cells import OUTCOMES
from app.lessons.lesson import Cells, Choice, Lesson, LessonStep, Number

UBATCHES = Lesson(
    "ubatches",
    "Batches to ubatches",
    "memory llama cells=64 ubatch=8 sequences=2 unified=no",
    (
        LessonStep(
            "A batch is what a caller hands over; a ubatch is what the graph computes at once, here at most "
            "8 tokens. Seq 0 gets a prompt of 20.",
            Number("In how many ubatches is it computed?", n_ubatches),
            "prompt 0 20",
            "The batch is cut from the front: 8, 8 and 4 tokens.",
            rule="A ubatch has at most n_ubatch tokens.",
        ),
        LessonStep(
            "Now one batch holds 12 tokens of seq 0 and 4 of seq 1. With streams, a ubatch takes equally "
            "many tokens of each of its sequences.",
            Number("How many tokens of seq 0 are in the first ubatch?", tokens_in_ubatch(0, 0)),
            "decode 0*12 1*4",
            "4 and 4: seq 1 has no more. The other 8 of seq 0 follow in a second ubatch.",
            rule="With streams, equally many tokens of each sequence.",
        ),
        LessonStep(
            "The next batch holds 3 tokens of each sequence.",
            Number("How many ubatches?", n_ubatches),
            "decode 0*3 1*3",
            "3 and 3 make 6, so one ubatch will do.",
        ),
        LessonStep(
            "And 10 tokens of each?",
            Number("How many ubatches?", n_ubatches),
            "decode 0*10 1*10",
            "Each ubatch takes 4 and 4, and the last one what is left of both.",
        ),
    ),
)

FAILURE = Lesson(
    "failure",
    "A failed decode",
    "memory llama cells=32 ubatch=8",
    (
        LessonStep(
            "32 cells, 16 of them held by seq 0. Seq 1 gets a prompt of 20 tokens.",
            Choice("What happens?", OUTCOMES, outcome),
            "prompt 1 20",
            "Slots are looked for for all ubatches before any is written. The first two would find room, the "
            "third finds none, so nothing is written and decode returns 1.",
            first=("prompt 0 16",),
            rule="All slots first, then the first write.",
        ),
        LessonStep(
            "A prompt of 12 fits, in two ubatches of 8 and 4. But the second one is aborted while it is "
            "computed.",
            Number("How many tokens of seq 1 stay?", held(1, "kv")),
            "prompt 1 12 abort 2",
            "The positions of the ubatch that failed are removed again; earlier ubatches stay. decode "
            "returns 2, and it is the caller who must know that 8 tokens are in.",
            rule="Only the failed ubatch is rolled back.",
        ),
        LessonStep(
            "Seq 1 ends at position 7. The next batch begins at position 20.",
            Choice("What happens?", OUTCOMES, outcome),
            "prompt 1 2 at 20",
            "A batch must go on where its sequence ends: decode returns -1 before anything has changed.",
            rule="A batch goes on where its sequence ends.",
        ),
        LessonStep(
            "Four positions of seq 0 are removed, which leaves 12 empty cells. Seq 2 gets a prompt of 12.",
            Cells("Where does it go?", written("kv")),
            "prompt 2 12",
            "It just fits: the hole first, because the head was drawn back to it, then the end.",
            first=("remove 0 4 8",),
        ),
    ),
)

WINDOW = Lesson(
    "window",
    "The window",
    "memory gemma3 cells=32 ubatch=4 sequences=2 window=8",
    (
        LessonStep(
            "Some layers see everything, others only a window of the last 8 positions. The two kinds have "
            "caches of their own: base, and a smaller swa. Seq 0 gets 12 tokens, which go into both.",
            Number(
                "How many positions does the last of them see in swa, its own included?", visible(0, "swa")
            ),
            "prompt 0 12",
            "A key is out of reach once it lies 8 or more positions back. Hatched cells are those that no "
            "later token of the sequence will see.",
            rule="Window w: a token sees itself and w − 1 before it.",
        ),
        LessonStep(
            "8 more tokens fill swa: all of its 20 cells are held. One more token comes.",
            Cells("Which cells does it take, one in base and one in swa?", written("base", "swa")),
            "decode 0",
            "In base the next empty cell. In swa none is empty, so the search goes on at the start and takes "
            "a cell that the window has passed: position 0 is forgotten there.",
            first=("prompt 0 8",),
            rule="A cell out of the window may be taken.",
        ),
        LessonStep(
            "Three more tokens. Base keeps everything.",
            Number("What is the smallest position of seq 0 that swa still holds?", first_position(0, "swa")),
            "decode 0 x3",
            "Each token took the oldest cell. The four first positions are gone from swa.",
        ),
        LessonStep(
            "The last 12 positions are removed in both caches: seq 0 ends at position 11 again. The next "
            "token, at position 12, may look back to position 5.",
            Number("How many positions does it see in swa, its own included?", visible(0, "swa")),
            "decode 0",
            "It is all still there, because only positions 0–3 had been overwritten. Had the window moved "
            "on by more, the sequence could not have gone back: that is why servers keep checkpoints.",
            first=("remove 0 12 end",),
        ),
    ),
)
