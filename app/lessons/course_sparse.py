"""Lessons about sparse attention: indexers, blocks, compressors."""

from __future__ import annotations

from app.lessons.answers import blocks, collecting, outcome, rows, written
from app.lessons.course_cells import OUTCOMES
from app.lessons.indexer import n_read, read_cells, scores_told
from app.lessons.lesson import Cells, Choice, Lesson, LessonStep, Number

DSA = Lesson(
    "dsa",
    "The DSA indexer",
    "memory deepseek32 cells=32 ubatch=32",
    (
        LessonStep(
            "DeepSeek's sparse attention keeps two caches: mla, with what attention reads, and lid, with "
            "small keys of an indexer that chooses which cells it reads. Seq 0 gets 6 tokens.",
            Cells("Which cells of lid are written?", written("lid")),
            "prompt 0 6",
            "The same as in mla. The indexer names cells by number, so the two caches must agree on them.",
            rule="The index key of a token has its token's cell.",
        ),
        LessonStep(
            "Seq 1 gets 4 tokens, then positions 2–3 of seq 0 are removed, and seq 0 gets 3 more.",
            Cells("Which cells of lid do they take?", written("lid")),
            "prompt 0 3",
            "Both caches search alike, with the same head and the same holes, and so come to the same cells.",
            first=("prompt 1 4", "remove 0 2 4"),
        ),
        LessonStep(
            "Seq 0 decodes one token. Its indexer scores every cell that it may see, and attention reads the "
            "8 best (top_k = 8 in this model).",
            Number("How many cells does it read?", n_read),
            "decode 0",
            "Exactly as many as it sees: 8 are visible, its own included, so nothing is left out yet.",
            rule="At most top_k cells are read.",
        ),
        LessonStep(
            "Eight tokens later it sees twice as much.",
            Number("How many cells does the last token read?", n_read),
            "prompt 0 8",
            "Still 8. Memory grows with the text, what attention reads does not.",
        ),
        LessonStep(
            "One more token. A network with random weights stands in for the model; these are the scores its "
            "indexer gives to the cells that the token may see, in the first block.",
            Cells("Which cells of mla does attention read there?", read_cells("mla")),
            "decode 0",
            "The 8 highest scores, wherever they lie. The token's own cell has no privilege, and cells of "
            "seq 1 have no score at all: the mask comes first. Other blocks score anew.",
            rule="The mask first, then the best scores.",
            given=scores_told,
        ),
    ),
)

MSA = Lesson(
    "msa",
    "MSA blocks",
    "memory minimax-m3 cells=32 ubatch=32",
    (
        LessonStep(
            "MiniMax chooses blocks of positions instead of single cells. A block here has 4 positions: "
            "0–3, 4–7, and so on. Index keys lie in idx, cell by cell beside base. Seq 0 gets 10 tokens.",
            Number("In how many blocks does it hold something?", blocks(0, "base")),
            "prompt 0 10",
            "0–3, 4–7 and the beginning of 8–11.",
            rule="A block is a range of positions, not of cells.",
        ),
        LessonStep(
            "Positions 4–7 are removed: a whole block. Seq 0 gets 3 more tokens, at positions 10–12.",
            Cells("Which cells of idx do they take?", written("idx")),
            "prompt 0 3",
            "The freed ones, 4–6. Cells of one block need not be neighbours any more.",
            first=("remove 0 4 8",),
        ),
        LessonStep(
            "Seq 0 now holds positions 0–3 and 8–12. seq_add moves 8–12 down by 4.",
            Number("In how many blocks does it hold something afterwards?", blocks(0, "base")),
            "shift 0 8 end -4",
            "4–7 and 8: with 0–3 that makes three. A shift that is no multiple of the block size would have "
            "cut blocks anew.",
        ),
    ),
)

COMPRESSORS = Lesson(
    "compressors",
    "DeepSeek-V4's compressors",
    "memory deepseek4 cells=256 ubatch=64 sequences=1",
    (
        LessonStep(
            "DeepSeek-V4 keeps the last tokens as they are (raw) and the rest as pooled rows: csa pools "
            "every 4 tokens into a row, hca every 128. A ring collects the tokens of the block that is not "
            "full yet. Seq 0 gets 10 tokens.",
            Number("How many rows of csa are there?", rows("csa")),
            "prompt 0 10",
            "Two: tokens 0–3 and 4–7. Tokens 8 and 9 wait in the ring.",
            rule="A row is written when its block is full.",
        ),
        LessonStep(
            "Five more tokens come, up to position 14.",
            Number("How many tokens wait in the ring of csa afterwards?", collecting("csa")),
            "prompt 0 5",
            "Position 11 ended the third block; 12, 13 and 14 wait.",
        ),
        LessonStep(
            "Up to position 126, and then one more token.",
            Number("How many rows of hca does it see?", rows("hca")),
            "decode 0",
            "One: the token at position 127 ends the first block of 128.",
            first=("prompt 0 112",),
        ),
        LessonStep(
            "Now position 100 and all after it shall be removed.",
            Choice("What happens?", OUTCOMES, outcome),
            "remove 0 100 end",
            "A pooled row cannot be taken apart, and the rings have gone on, so seq_rm answers false. With "
            "snapshots it could go back as many tokens as there are of them.",
            rule="Rings go back only by snapshots.",
        ),
    ),
)
