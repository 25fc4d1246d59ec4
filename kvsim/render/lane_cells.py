"""The cells of one lane in a frame, at rest or on their way from the picture before."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.changes import OWNERS, POS, SHIFT, TOK, Lane, changed_cells, reusable_cells
from kvsim.render import cells as drawn
from kvsim.render.cells import Look, Point
from kvsim.render.colours import Colours
from kvsim.render.frames import Frame
from kvsim.render.ink import EDGE, Ink
from kvsim.render.layout import Place

REPOSITIONS = ("seq_add", "seq_div")
"""The operations that change a cell's position and leave its token; after any other one it holds something else."""


class LaneCells:
    """The cells of one lane, on their way from one picture to the next."""

    def __init__(
        self,
        ink: Ink,
        colours: Colours,
        frame: Frame,
        before: Lane | None,
        after: Lane,
        spot: Place,
        origin: Point,
    ) -> None:
        self.ink, self.colours, self.frame, self.spot = ink, colours, frame, spot
        self.before, self.after, self.origin = before, after, origin
        changed = changed_cells(before, after) if before is not None else np.empty(0, np.int64)
        self.changed = set(changed.tolist())
        self.reusable = reusable_cells(after, frame.owners)
        self.moved = self._moves()

    def draw(self, progress: float) -> None:
        """Every cell of the rows shown."""
        for i in range(min(self.after.spec.size, self.spot.rows * self.spot.cols)):
            self._cell(i, progress)
        for source, target in self.moved.items():
            self._fly(source, target, progress)

    def _cell(self, i: int, progress: float) -> None:
        x, y = self._at(i)
        pitch = self.spot.pitch
        old = self.before.cells[i] if self.before is not None and i in self.changed else None
        new = self.after.cells[i]
        if i in self.moved.values() and progress < 1:
            drawn.draw_cell(self.ink, self.colours, x, y, pitch, Look(()))
            self.ink.box(
                EDGE,
                x + 1,
                y + 1,
                pitch - 2,
                pitch - 2,
                2,
                edge=self.colours.ground["ink"],
                width=1,
                dash="dashed",
            )
            return
        if old is None or not self._is_write(old, new):
            if old is not None and old[OWNERS] and not new[OWNERS]:
                self._free(i, old, x, y, progress)
                return
            shown = self._rolled(old, new, progress)
            drawn.draw_cell(self.ink, self.colours, x, y, pitch, self._look(i, shown))
            return
        share = 0.35 + 0.65 * progress
        drawn.draw_cell(self.ink, self.colours, x, y, pitch, self._look(i, new), share)
        if progress == 1:
            drawn.draw_ring(self.ink, self.colours, x, y, pitch)

    def _free(self, i: int, old: Any, x: float, y: float, progress: float) -> None:
        seqs = self.frame.owners.sets[old[OWNERS]]
        if progress < 0.5:
            drawn.draw_cell(self.ink, self.colours, x, y, self.spot.pitch, self._look(i, old))
        else:
            drawn.draw_ghost(self.ink, self.colours, x, y, self.spot.pitch, seqs[0], str(old[POS]))

    def _fly(self, source: int, target: int, progress: float) -> None:
        """A cell on its way to another, on a low arc."""
        if progress == 1:
            return
        (x0, y0), (x1, y1) = self._at(source), self._at(target)
        eased = progress * progress * (3 - 2 * progress)
        x, y = x0 + (x1 - x0) * eased, y0 + (y1 - y0) * eased
        lift = 14 * 4 * eased * (1 - eased)
        drawn.draw_cell(
            self.ink, self.colours, x, y - lift, self.spot.pitch, self._look(target, self.after.cells[target])
        )

    def _look(self, i: int, cell: Any) -> Look:
        seqs = self.frame.owners.sets[cell[OWNERS]]
        return Look(seqs, self._label(i, cell), bool(cell[SHIFT]), bool(self.reusable[i]))

    def _label(self, i: int, cell: Any) -> str:
        """The position, where there is room: on every cell, or where a run starts and on every eighth."""
        pitch, pos = self.spot.pitch, int(cell[POS])
        if pitch < 18 or not cell[OWNERS]:
            return ""
        if pitch >= 24 or pos % 8 == 0 or i in self.changed or i % self.spot.cols == 0:
            return str(pos)
        left = self.after.cells[i - 1]
        return "" if left[OWNERS] == cell[OWNERS] and left[POS] == pos - 1 else str(pos)

    def _rolled(self, old: Any, new: Any, progress: float) -> Any:
        """The cell with its position on the way from the old to the new one."""
        if old is None or progress == 1 or self.frame.step.op not in REPOSITIONS or not new[OWNERS]:
            return new
        shown = new.copy()
        shown[POS] = round(old[POS] + (new[POS] - old[POS]) * progress)
        return shown

    def _is_write(self, old: Any, new: Any) -> bool:
        if not new[OWNERS] or self.moved:
            return False
        return bool(not old[OWNERS] or (self.frame.step.op not in REPOSITIONS and self._differs(old, new)))

    @staticmethod
    def _differs(old: Any, new: Any) -> bool:
        """Whether other content stands there."""
        return tuple(old[[POS, TOK]]) != tuple(new[[POS, TOK]])

    def _moves(self) -> dict[int, int]:
        """What a defragmentation moved, from cell to cell."""
        spec = self.after.spec
        listed = self.frame.step.extra.get("moves", {}).get(spec.cache, [])
        return {
            source + k: target + k
            for stream, source, target, n in listed
            if stream == spec.stream
            for k in range(n)
        }

    def _at(self, i: int) -> tuple[float, float]:
        cols, pitch = self.spot.cols, self.spot.pitch
        return self.origin[0] + i % cols * pitch, self.origin[1] + i // cols * pitch
