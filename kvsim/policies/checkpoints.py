"""Checkpoints: the part of a memory that cannot go back, kept aside (``create_checkpoint`` of the server).

A window cache loses what its window has passed, and a recurrent state never knew how it came about. So a
server keeps partial states of them along the prompt; the attention cells of everything stay in the cache and
need no copy. Of a window only the cells that the next token can still see are written::

    window cache   4 5 6 7 . .    n_swa 3: the next token, 8, sees 6 and 7; the state holds 5, 6, 7
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim import window
from kvsim.caches.kv import KVCache
from kvsim.errors import CacheUsageError
from kvsim.models.params import SwaType
from kvsim.policies.slot import Slot
from kvsim.state import PARTIAL_ONLY


@dataclass(frozen=True)
class Checkpoint:
    """A partial state of ``n_bytes`` after ``n_tokens``, with the positions the memory stated then.

    ``n_bytes_full`` is what the whole state would have taken; ``n_masked`` cells of the window caches, with
    rows of ``n_bytes_masked``, were left out because their window has passed them.
    """

    n_tokens: int
    pos_min: int
    pos_max: int
    task: int
    data: bytes
    n_bytes_full: int
    n_masked: int
    n_bytes_masked: int

    @property
    def n_bytes(self) -> int:
        return len(self.data)

    @property
    def n_bytes_saved(self) -> int:
        """Bytes that a whole state would have taken more."""
        return self.n_bytes_full - self.n_bytes


class Checkpoints:
    """The checkpoints of a slot, oldest first: at most ``most``, thinned out to ``min_step`` tokens between
    those of earlier tasks once the list is full."""

    def __init__(self, slot: Slot, most: int = 32, min_step: int = 8192) -> None:
        if most < 1 or min_step < 0:
            raise CacheUsageError(
                f"most = {most}, min_step = {min_step}: keep at least 1 checkpoint, 0 or more tokens apart; "
                "or make no Checkpoints to keep none"
            )
        self.slot = slot
        self.most = most
        self.min_step = min_step
        self.kept: list[Checkpoint] = []

    @property
    def useful(self) -> bool:
        """Whether some part of the memory cannot go back. Otherwise a server keeps none."""
        return self.slot.n_swa > 0 or self.slot.keeps_state

    @property
    def n_bytes(self) -> int:
        """Bytes of all that are kept."""
        return sum(each.n_bytes for each in self.kept)

    def create(self) -> Checkpoint | None:
        """Keep one of the slot as it is now; None if the sequence is empty."""
        slot, memory = self.slot, self.slot.context.memory
        pos_min, pos_max = memory.seq_pos_min(slot.seq), memory.seq_pos_max(slot.seq)
        if pos_min < 0:
            return None
        self._make_room()
        n_masked, n_bytes_masked = self._masked()
        made = Checkpoint(
            n_tokens=len(slot.tokens),
            pos_min=pos_min,
            pos_max=pos_max,
            task=slot.task,
            data=slot.context.state_seq_get(slot.seq, PARTIAL_ONLY),
            n_bytes_full=len(slot.context.state_seq_get(slot.seq)),
            n_masked=n_masked,
            n_bytes_masked=n_bytes_masked,
        )
        self.kept = [each for each in self.kept if each.n_tokens != made.n_tokens] + [made]
        slot.cost.bytes_written += made.n_bytes
        slot.tell(
            "checkpoint", n_tokens=made.n_tokens, pos_min=pos_min, pos_max=pos_max, n_bytes=made.n_bytes,
            n_bytes_saved=made.n_bytes_saved, n_masked=n_masked,
        )  # fmt: skip
        return made

    def _make_room(self) -> None:
        """With one place left or none, drop those of other tasks that are too close to the one before; with
        none left, the oldest."""
        if len(self.kept) + 1 >= self.most:
            self._thin_out()
        while len(self.kept) >= self.most:
            self.kept.pop(0)

    def _thin_out(self) -> None:
        last, at = -1, 0
        while at < len(self.kept) and len(self.kept) + 1 >= self.most:
            each = self.kept[at]
            if each.task != self.slot.task and last >= 0 and each.n_tokens <= last + self.min_step:
                del self.kept[at]
            else:
                last, at = each.n_tokens, at + 1

    def _masked(self) -> tuple[int, int]:
        """Cells of the sequence that window caches hold but a state leaves out, and bytes of their rows."""
        n_cells = n_bytes = 0
        for cache in self.slot.context.memory.leaves().values():
            if not isinstance(cache, KVCache) or cache.spec.swa_type is SwaType.NONE:
                continue
            table = cache.cells[cache.stream_of(self.slot.seq)]
            pos = table.pos[table.has(self.slot.seq, table.size)]
            end = table.seq_pos_max(self.slot.seq)
            n = int(np.count_nonzero(window.masked(cache.spec.swa_type, cache.spec.n_swa, pos, end)))
            n_cells += n
            n_bytes += n * sum(layer.row_k + layer.row_v for layer in cache.spec.layers)
        return n_cells, n_bytes

    def best(self, pos_next: int, threshold: int) -> Checkpoint | None:
        """The newest one from which decoding can go on at ``pos_next``: it does not reach beyond, and begins
        before ``threshold`` or at 0."""
        for each in reversed(self.kept):
            if each.pos_max <= pos_next and (each.pos_min < threshold or each.pos_min == 0):
                return each
        return None

    def restore(self, checkpoint: Checkpoint) -> bool:
        """Put a checkpoint back. Attention cells after it are still there: take them back before decoding.
        False if the memory refuses it; the context's ``last_failure`` says why."""
        slot = self.slot
        if slot.context.state_seq_set(checkpoint.data, slot.seq, PARTIAL_ONLY) == 0:
            return False
        slot.cost.bytes_read += checkpoint.n_bytes
        slot.tell("restore checkpoint", n_tokens=checkpoint.n_tokens, n_bytes=checkpoint.n_bytes)
        return True

    def drop_after(self, pos_next: int) -> None:
        """Forget those that reach beyond ``pos_next``: their tokens are about to be replaced."""
        self.kept = [each for each in self.kept if each.pos_max <= pos_next]
