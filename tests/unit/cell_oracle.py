"""The cell table of the specification, one object per cell (spec cells.md, section 3): slow and literal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class Cell:
    pos: int = -1
    tok: int = -1
    x: int = 0
    y: int = 0
    shift: int = 0
    seq: set[int] = field(default_factory=set)

    def clear_ext(self) -> None:
        self.tok, self.x, self.y = -1, 0, 0


class NaiveCells:
    """Rules R1 to R21 as they are written, release build: preconditions are not checked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:  # R1
        self.cells = [Cell() for _ in range(self.size)]
        self.used: set[int] = set()
        self.seq_pos: dict[int, set[tuple[int, int]]] = {}
        self.has_shift = False

    def reset_shift(self) -> None:  # R3
        for cell in self.cells:
            cell.shift = 0
        self.has_shift = False

    # -- one cell --------------------------------------------------------------------------

    def _index_rm(self, i: int) -> None:
        for s in self.cells[i].seq:
            self.seq_pos.get(s, set()).discard((self.cells[i].pos, i))

    def _index_add(self, i: int) -> None:
        for s in self.cells[i].seq:
            self.seq_pos.setdefault(s, set()).add((self.cells[i].pos, i))

    def pos_set(self, i: int, p: int) -> None:  # R4
        self.cells[i].pos = p
        self.used.add(i)

    def seq_add(self, i: int, s: int) -> None:  # R6
        self.cells[i].seq.add(s)
        self.seq_pos.setdefault(s, set()).add((self.cells[i].pos, i))

    def seq_rm_cell(self, i: int, s: int) -> bool:  # R7
        cell = self.cells[i]
        cell.seq.discard(s)
        self.seq_pos.get(s, set()).discard((cell.pos, i))
        if cell.seq:
            return False
        self._free(i)
        return True

    def rm(self, i: int) -> None:  # R8
        self._index_rm(i)
        self._free(i)

    def _free(self, i: int) -> None:
        cell = self.cells[i]
        cell.seq.clear()
        cell.pos, cell.shift = -1, 0
        cell.clear_ext()
        self.used.discard(i)

    def seq_keep_cell(self, i: int, s: int) -> bool:  # R9
        cell = self.cells[i]
        if s in cell.seq:
            self._index_rm(i)
            cell.seq = {s}
            self._index_add(i)
            return False
        if cell.seq:
            self.rm(i)
            return True
        return False

    def pos_add_cell(self, i: int, d: int) -> bool:  # R13, R14, R16
        cell = self.cells[i]
        self._index_rm(i)
        cell.pos += d
        cell.shift += d
        self.has_shift = True
        if cell.pos < 0:
            cell.seq.clear()
            cell.pos, cell.shift = -1, 0
            self.used.discard(i)
            return True
        self._index_add(i)
        return False

    def pos_div_cell(self, i: int, d: int) -> None:  # R15
        cell = self.cells[i]
        self._index_rm(i)
        old = cell.pos
        cell.pos = abs(old) // abs(d) * (1 if (old >= 0) == (d > 0) else -1)
        cell.shift += old - cell.pos
        self._index_add(i)
        self.has_shift = True

    # -- loops over the table, as the cache does them (kv_cache.md, section 4) --------------

    def _where(self, s: int, p0: int, p1: int) -> list[int]:
        return [i for i, c in enumerate(self.cells) if p0 <= c.pos < p1 and s in c.seq]

    def place(self, cells: Iterable[int], pos: Iterable[int], ids: Iterable[Iterable[int]]) -> None:
        for i, p, owners in zip(cells, pos, ids, strict=True):
            self.pos_set(i, p)
            for s in owners:
                self.seq_add(i, s)

    def set_ext(self, cells: Iterable[int], tok: int, x: int, y: int) -> None:  # R5
        for i in cells:
            self.cells[i].tok, self.cells[i].x, self.cells[i].y = tok, x, y

    def evict(self, cells: Iterable[int]) -> dict[int, int]:
        lost: dict[int, int] = {}
        for i in cells:
            if self.cells[i].pos != -1:
                for s in self.cells[i].seq:
                    lost[s] = max(lost.get(s, self.cells[i].pos), self.cells[i].pos)
                self.rm(i)
        return lost

    def seq_rm(self, s: int, p0: int, p1: int) -> tuple[list[int], list[int]]:
        lost = self._where(s, p0, p1)
        return lost, [i for i in lost if self.seq_rm_cell(i, s)]

    def rm_range(self, p0: int, p1: int) -> list[int]:
        freed = [i for i, c in enumerate(self.cells) if p0 <= c.pos < p1]
        for i in freed:
            self.rm(i)
        return freed

    def seq_keep(self, s: int) -> tuple[list[int], list[int]]:
        shed = [i for i, c in enumerate(self.cells) if s in c.seq and len(c.seq) > 1]
        return shed, [i for i in range(self.size) if self.seq_keep_cell(i, s)]

    def seq_share(self, src: int, dst: int, p0: int, p1: int) -> list[int]:
        cells = self._where(src, p0, p1)
        gained = [i for i in cells if dst not in self.cells[i].seq]
        for i in cells:
            self.seq_add(i, dst)
        return gained

    def pos_add(self, s: int, p0: int, p1: int, d: int) -> tuple[list[int], list[int]]:
        cells = self._where(s, p0, p1)
        freed = [i for i in cells if self.pos_add_cell(i, d)]
        return [i for i in cells if i not in freed], freed

    def pos_div(self, s: int, p0: int, p1: int, d: int) -> list[int]:
        cells = self._where(s, p0, p1)
        for i in cells:
            self.pos_div_cell(i, d)
        return cells

    def save(self, cells: list[int]) -> list[tuple[int, Cell]]:  # R18
        return [
            (i, Cell(c.pos, c.tok, c.x, c.y, 0, set(c.seq))) for i, c in ((i, self.cells[i]) for i in cells)
        ]

    def restore(self, saved: list[tuple[int, Cell]]) -> None:  # R19
        for i, old in saved:
            cell = self.cells[i]
            if cell.pos == -1 and old.pos != -1:
                self.used.add(i)
            if cell.pos != -1 and old.pos == -1:
                self.used.discard(i)
            if cell.pos != -1:
                self._index_rm(i)
            cell.pos, cell.tok, cell.x, cell.y, cell.seq = old.pos, old.tok, old.x, old.y, set(old.seq)
            if cell.pos != -1:
                self._index_add(i)

    # -- queries ---------------------------------------------------------------------------

    @property
    def used_max_p1(self) -> int:
        return max(self.used, default=-1) + 1

    def seq_pos_min(self, s: int) -> int:
        return min(self.seq_pos[s])[0] if self.seq_pos.get(s) else -1

    def seq_pos_max(self, s: int) -> int:
        return max(self.seq_pos[s])[0] if self.seq_pos.get(s) else -1

    def seq_pos_tok_le(self, s: int, p: int) -> int:  # R12
        below = [entry for entry in self.seq_pos.get(s, ()) if entry[0] <= p]
        return self.cells[max(below)[1]].tok if below else -1

    def rows(self) -> list[list[object]]:
        """As a trace lists them: cells that have a position, or are counted as used."""
        return [
            [i, c.pos, sorted(c.seq), c.shift, c.tok, c.x, c.y]
            for i, c in enumerate(self.cells)
            if c.pos != -1 or i in self.used
        ]


def find_slot(
    size: int, used: int, head: int, m: int, cont: bool, usable: Callable[[int], bool]
) -> list[int] | None:
    """The slot search of kv_cache.md, section 2, as it is written there."""
    h = 0 if head > used + 2 * m else head
    if m > size:
        return None
    out: list[int] = []
    tested, step = 0, m if cont else 1
    while True:
        if h + step > size:
            tested += size - h
            h = 0
            continue
        for _ in range(step):
            i = h
            h += 1
            tested += 1
            if usable(i):
                out.append(i)
            elif cont:
                break
        if len(out) == m:
            return out
        if cont:
            out.clear()
        if tested >= size:
            return None
