"""The cell tables of a cache, all streams in one set of tensors, and the operations on them.

::

    planes  int32[6, S, n]    position (-1 empty), token, x, y, kept, shift
    seq     int32[W, S, n]    owner bits, W words of 32 sequences

Every operation is a few passes over the first cells of a stream, up to a bound that the host knows without
asking: no cell beyond ``top`` was ever used since the table was cleared. Nothing here waits for the device.

Freeing a cell writes its position alone. What else stands in an empty cell counts as reset, unless ``kept``
says that it stays readable; whoever places a token there settles it. Bits are selected by ``and`` and turned
into masks by conversion, which costs a third of a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.index import MinusOne
from engine.rows import KEPT, POS, SHIFT, TOK, WORD, WORD_BITS, X, Y, signed_bit
from engine.sync import upload
from kvsim.memory import MAX_SEQ, POS_INF

__all__ = ["KEPT", "POS", "SHIFT", "TOK", "Cells", "X", "Y"]

EMPTY = (-1, -1, 0, 0, 0, 0)
LOWEST = -(2**31)
COUNTING = 4096


class Cells:
    """``n_stream`` tables of ``size`` cells. ``ids[stream]`` are the sequences that may have cells there."""

    def __init__(self, n_stream: int, size: int, device: torch.device) -> None:
        self.n_stream, self.size, self.device = n_stream, size, device
        self.planes = torch.empty(6, n_stream, size, dtype=torch.int32, device=device)
        self.seq = torch.zeros(1, n_stream, size, dtype=WORD, device=device)
        self.empty = upload(EMPTY, device, torch.int32)[:, None]
        self.index = torch.arange(size, device=device)
        self.streams = torch.arange(n_stream, device=device)
        self.true = torch.ones((), dtype=torch.bool, device=device)
        self._counting = torch.arange(1, min(size, COUNTING) + 1, dtype=torch.int32, device=device)
        self.heads = torch.zeros(n_stream, dtype=torch.int64, device=device)
        self.has_shift = torch.zeros(n_stream, dtype=torch.bool, device=device)
        self.may_shift = False
        self.highest = 0  # no position is above
        self.top = [0] * n_stream
        self.ids: list[set[int]] = [set() for _ in range(n_stream)]
        self.minus_one: MinusOne | None = None
        for stream in range(n_stream):
            self.reset(stream)

    @property
    def pos(self) -> Tensor:
        return self.planes[POS]

    @property
    def n_words(self) -> int:
        return len(self.seq)

    def counting(self, n: int) -> Tensor:
        """1, 2, ..., n."""
        if n <= len(self._counting):
            return self._counting[:n]
        return torch.arange(1, n + 1, dtype=torch.int32, device=self.device)

    def reset(self, stream: int) -> None:
        """Every cell of a stream empty. The head stays."""
        self.planes[:, stream] = self.empty
        self.seq[:, stream] = 0
        self.has_shift[stream] = False
        self.top[stream] = 0
        self.ids[stream] = set()
        if self.minus_one is not None:
            self.minus_one.reset(stream)

    def clear(self) -> None:
        """Every stream empty, every head at 0."""
        self.minus_one = None
        self.highest = 0
        for stream in range(self.n_stream):
            self.reset(stream)
        self.heads.zero_()
        self.may_shift = False

    def know(self, stream: int, ids: Sequence[int] | set[int]) -> None:
        """Sequences are about to get cells; above id 31 owner bits need eight words."""
        self.ids[stream].update(ids)
        if self.n_words == 1 and ids and max(ids) >= WORD_BITS:
            wider = self.seq.new_zeros(MAX_SEQ // WORD_BITS, self.n_stream, self.size)
            wider[:1] = self.seq
            self.seq = wider
            if self.minus_one is not None:
                self.minus_one.grow(self.n_words)

    def watch_minus_one(self) -> MinusOne:
        if self.minus_one is None:
            self.minus_one = MinusOne(self.seq, self.pos)
        return self.minus_one

    # -- reading -------------------------------------------------------------------------------

    def streams_at(self, strm: tuple[int, ...]) -> slice | Tensor:
        """Some streams as an index: mostly they are one run."""
        first = strm[0]
        if strm == tuple(range(first, first + len(strm))):
            return slice(first, first + len(strm))
        return torch.cat([self.streams[s : s + 1] for s in strm])

    def reach(self, stream: int) -> int:
        """Cells that operations on a stream look at: with cells at position -1 any may have an owner."""
        return self.top[stream] if self.minus_one is None else self.size

    def has(self, stream: int, s: int, hi: int) -> Tensor:
        """``bool[hi]``: the cells that carry ``s``."""
        word = s // WORD_BITS
        if word >= self.n_words:
            return torch.zeros(hi, dtype=torch.bool, device=self.device)
        return (self.seq[word, stream, :hi] & signed_bit(s)).to(torch.bool)

    def _mine(self, stream: int, s: int, hi: int, p0: int, p1: int) -> Tensor:
        """Cells of ``s`` in [p0, p1). A cell with an owner has a position, but for those at -1."""
        mine = self.has(stream, s, hi)
        pos = self.planes[POS, stream, :hi]
        if p0 > 0 or self.minus_one is not None:
            # by the sign of p0 - 1 - pos, which is quicker than a comparison
            mine &= torch.rsub(pos, p0 - 1).bitwise_right_shift_(31).to(torch.bool)
        return mine if p1 == POS_INF else mine & (pos < p1)

    def used(self, streams: Tensor | slice, hi: int) -> Tensor:
        """``bool[P, hi]``: cells that count as used."""
        used = self.planes[POS, streams, :hi] != -1
        return used if self.minus_one is None else used | self.minus_one.used[streams, :hi]

    def shifts(self) -> Tensor:
        """``int32[S, n]``: by how much the key of each cell is to turn."""
        return torch.where(self.used(slice(None), self.size), self.planes[SHIFT], 0)

    def extremes(self, ids: Sequence[int], hi: int) -> Tensor:
        """Smallest and largest position of sequences, ``int32[2, len(ids)]``; -1 for those that have none. No
        cell at or after ``hi`` is used."""
        hi = hi if self.minus_one is None else self.size
        if hi == 0 or not ids:
            return torch.full((2, len(ids)), -1, dtype=torch.int32, device=self.device)
        return torch.stack([self._ends(s, hi) for s in ids], 1)

    def _ends(self, s: int, hi: int) -> Tensor:
        stream, word, bit = s if self.n_stream > 1 else 0, s // WORD_BITS, signed_bit(s)
        if word >= self.n_words:
            return torch.full((2,), -1, dtype=torch.int32, device=self.device)
        table = self.seq if self.minus_one is None else self.minus_one.entries
        own = (table[word, stream, :hi] & bit).to(torch.bool).to(torch.int32).neg_()  # all ones where it is
        pos = self.planes[POS, stream, :hi] & own
        low, high = (pos | (~own & POS_INF)).amin(), (pos | (~own & LOWEST)).amax()
        if self.minus_one is not None:
            ghost = (self.minus_one.ghosts[word, stream] & bit).to(torch.bool).any()
            low = torch.where(ghost, low.clamp(max=-1), low)
            high = torch.where(ghost, high.clamp(min=-1), high)
        return torch.where(high == LOWEST, -1, torch.stack([low, high]))  # LOWEST: nobody's

    def only_owner(self, streams: Tensor | slice, hi: int) -> Tensor:
        """``int64[P, hi]``: the owner of each cell that has one alone, else -1."""
        words = self.seq[:, streams, :hi]
        if len(words) == 1:
            word, base, alone = words[0], 0, True
        else:
            there = words.to(torch.bool)
            which = there.to(torch.uint8).argmax(0)
            word = words.gather(0, which[None])[0]
            base, alone = which * WORD_BITS, there.sum(0) == 1
        owner = torch.frexp(word.to(torch.float64)).exponent.to(torch.int64) - 1 + base
        return torch.where((word != 0) & ((word & (word - 1)) == 0) & alone, owner, -1)

    # -- sequence operations -------------------------------------------------------------------

    def seq_rm(self, stream: int, s: int, p0: int, p1: int) -> None:
        """Take ``s`` out of its cells in [p0, p1); lower the head to the first cell that this frees."""
        hi, word, bit = self.reach(stream), s // WORD_BITS, signed_bit(s)
        if not hi or word >= self.n_words:
            return
        words = self.seq[:, stream, :hi]
        own = words[word]
        if p0 == 0 and p1 == POS_INF and self.minus_one is None and len(words) == 1:
            freed = (own ^ bit).to(torch.bool).logical_not_()  # of nobody else
            own &= ~bit
        else:
            mine = self._mine(stream, s, hi, p0, p1)
            own ^= _bits(mine, bit)
            if self.minus_one is not None:
                self.minus_one.dropped(stream, hi, word, bit, mine)
            freed = mine.logical_and_(_any(words).logical_not_())
        self._free(stream, hi, freed)

    def purge(self, stream: int, ids: Sequence[int], reach: Sequence[Tensor], hi: int) -> None:
        """Take each of ``ids`` out of its cells before ``hi`` up to the position ``reach``."""
        hi = hi if self.minus_one is None else self.size
        pos, words = self.planes[POS, stream, :hi], self.seq[:, stream, :hi]
        held = pos >= 0
        touched = torch.zeros_like(held)
        for i, s in enumerate(ids):
            word, bit = s // WORD_BITS, signed_bit(s)
            mine = held & (pos <= reach[i]) & (words[word] & bit).to(torch.bool)
            words[word] ^= _bits(mine, bit)
            touched |= mine
            if self.minus_one is not None:
                self.minus_one.dropped(stream, hi, word, bit, mine)
        self._free(stream, hi, touched & ~_any(words))

    def rm_range(self, stream: int, p0: int, p1: int) -> None:
        """Free every cell in [p0, p1) for all owners."""
        hi = self.reach(stream)
        if not hi:
            return
        pos = self.planes[POS, stream, :hi]
        freed = pos >= p0
        if p1 < POS_INF:
            freed &= pos < p1
        self._disown(stream, hi, freed)
        self._free(stream, hi, freed)

    def seq_keep(self, stream: int, s: int) -> None:
        """Only ``s`` stays. A used cell without any owner survives."""
        hi, word, bit = self.reach(stream), s // WORD_BITS, signed_bit(s)
        self.know(stream, {s})
        if not hi:
            return
        words = self.seq[:, stream, :hi]
        freed = _any(words) & ~self.has(stream, s, hi)
        if self.minus_one is not None:
            self.minus_one.kept(stream, word, bit, words, self.planes[POS, stream])
            self.planes[KEPT, stream] &= ~freed.to(torch.int32)
        for w in range(self.n_words):
            words[w] &= bit if w == word else 0
        self._free(stream, hi, freed)
        self.ids[stream] = {s}

    def seq_share(self, stream: int, src: int, dst: int, p0: int, p1: int) -> None:
        """Add ``dst`` to the cells of ``src`` in [p0, p1)."""
        hi, word, bit = self.reach(stream), dst // WORD_BITS, signed_bit(dst)
        self.know(stream, {dst})
        if not hi:
            return
        mine = self._mine(stream, src, hi, p0, p1)
        self.seq[word, stream, :hi] |= _bits(mine, bit)
        if self.minus_one is not None:
            self.minus_one.shared(stream, hi, word, bit, mine)

    def pos_add(self, stream: int, s: int, p0: int, p1: int, delta: int) -> None:
        """Move the cells of ``s`` in [p0, p1), for every owner; free those that fall below 0, which keep
        their token. The head goes to the first of them, else to 0."""
        hi = self.reach(stream)
        self.heads[stream] = 0
        if not hi:
            return
        mine = self._mine(stream, s, hi, p0, p1)
        cells = self.planes[:, stream, :hi]
        cells[POS].add_(mine, alpha=delta)
        cells[SHIFT].add_(mine, alpha=delta)
        self._note_shift(stream, mine)
        self.highest += max(delta, 0)
        if delta < 0 or self.highest > POS_INF:  # moving up may end below 0 too: positions have 32 bits
            freed = mine & (cells[POS] < 0)
            self._disown(stream, hi, freed)
            self._free(stream, hi, freed)
            cells[KEPT] |= freed.to(torch.int32)
            any_freed, first = _first(freed)
            self.heads[stream] = first * any_freed
        if self.minus_one is not None:
            self.minus_one.moved(stream, mine, cells[POS], self.seq[:, stream])

    def pos_div(self, stream: int, s: int, p0: int, p1: int, d: int) -> None:
        """Divide the positions of the cells of ``s`` in [p0, p1), towards zero, for every owner."""
        if d < 0:
            self.watch_minus_one()
        hi = self.reach(stream)
        if not hi:
            return
        mine = self._mine(stream, s, hi, p0, p1)
        cells = self.planes[:, stream, :hi]
        less = (cells[POS] - torch.div(cells[POS], d, rounding_mode="trunc")) * mine.to(torch.int32)
        cells[POS] -= less
        cells[SHIFT] += less
        self._note_shift(stream, mine)
        if self.minus_one is not None:
            cells[KEPT] |= (mine & (cells[POS] == -1)).to(torch.int32)
            self.minus_one.moved(stream, mine, cells[POS], self.seq[:, stream])

    def reset_shift(self) -> None:
        self.planes[SHIFT].zero_()
        self.has_shift.zero_()
        self.may_shift = False

    def copy_sequence(self, src: int, dst: int, seq: int, owner: int) -> None:
        """Fill the stream ``dst`` with the cells of ``seq`` in ``src``, under ``owner``; heads become equal.
        A cell that was divided below 0 falls, but for its token."""
        hi = self.reach(src)
        self.reset(dst)
        self.know(dst, {owner})
        self.heads[dst] = self.heads[src]
        self.top[dst] = hi
        if not hi:
            return
        mine = self.has(src, seq, hi)
        cells = torch.where(mine, self.planes[:, src, :hi], self.empty)
        self.has_shift[dst] = (cells[SHIFT] != 0).any()
        if self.minus_one is not None:
            fallen = mine & (cells[POS] < 0) & (cells[SHIFT] != 0)
            cells[POS].masked_fill_(fallen, -1)
            cells[SHIFT].masked_fill_(fallen, 0)
            cells[KEPT].masked_fill_(fallen, 1)
            mine &= ~fallen
        self.planes[:, dst, :hi] = cells
        self.seq[owner // WORD_BITS, dst, :hi] = _bits(mine, signed_bit(owner))
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

    def place(self, flat: Tensor, int32: Tensor, words: Tensor, writes_ext: bool = True) -> None:
        """Tokens into empty cells ``flat`` (``stream * size + cell``): their planes ``int32[6, n]`` and owner
        bits. Without ext only positions are written, and what a cell has kept stays."""
        planes, seq = self.planes.flatten(1), self.seq.flatten(1)
        if not writes_ext:
            old = planes.index_select(1, flat)
            kept = torch.where(old[KEPT].to(torch.bool), old, self.empty)
            int32 = torch.cat([int32[:TOK], kept[TOK:KEPT], int32[KEPT:]])
        planes.index_copy_(1, flat, int32)
        if self.minus_one is not None:
            self.minus_one.placed(flat, int32[POS], words)
            words = words | seq.index_select(1, flat)
        seq.index_copy_(1, flat, words)

    def take(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """What cells hold, for :meth:`put_back`; what counts as reset, reset."""
        planes = self.planes.flatten(1).index_select(1, flat)
        readable = (planes[POS] != -1) | planes[KEPT].to(torch.bool)
        planes = torch.where(readable, planes, self.empty)
        return planes, self.seq.flatten(1).index_select(1, flat)

    def put_back(self, flat: Tensor, saved: tuple[Tensor, Tensor]) -> None:
        """Undo a placement. Shifts are not put back."""
        planes, words = saved
        was = self.planes[POS].view(-1).index_select(0, flat)
        self.planes[:SHIFT].flatten(1).index_copy_(1, flat, planes[:SHIFT])
        self.seq.flatten(1).index_copy_(1, flat, words)
        if self.minus_one is not None:
            self.minus_one.restored(flat, was, planes[POS], words)

    def evict(self, flat: Tensor, ids: Sequence[int]) -> list[Tensor]:
        """Free cells before they are placed into; returns for each of ``ids`` the largest position it
        lost."""
        planes, words = self.take(flat)
        pos = planes[POS]
        live = pos != -1
        lost = [
            torch.where(live & (words[s // WORD_BITS] & signed_bit(s)).to(torch.bool), pos, -1).amax()
            for s in ids
        ]
        self.planes.flatten(1).index_copy_(1, flat, torch.where(live, self.empty, planes))
        self.seq.flatten(1).index_copy_(1, flat, torch.where(live, 0, words))
        if self.minus_one is not None:
            entries = self.minus_one.entries.flatten(1)
            entries.index_copy_(1, flat, torch.where(live, 0, entries.index_select(1, flat)))
        return lost

    # -- the parts every operation is made of --------------------------------------------------

    def _disown(self, stream: int, hi: int, cells: Tensor) -> None:
        """Cells (a mask) lose all owners."""
        self.seq[:, stream, :hi] &= cells.to(WORD).sub_(1)

    def _free(self, stream: int, hi: int, freed: Tensor) -> None:
        """Cells (a mask) that have no owner any more become empty; the head is lowered to the first of
        them."""
        minus_one = freed.view(torch.int8).neg().to(torch.int32)
        self.planes[POS, stream, :hi] |= minus_one
        any_freed, first = _first(freed)
        head = self.heads[stream]
        torch.where(any_freed, torch.minimum(head, first), head, out=head)
        if self.minus_one is not None:
            self.minus_one.freed(stream, hi, freed)

    def _note_shift(self, stream: int, moved: Tensor) -> None:
        self.has_shift[stream] |= (moved.view(torch.int64) if len(moved) % 8 == 0 else moved).any()
        self.may_shift = True


def _any(words: Tensor) -> Tensor:
    """Which cells ``int32[W, n]`` have an owner."""
    return words[0].to(torch.bool) if len(words) == 1 else words.to(torch.bool).any(0)


def _bits(mask: Tensor, bit: int) -> Tensor:
    """``bit`` where the mask is set, else 0."""
    return mask.to(WORD).mul_(bit)


def _first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Whether any cell of a mask is set, and the index of the first (0 if none). Eight cells are looked at as
    one number first."""
    raw = mask.view(torch.uint8)
    if len(raw) % 8 or len(raw) < 512:
        found, at = raw.max(0)
        return found.to(torch.bool), at
    found, eight = raw.view(torch.int64).to(torch.bool).view(torch.uint8).max(0)
    inside = raw.view(-1, 8).index_select(0, eight[None])[0].max(0).indices
    return found.to(torch.bool), eight * 8 + inside
