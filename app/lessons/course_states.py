"""Lessons about states: recurrent tails, snapshots, speculation."""

from __future__ import annotations

from app.lessons.answers import (
    decoded_twice,
    last_position,
    n_ops,
    outcome,
    plane,
    rolled_back,
    states_used,
    tail,
)
from app.lessons.course_cells import OUTCOMES
from app.lessons.lesson import Choice, Lesson, LessonStep, Number

RECURRENT = Lesson(
    "recurrent",
    "Recurrent tails and snapshots",
    "memory lfm2 cells=32 snapshots=2 sequences=3 ubatch=32",
    (
        LessonStep(
            "This model has both: attention cells, and a recurrent state, which takes in every token and "
            "keeps one size. A sequence stands in one recurrent cell, its tail. Seq 0 holds 6 tokens; then "
            "seq_cp(0, 1) shares them.",
            Number("How many recurrent cells are in use?", states_used),
            "share 0 1",
            "One: both sequences stand in the same state, until one of them goes on.",
            first=("prompt 0 6",),
            rule="A shared state is one cell with several owners.",
        ),
        LessonStep(
            "Seq 1 decodes a token. It cannot write into the state that seq 0 still needs.",
            Number("In which recurrent cell does seq 1 stand afterwards?", tail(1)),
            "decode 1",
            "It reads cell 0 and writes to the next free one. Seq 0 stays where it was.",
            rule="Going on writes to a cell of one's own.",
        ),
        LessonStep(
            "A state cannot forget a token. So this model keeps the last 2 states of a ubatch as snapshots. "
            "Seq 0 decodes 4 tokens in one batch, and the last one is taken back.",
            Number("From which snapshot does the next decode start? 0 is the newest.", plane(0)),
            "remove 0 9 end",
            "One token back is snapshot 1. The attention cell is freed; the state goes back at the next "
            "decode.",
            first=("decode 0*4",),
            rule="Going back n tokens reads snapshot n.",
        ),
        LessonStep(
            "Seq 0 decodes 4 more tokens and ends at position 12. Now everything from position 9 on shall "
            "go: 4 tokens, and there are 2 snapshots.",
            Choice("What happens?", OUTCOMES, outcome),
            "remove 0 9 end",
            "seq_rm answers false, in both halves: neither attention nor the state was touched. A server "
            "restores a checkpoint instead.",
            first=("decode 0*4",),
            rule="More tokens than snapshots: refused.",
        ),
    ),
)

SPECULATION = Lesson(
    "speculation",
    "Speculative decode",
    "memory lfm2 cells=64 snapshots=2 sequences=2 ubatch=32",
    (
        LessonStep(
            "A small draft model guesses tokens, the target checks them in one batch. Seq 0 holds positions "
            "0–7. The batch is the sampled token and 2 guesses; the first guess is right, the second wrong.",
            Number("At which position does seq 0 end afterwards?", last_position(0)),
            "speculate 0 2 1",
            "Three tokens were decoded, one is taken back: the sampled token and one guess stay.",
            first=("prompt 0 8",),
            rule="Decode all guesses, remove the wrong tail.",
        ),
        LessonStep(
            "Now 4 guesses, of which one is right: 3 tokens must go. The state has 2 snapshots, so a "
            "checkpoint is saved before the batch.",
            Choice(
                "How does the target go back?",
                ("seq_rm removes the tail.", "seq_rm is refused, and the checkpoint is restored."),
                rolled_back,
            ),
            "speculate 0 4 1",
            "The snapshots reach 2 tokens back, not 3. The state comes from the checkpoint, attention is cut "
            "at the same place, and what had been accepted is decoded again.",
            rule="Further than the snapshots: restore a checkpoint.",
        ),
        LessonStep(
            "The same once more: 4 guesses, this time 2 right.",
            Number("How many tokens go through the network twice?", decoded_twice),
            "speculate 0 4 2",
            "None: 2 tokens must go, and 2 snapshots are enough. The checkpoint was saved for nothing.",
        ),
        LessonStep(
            "And 4 guesses, all right.",
            Number("How many operations does the round take, the save included?", n_ops),
            "speculate 0 4 4",
            "A save and a decode. Nothing goes back.",
        ),
    ),
)
