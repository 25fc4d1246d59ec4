"""What llama.cpp remembers of cells at position -1.

Position -1 is the mark of an empty cell, and also a position a batch may begin at (spec cells R21). Such a
cell counts as used; its entry in the index of positions is never found again and so outlives it; and a new
token in it inherits the old owners, but not their entries. From the first such position on, a cache keeps
three more bit tables and answers from them::

    used       cells at -1 that count as used
    entries    owners under which a live cell is indexed (not always all its owners)
    ghosts     owners under which an entry at -1 is left for the cell
"""

from __future__ import annotations

import torch
from torch import Tensor


class MinusOne:
    """The three tables of all streams: ``used bool[S, n]``, ``entries`` and ``ghosts int32[W, S, n]``."""

    def __init__(self, seq: Tensor, pos: Tensor) -> None:
        self.used = torch.zeros_like(pos, dtype=torch.bool)
        self.entries = torch.where(pos != -1, seq, 0)
        self.ghosts = torch.zeros_like(seq)

    def grow(self, n_words: int) -> None:
        for name in ("entries", "ghosts"):
            old = getattr(self, name)
            new = old.new_zeros(n_words, *old.shape[1:])
            new[: len(old)] = old
            setattr(self, name, new)

    def reset(self, stream: int) -> None:
        self.used[stream] = False
        self.entries[:, stream] = 0
        self.ghosts[:, stream] = 0

    def placed(self, flat: Tensor, pos: Tensor, words: Tensor) -> None:
        """Tokens went into empty cells."""
        at_minus_one = pos == -1
        self.used.view(-1).index_copy_(0, flat, at_minus_one)
        entries, ghosts = self.entries.flatten(1), self.ghosts.flatten(1)
        entries.index_copy_(1, flat, torch.where(at_minus_one, 0, words))
        left = torch.where(at_minus_one, words, 0) | ghosts.index_select(1, flat)
        ghosts.index_copy_(1, flat, left)

    def restored(self, flat: Tensor, was: Tensor, pos: Tensor, words: Tensor) -> None:
        """A trial was undone: cells hold ``pos`` and ``words`` again; before, positions ``was``."""
        is_live = pos != -1
        used = self.used.view(-1)
        used.index_copy_(0, flat, used.index_select(0, flat) & (was == -1) & ~is_live)
        self.entries.flatten(1).index_copy_(1, flat, torch.where(is_live, words, 0))

    def save(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.used.clone(), self.entries.clone(), self.ghosts.clone()

    def undo_unless(self, ok: Tensor, saved: tuple[Tensor, Tensor, Tensor]) -> None:
        """Everything as it was, unless ``ok``: a trial that was none leaves no traces."""
        now = self.used, self.entries, self.ghosts
        used, entries, ghosts = (torch.where(ok, a, b) for a, b in zip(now, saved, strict=True))
        self.put_back((used, entries, ghosts))

    def put_back(self, saved: tuple[Tensor, Tensor, Tensor]) -> None:
        self.used, self.entries, self.ghosts = saved

    def kept(self, stream: int, word: int, bit: int, seq: Tensor, pos: Tensor) -> None:
        """Only the owner ``bit`` of ``word`` stays; ``seq`` and ``pos`` are those before."""
        mine = (seq[word] & bit) != 0
        owned = (seq != 0).any(0)
        ghosts, entries = self.ghosts[:, stream], self.entries[:, stream]
        ghosts &= torch.where(owned & (pos == -1), ~seq, -1)
        ghosts[word] |= torch.where(mine & (pos == -1), bit, 0)
        entries.zero_()
        entries[word] = torch.where(mine & (pos != -1), bit, 0)
        self.used[stream] &= ~(owned & ~mine)

    def moved(self, stream: int, cells: Tensor, pos: Tensor, seq: Tensor) -> None:
        """Positions of ``cells`` (a mask) changed to ``pos``; their owners ``seq`` are all indexed again."""
        at_minus_one = cells & (pos == -1) & (seq != 0).any(0)
        self.entries[:, stream] = torch.where(
            cells, torch.where(at_minus_one | (pos == -1), 0, seq), self.entries[:, stream]
        )
        self.ghosts[:, stream] |= torch.where(at_minus_one, seq, 0)
        self.used[stream] |= at_minus_one

    def freed(self, stream: int, hi: int, cells: Tensor) -> None:
        self.entries[:, stream, :hi].masked_fill_(cells, 0)

    def dropped(self, stream: int, hi: int, word: int, bit: int, cells: Tensor) -> None:
        """``cells`` (a mask) lost one owner."""
        self.entries[word, stream, :hi] &= ~torch.where(cells, bit, 0)

    def shared(self, stream: int, hi: int, word: int, bit: int, cells: Tensor) -> None:
        self.entries[word, stream, :hi] |= torch.where(cells, bit, 0)
