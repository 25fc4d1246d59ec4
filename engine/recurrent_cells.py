"""The cells of a recurrent memory on a device (spec recurrent.md): one per sequence, side by side for a
ubatch.

All is masks over ``size`` cells and 0-d tensors, so that a placement asks the host nothing::

    columns int32[4, size]    pos, src, src0 by cell; tail by sequence
    owners  int32[W, size]    owner bits
    counters int64[4]         head, used, n, rs_z
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.rows import WORD, WORD_BITS, owner_words, signed_bit
from engine.sync import upload
from kvsim.batch import Ubatch

POS, SRC, SRC0, TAIL = range(4)
HEAD, USED, N, RS_Z = range(4)
UINT32 = 0xFFFFFFFF


class Placement:
    """What a ubatch brings, on the device: ``last int32[n]``, the last position of each of its sets; ``words
    int32[W, n]``, their owner bits; ``ids`` of all sets and ``which`` set each is of."""

    def __init__(self, ubatch: Ubatch, n_words: int, device: torch.device) -> None:
        length = ubatch.n_seq_tokens
        self.sets = [ubatch.seq_ids[k * length] for k in range(ubatch.n_seqs)]
        self.last = upload(ubatch.pos[0, length - 1 :: length], device, torch.int32)
        self.words = upload(owner_words(tuple(self.sets), n_words), device, WORD)
        ids = [(s, k) for k, of_set in enumerate(self.sets) for s in of_set]
        self.ids, self.which = upload(list(zip(*ids, strict=True)), device)


class StateCells:
    """``size`` cells, empty. The tensors stay where they are: a captured step writes to them."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.columns = torch.full((4, size), -1, dtype=torch.int32, device=device)
        self.owners = torch.zeros(-(-size // WORD_BITS), size, dtype=WORD, device=device)
        self.counters = upload([0, 0, 0, -1], device)
        self.index = torch.arange(size, device=device)

    def save(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.columns.clone(), self.owners.clone(), self.counters.clone()

    def put_back(self, saved: tuple[Tensor, Tensor, Tensor]) -> None:
        """As it was; ``n`` and ``rs_z`` stay as the last trial left them."""
        self.columns.copy_(saved[0])
        self.owners.copy_(saved[1])
        self.counters[: USED + 1] = saved[2][: USED + 1]

    def clear(self) -> None:
        """Empty; ``src0``, ``n`` and ``rs_z`` stay."""
        self.columns[: SRC + 1] = -1
        self.columns[TAIL] = -1
        self.owners.zero_()
        self.counters[: USED + 1] = 0

    def at(self, seq: int) -> Tensor:
        """The cell of ``seq`` as a mask: nothing if it has none."""
        return self.index == self.columns[TAIL, seq]

    def standing_in(self, seq: int, p0: int, p1: int) -> Tensor:
        """The cell of ``seq`` if its position is in [p0, p1)."""
        pos = self.columns[POS]
        return self.at(seq) & (pos >= p0) & (pos < p1)

    @property
    def empty(self) -> Tensor:
        return (self.owners == 0).all(0)

    # -- sequences come and go -----------------------------------------------------------------

    def leave(self, seq: int, at: Tensor, lower_head: bool = False) -> None:
        """Take ``seq`` out of its cell ``at`` (nothing: it stays where it is), which may become empty."""
        word = seq // WORD_BITS
        self.owners[word] &= ~torch.where(at, signed_bit(seq), 0)
        self.columns[TAIL, seq] = torch.where(at.any(), -1, self.columns[TAIL, seq])
        emptied = at & self.empty
        self.columns[: SRC + 1].masked_fill_(emptied, -1)
        self.counters[USED] = (self.counters[USED] - emptied.sum()) & UINT32
        if lower_head:
            first = torch.where(emptied, self.index, self.size).amin()
            self.counters[HEAD] = torch.minimum(self.counters[HEAD], first)

    def share(self, src: int, dst: int) -> None:
        """``dst`` leaves its cell and becomes an owner of that of ``src``."""
        self.leave(dst, self.at(dst))
        at = self.at(src)
        self.owners[dst // WORD_BITS] |= torch.where(at, signed_bit(dst), 0)
        self.columns[TAIL, dst] = torch.where(at.any(), self.columns[TAIL, src], self.columns[TAIL, dst])

    def keep(self, seq: int) -> None:
        """Only ``seq`` stays; an unknown one drops everything. The head goes down to the first other cell."""
        known = 0 <= seq < self.size
        kept = self.at(seq) if known else torch.zeros_like(self.index, dtype=torch.bool)
        gone = ~kept & (self.columns[POS] >= 0)
        self.counters[USED] = (self.counters[USED] - gone.sum()) & UINT32
        self.columns[: SRC + 1].masked_fill_(~kept, -1)
        self.owners.zero_()
        tail = self.columns[TAIL, seq].clone() if known else None
        self.columns[TAIL] = -1
        if known:
            self.owners[seq // WORD_BITS] = torch.where(kept, signed_bit(seq), 0)
            self.columns[TAIL, seq] = tail
        first = torch.where(kept, self.size, self.index).amin()
        lower = torch.minimum(self.counters[HEAD], first)
        self.counters[HEAD] = lower

    # -- placing a ubatch ----------------------------------------------------------------------

    def place(self, placed: Placement) -> bool:
        """Place the sets of a ubatch side by side. False if an id is beyond the cells: the placement then
        stops where it was met."""
        sets = placed.sets
        head, used = self.counters[HEAD], self.counters[USED]
        self.counters[HEAD] = torch.where(head > ((used + 2 * len(sets)) & UINT32), 0, head)
        for ids in sets:
            for j, seq in enumerate(ids):
                if not 0 <= seq < self.size:
                    return False
                if j:
                    self.leave(seq, self.at(seq))
        firsts = [ids[0] for ids in sets]
        self._take_cells(firsts)
        tails = torch.stack([self.columns[TAIL, seq] for seq in firsts]).to(torch.int64)
        lo, hi = tails.amin(), tails.amax()
        for k, seq in enumerate(firsts):
            self._swap(self.columns[TAIL, seq].to(torch.int64), lo + k)
        self._settle(lo, placed)
        self._stage_sources(lo, hi)
        return True

    def _take_cells(self, firsts: Sequence[int]) -> None:
        """Give every set a cell of its own: its own if nobody else has it, else the next empty one."""
        start = self.counters[HEAD].clone()
        for seq in firsts:
            word, bit = seq // WORD_BITS, signed_bit(seq)
            at = self.at(seq)
            others = self.owners.clone()
            others[word] &= ~bit
            alone = (at & (others == 0).all(0)).any()
            shared = at & ~alone
            distance = torch.where(self.empty, (self.index - start) % self.size, self.size)
            cell = distance.argmin()
            new = (self.index == cell) & ~alone
            # what is in a shared cell stays in its row: the new cell is told where
            for column in (POS, SRC):
                held = torch.where(shared, self.columns[column], 0).sum()
                self.columns[column] = torch.where(new & shared.any(), held, self.columns[column])
            self.owners[word] &= ~torch.where(shared, bit, 0)
            self.owners[word] |= torch.where(new & shared.any(), bit, 0)
            self.columns[TAIL, seq] = torch.where(alone, self.columns[TAIL, seq], cell)
            start = torch.where(alone, start, cell + 1)

    def _swap(self, a: Tensor, b: Tensor) -> None:
        order = torch.where(self.index == a, b, torch.where(self.index == b, a, self.index))
        self.columns[: SRC + 1] = self.columns[: SRC + 1].index_select(1, order)
        self.owners.copy_(self.owners.index_select(1, order))
        tail = self.columns[TAIL]
        self.columns[TAIL] = torch.where(tail == a, b, torch.where(tail == b, a, tail))

    def _settle(self, lo: Tensor, placed: Placement) -> None:
        """Each cell now stands at the last position of its set, and belongs to all its ids."""
        cells = lo + torch.arange(len(placed.sets), device=self.device)
        self.columns[POS].index_copy_(0, cells, placed.last)
        self.owners.index_copy_(1, cells, placed.words)
        self.columns[TAIL].index_copy_(0, placed.ids, (lo + placed.which).to(torch.int32))

    def _stage_sources(self, lo: Tensor, hi: Tensor) -> None:
        """Hand ``src`` to the graph as ``src0``; fresh states read a row that nobody reads, which is
        zeroed."""
        src = self.columns[SRC].to(torch.int64)
        referenced = torch.zeros(self.size + 1, dtype=torch.bool, device=self.device)
        referenced.index_fill_(0, torch.where(src < 0, self.size, src), True)  # the last entry is of no cell
        inside = (self.index >= lo) & (self.index <= hi)
        free = torch.where(inside & ~referenced[:-1], self.index, self.size).amin()
        zero = torch.where(free == self.size, -1, free)
        self.columns[SRC0] = torch.where(inside, torch.where(src < 0, zero, src), self.columns[SRC0])
        self.columns[SRC] = torch.where(inside, self.index, src)
        self.counters.copy_(torch.stack([lo, (~self.empty).sum(), hi - lo + 1, zero]))

    def smallest_owner(self) -> Tensor:
        """The smallest owner of each cell, -1 for an empty one."""
        lowest = self.owners & -self.owners
        bit = torch.frexp(lowest.to(torch.float64)).exponent.to(torch.int64) - 1
        ids = torch.where(
            lowest != 0,
            bit + torch.arange(len(self.owners), device=self.device)[:, None] * WORD_BITS,
            1 << 30,
        )
        smallest = ids.amin(0)
        return torch.where(smallest == 1 << 30, -1, smallest)
