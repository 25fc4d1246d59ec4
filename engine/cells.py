"""The cell tables of a cache, all streams in one set of tensors, and the operations on them.

::

    planes  int32[5, S, n]    position (-1 empty), token, x, y, shift
    seq     int64[W, S, n]    owner bits, W words of 64 sequences

Every operation is a few masked passes over the first cells of a stream, up to a bound that the host knows
without asking: no cell beyond :attr:`top` was ever used since the table was cleared. Nothing here waits for the
device.

What the device knows of a sequence's smallest and largest position is looked up when it is asked for
(:meth:`extremes`), for all sequences that are asked for at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.index import MinusOne
from engine.rows import WORD_BITS, signed_bit
from kvsim.memory import POS_INF

POS, TOK, X, Y, SHIFT = range(5)
EMPTY = (-1, -1, 0, 0, 0)
LOWEST = -(2**31)


class Cells:
    """``n_stream`` tables of ``size`` cells. ``ids[stream]`` are the sequences that may have cells there."""

    def __init__(self, n_stream: int, size: int, device: torch.device) -> None:
        self.n_stream, self.size, self.device = n_stream, size, device
        self.planes = torch.empty(5, n_stream, size, dtype=torch.int32, device=device)
        self.seq = torch.zeros(1, n_stream, size, dtype=torch.int64, device=device)
        self.empty = torch.tensor(EMPTY, dtype=torch.int32, device=device)[:, None]
        self.index = torch.arange(size, device=device)
        self.streams = torch.arange(n_stream, device=device)
        self.heads = torch.zeros(n_stream, dtype=torch.int64, device=device)
        self.has_shift = torch.zeros(n_stream, dtype=torch.bool, device=device)
        self.may_shift = False
        self.top = [0] * n_stream
        self.ids: list[set[int]] = [set() for _ in range(n_stream)]
        self.minus_one: MinusOne | None = None
        for stream in range(n_stream):
            self.reset(stream)

    @property
    def pos(self) -> Tensor:
        return self.planes[POS]

    @property
    def shift(self) -> Tensor:
        return self.planes[SHIFT]

    @property
    def n_words(self) -> int:
        return len(self.seq)

    def reset(self, stream: int) -> None:
        """Every cell of a stream empty. The head stays."""
        self.planes[:, stream] = self.empty
        self.seq[:, stream] = 0
        self.has_shift[stream] = False
        self.top[stream] = 0
        self.ids[stream] = set()
        if self.minus_one is not None:
            self.minus_one.reset(stream)
            if not any(self.top):
                self.minus_one = None

    def know(self, stream: int, ids: Sequence[int] | set[int]) -> None:
        """Sequences are about to get cells; above id 63 owner bits need four words."""
        self.ids[stream].update(ids)
        if self.n_words == 1 and ids and max(ids) >= WORD_BITS:
            wider = self.seq.new_zeros(4, self.n_stream, self.size)
            wider[:1] = self.seq
            self.seq = wider
            if self.minus_one is not None:
                self.minus_one.grow(4)

    def watch_minus_one(self) -> MinusOne:
        if self.minus_one is None:
            self.minus_one = MinusOne(self.seq, self.pos)
        return self.minus_one

    # -- reading -------------------------------------------------------------------------------

    def reach(self, stream: int) -> int:
        """Cells that operations on a stream look at: with cells at position -1 any may have an owner."""
        return self.top[stream] if self.minus_one is None else self.size

    def has(self, stream: int, s: int, hi: int) -> Tensor:
        """``bool[hi]``: the cells that carry ``s``."""
        word = s // WORD_BITS
        if word >= self.n_words:
            return torch.zeros(hi, dtype=torch.bool, device=self.device)
        return (self.seq[word, stream, :hi] & signed_bit(s)) != 0

    def _in_range(self, stream: int, hi: int, p0: int, p1: int) -> Tensor:
        pos = self.planes[POS, stream, :hi]
        return pos >= p0 if p1 == POS_INF else (pos >= p0) & (pos < p1)

    def _mine(self, stream: int, s: int, hi: int, p0: int, p1: int) -> Tensor:
        """Cells of ``s`` in [p0, p1). A cell with an owner has a position, but for those at -1."""
        mine = self.has(stream, s, hi)
        if p0 > 0 or p1 < POS_INF or self.minus_one is not None:
            mine &= self._in_range(stream, hi, p0, p1)
        return mine

    def used(self, streams: Tensor | slice, hi: int) -> Tensor:
        """``bool[P, hi]``: cells that count as used."""
        used = self.planes[POS, streams, :hi] != -1
        return used if self.minus_one is None else used | self.minus_one.used[streams, :hi]

    def extremes(self, ids: Sequence[int], hi: int) -> Tensor:
        """Smallest and largest position of sequences, ``int32[2, len(ids)]``; -1 for those that have none. No cell
        at or after ``hi`` is used."""
        hi = hi if self.minus_one is None else self.size
        if hi == 0 or not ids:
            return torch.full((2, len(ids)), -1, dtype=torch.int32, device=self.device)
        table = self.seq if self.minus_one is None else self.minus_one.entries
        lo_hi = []
        for s in ids:
            stream, word, bit = s if self.n_stream > 1 else 0, s // WORD_BITS, signed_bit(s)
            if word >= self.n_words:
                lo_hi.append(torch.full((2,), -1, dtype=torch.int32, device=self.device))
                continue
            pos, mine = self.planes[POS, stream, :hi], (table[word, stream, :hi] & bit) != 0
            low = torch.where(mine, pos, POS_INF).amin()
            high = torch.where(mine, pos, LOWEST).amax()
            if self.minus_one is not None:
                ghost = ((self.minus_one.ghosts[word, stream] & bit) != 0).any()
                low = torch.where(ghost, torch.clamp(low, max=-1), low)
                high = torch.where(ghost, torch.clamp(high, min=-1), high)
            lo_hi.append(
                torch.stack([torch.where(low == POS_INF, -1, low), torch.where(high == LOWEST, -1, high)])
            )
        return torch.stack(lo_hi, 1)

    def only_owner(self, streams: Tensor | slice, hi: int) -> Tensor:
        """``int64[P, hi]``: the owner of each cell that has one alone, else -1."""
        words = self.seq[:, streams, :hi]
        if len(words) == 1:
            word, base, alone = words[0], 0, True
        else:
            there = words != 0
            which = there.to(torch.uint8).argmax(0)
            word = words.gather(0, which[None])[0]
            base, alone = which * WORD_BITS, there.sum(0) == 1
        owner = torch.frexp(word.to(torch.float64)).exponent.to(torch.int64) - 1 + base
        return torch.where((word != 0) & ((word & (word - 1)) == 0) & alone, owner, -1)

    # -- sequence operations -------------------------------------------------------------------

    def seq_rm(self, stream: int, s: int, p0: int, p1: int) -> None:
        """Take ``s`` out of its cells in [p0, p1); lower the head to the first cell that this frees."""
        hi, word = self.reach(stream), s // WORD_BITS
        if not hi or word >= self.n_words:
            return
        mine = self._mine(stream, s, hi, p0, p1)
        words = self.seq[:, stream, :hi]
        words[word].bitwise_xor_(torch.where(mine, signed_bit(s), 0))
        freed = mine & (words[word] == 0)
        for other in range(self.n_words):
            if other != word:
                freed &= words[other] == 0
        if self.minus_one is not None:
            self.minus_one.dropped(stream, hi, word, signed_bit(s), mine)
        self._free(stream, hi, freed)
        self._lower_head(stream, freed)

    def purge(self, stream: int, ids: Sequence[int], reach: Sequence[Tensor], hi: int) -> None:
        """Take each of ``ids`` out of its cells before ``hi`` up to the position ``reach``."""
        hi = hi if self.minus_one is None else self.size
        pos, words = self.planes[POS, stream, :hi], self.seq[:, stream, :hi]
        held = pos >= 0
        touched = torch.zeros_like(held)
        for i, s in enumerate(ids):
            word, bit = s // WORD_BITS, signed_bit(s)
            if word >= self.n_words:
                continue
            mine = held & (pos <= reach[i]) & ((words[word] & bit) != 0)
            words[word].bitwise_xor_(torch.where(mine, bit, 0))
            touched |= mine
            if self.minus_one is not None:
                self.minus_one.dropped(stream, hi, word, bit, mine)
        freed = touched & (words == 0).all(0)
        self._free(stream, hi, freed)
        self._lower_head(stream, freed)

    def rm_range(self, stream: int, p0: int, p1: int) -> None:
        """Free every cell in [p0, p1) for all owners."""
        hi = self.reach(stream)
        if not hi:
            return
        freed = self._in_range(stream, hi, p0, p1)
        self.seq[:, stream, :hi].masked_fill_(freed, 0)
        self._free(stream, hi, freed)
        self._lower_head(stream, freed)

    def seq_keep(self, stream: int, s: int) -> None:
        """Only ``s`` stays. A used cell without any owner survives."""
        hi, word, bit = self.reach(stream), s // WORD_BITS, signed_bit(s)
        self.know(stream, {s})
        if not hi:
            return
        words = self.seq[:, stream, :hi]
        mine = (words[word] & bit) != 0
        owned = words[0] != 0 if self.n_words == 1 else (words != 0).any(0)
        freed = owned & ~mine
        if self.minus_one is not None:
            self.minus_one.kept(stream, word, bit, words, self.planes[POS, stream])
        for w in range(self.n_words):
            words[w].copy_(torch.where(mine, bit, 0) if w == word else torch.zeros_like(words[w]))
        self._free(stream, hi, freed)
        self._lower_head(stream, freed)
        self.ids[stream] = {s}

    def seq_share(self, stream: int, src: int, dst: int, p0: int, p1: int) -> None:
        """Add ``dst`` to the cells of ``src`` in [p0, p1)."""
        hi, word, bit = self.reach(stream), dst // WORD_BITS, signed_bit(dst)
        self.know(stream, {dst})
        if not hi:
            return
        mine = self._mine(stream, src, hi, p0, p1)
        self.seq[word, stream, :hi].bitwise_or_(torch.where(mine, bit, 0))
        if self.minus_one is not None:
            self.minus_one.shared(stream, hi, word, bit, mine)

    def pos_add(self, stream: int, s: int, p0: int, p1: int, delta: int) -> None:
        """Move the cells of ``s`` in [p0, p1), for every owner; free those that fall below 0, which keep their
        token. The head goes to the first of them, else to 0."""
        hi = self.reach(stream)
        self.heads[stream] = 0
        if not hi:
            return
        mine = self._mine(stream, s, hi, p0, p1)
        moved = self.planes[:, stream, :hi]
        step = torch.where(mine, delta, 0).to(torch.int32)
        moved[POS] += step
        moved[SHIFT] += step
        self._note_shift(stream, mine)
        if delta < 0:
            freed = mine & (moved[POS] < 0)
            moved[POS].masked_fill_(freed, -1)
            moved[SHIFT].masked_fill_(freed, 0)
            self.seq[:, stream, :hi].masked_fill_(freed, 0)
            self.heads[stream] = torch.where(freed.any(), _first(freed), 0)
        if self.minus_one is not None:
            self.minus_one.moved(stream, mine, moved[POS], self.seq[:, stream])

    def pos_div(self, stream: int, s: int, p0: int, p1: int, d: int) -> None:
        """Divide the positions of the cells of ``s`` in [p0, p1), towards zero, for every owner."""
        if d < 0:
            self.watch_minus_one()
        hi = self.reach(stream)
        if not hi:
            return
        mine = self._mine(stream, s, hi, p0, p1)
        moved = self.planes[:, stream, :hi]
        old = moved[POS].clone()
        new = torch.where(mine, torch.div(old, d, rounding_mode="trunc"), old)
        moved[POS] = new
        moved[SHIFT] += old - new
        self._note_shift(stream, mine)
        if self.minus_one is not None:
            self.minus_one.moved(stream, mine, new, self.seq[:, stream])

    def reset_shift(self) -> None:
        self.planes[SHIFT].zero_()
        self.has_shift.zero_()
        self.may_shift = False

    def copy_sequence(self, src: int, dst: int, seq: int, owner: int) -> None:
        """Fill the stream ``dst`` with the cells of ``seq`` in ``src``, under ``owner``; heads become equal."""
        hi = self.reach(src)
        self.reset(dst)
        self.know(dst, {owner})
        self.heads[dst] = self.heads[src]
        self.top[dst] = hi
        if not hi:
            return
        mine = self.has(src, seq, hi)
        self.planes[:, dst, :hi] = torch.where(mine, self.planes[:, src, :hi], self.empty)
        self.seq[owner // WORD_BITS, dst, :hi] = torch.where(mine, signed_bit(owner), 0)
        self.has_shift[dst] = (self.planes[SHIFT, dst, :hi] != 0).any()
        if self.minus_one is not None:
            pos, words = self.planes[POS, dst], self.seq[:, dst]
            self.minus_one.used[dst] = mine & (pos == -1)
            self.minus_one.entries[:, dst] = torch.where(pos != -1, words, 0)
            self.minus_one.ghosts[:, dst] = torch.where(mine & (pos == -1), words, 0)

    def move(self, stream: int, src: Tensor, dst: Tensor) -> None:
        """Move cells to empty ones, pairwise, with everything they hold; the head goes to 0."""
        planes, seq = self.planes[:, stream], self.seq[:, stream]
        words = seq.index_select(1, src)
        planes.index_copy_(1, dst, planes.index_select(1, src))
        planes.index_copy_(1, src, self.empty.expand(-1, len(src)))
        seq.index_copy_(1, dst, words)
        seq.index_fill_(1, src, 0)
        if self.minus_one is not None:
            self.minus_one.entries[:, stream].index_copy_(1, dst, words)
            self.minus_one.entries[:, stream].index_fill_(1, src, 0)
        self.heads[stream] = 0

    # -- placing -------------------------------------------------------------------------------

    def place(self, flat: Tensor, int32: Tensor, words: Tensor) -> None:
        """Tokens into empty cells ``flat`` (``stream * size + cell``). ``int32`` are the first planes to write."""
        self.planes[: len(int32)].flatten(1).index_copy_(1, flat, int32)
        seq = self.seq.flatten(1)
        if self.minus_one is not None:
            self.minus_one.placed(flat, int32[POS], words)
            words = words | seq.index_select(1, flat)
        seq.index_copy_(1, flat, words)

    def take(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """What cells hold, for :meth:`put_back`."""
        return self.planes.flatten(1).index_select(1, flat), self.seq.flatten(1).index_select(1, flat)

    def put_back(self, flat: Tensor, saved: tuple[Tensor, Tensor]) -> None:
        """Undo a placement. Shifts are not put back."""
        planes, words = saved
        was = self.planes[POS].view(-1).index_select(0, flat)
        self.planes[:SHIFT].flatten(1).index_copy_(1, flat, planes[:SHIFT])
        self.seq.flatten(1).index_copy_(1, flat, words)
        if self.minus_one is not None:
            self.minus_one.restored(flat, was, planes[POS], words)

    def evict(self, flat: Tensor, ids: Sequence[int]) -> list[Tensor]:
        """Free cells before they are placed into. Returns for each of ``ids`` the largest position it lost."""
        planes, words = self.take(flat)
        pos = planes[POS]
        live = pos != -1
        lost = [
            torch.where(live & ((words[s // WORD_BITS] & signed_bit(s)) != 0), pos, -1).amax() for s in ids
        ]
        self.planes.flatten(1).index_copy_(1, flat, torch.where(live, self.empty, planes))
        self.seq.flatten(1).index_copy_(1, flat, torch.where(live, 0, words))
        if self.minus_one is not None:
            entries = self.minus_one.entries.flatten(1)
            entries.index_copy_(1, flat, torch.where(live, 0, entries.index_select(1, flat)))
        return lost

    # -- the parts every operation is made of --------------------------------------------------

    def _free(self, stream: int, hi: int, freed: Tensor) -> None:
        """Cells (a mask) that have no owner any more become empty."""
        cells = self.planes[:, stream, :hi]
        torch.where(freed, self.empty, cells, out=cells)
        if self.minus_one is not None:
            self.minus_one.freed(stream, hi, freed)

    def _lower_head(self, stream: int, freed: Tensor) -> None:
        first = torch.where(freed.any(), _first(freed), self.size)
        self.heads[stream] = torch.minimum(self.heads[stream], first)

    def _note_shift(self, stream: int, moved: Tensor) -> None:
        self.has_shift[stream] |= moved.any()
        self.may_shift = True


def _first(mask: Tensor) -> Tensor:
    """Index of the first true cell, 0 if there is none."""
    return mask.to(torch.uint8).argmax()
