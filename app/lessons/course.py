"""All lessons, in the order of the family."""

from __future__ import annotations

from app.lessons.course_cells import ALLOCATION, SHARING, STREAMS
from app.lessons.course_decode import FAILURE, UBATCHES, WINDOW
from app.lessons.course_sparse import COMPRESSORS, DSA, MSA
from app.lessons.course_states import RECURRENT, SPECULATION
from app.lessons.course_upkeep import DEFRAGMENTATION, SHIFT, STATES
from app.lessons.lesson import Lesson

LESSONS: tuple[Lesson, ...] = (
    ALLOCATION,
    SHARING,
    STREAMS,
    UBATCHES,
    FAILURE,
    WINDOW,
    SHIFT,
    DEFRAGMENTATION,
    STATES,
    RECURRENT,
    SPECULATION,
    DSA,
    MSA,
    COMPRESSORS,
)
