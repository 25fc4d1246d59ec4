"""What every attention cache has in common, whoever implements it: its geometry, which calls it refuses,
and how a batch and an update are prepared.

:class:`kvsim.caches.kv.KVCache` is the numpy implementation; others (the torch engine's) serve the same
composites by implementing this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from kvsim.errors import CacheUsageError
from kvsim.memory import (
    MAX_SEQ,
    Leaf,
    MemoryContext,
    SlotInfo,
    UpdateContext,
    View,
    position_range,
)
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.params import RopeType

if TYPE_CHECKING:
    from kvsim.batch import BatchAllocator, Ubatch
    from kvsim.defrag import Defrag
    from kvsim.state import StateReader

Mirror = list[SlotInfo | None]
"""Per stream of a saved state, the slot that a cache took when it read it."""


class AttentionView(View):
    """What a graph sees of an attention cache: ``slot`` is where its tokens are, ``n_kv`` how many cells it
    reads."""

    cache: AttentionLeaf
    slot: SlotInfo
    ubatch: Ubatch
    n_kv: int

    @property
    def n_stream(self) -> int:
        """Streams in this ubatch: rows are grouped by stream."""
        return len(self.slot.strm)

    def reuse_key(self) -> dict[str, Any]:
        """Nothing if no block reads this cache: its inputs are not part of the graph then."""
        if not self.cache.spec.map_layer_ids:
            return {}
        key = {"n_kv": self.n_kv, "n_stream": self.n_stream}
        return {**key, "n_pos": self.cache.n_positions} if self.cache.block_indexed else key

    @abstractmethod
    def mask(self, causal: bool = True) -> Any:
        """``bool[n_tokens, n_kv]``: which cells of its stream each row may attend to."""


class AttentionLeaf(Leaf):
    """Cells for keys and values, or for the keys of an indexer.

    ``has_mask``: whether the graph masks attention over these cells by position. ``block_indexed``: an
    indexer chooses blocks of positions, so that the graph is bound to how far positions go. ``defrag``: a
    strategy by which an update moves cells. ``together``: caches whose tables are meant to be equal, this one
    among them. ``cells`` are the tables as observers see them.
    """

    spec: CacheSpec
    has_mask: bool = True
    block_indexed: bool = False
    defrag: Defrag | None = None
    together: tuple[AttentionLeaf, ...]
    cells: list[Any]
    heads: list[int]
    pending_copies: list[tuple[int, int]]

    @cached_property
    def size(self) -> int:
        """Cells per stream."""
        return self.spec.size

    @cached_property
    def n_stream(self) -> int:
        return self.spec.n_stream

    @cached_property
    def n_kv_step(self) -> int:
        """Graphs read a multiple of so many cells, so that they repeat; all, if there are fewer."""
        return max(self.spec.n_pad, 256)

    @property
    def n_positions(self) -> int:
        """Positions that a graph over blocks of positions looks at: those of all sequences, padded."""
        pad = self.n_kv_step
        end = 1 + max(self.seq_pos_max(s) for s in range(self.n_seq_max))
        return max(pad, -(-end // pad) * pad)

    @property
    def can_shift(self) -> bool:
        """False for models with more than one position per token, or with rope widths by layer."""
        return self.spec.can_shift

    def stream_of(self, seq: int) -> int:
        """The stream that holds ``seq``."""
        return seq if self.n_stream > 1 else 0

    def known_ids(self) -> int:
        """Sequence ids below this are known: all 256 for one stream, else one per stream."""
        return MAX_SEQ if self.n_stream == 1 else self.n_stream

    # -- what ends llama.cpp's process is refused, before anything has changed -----------------

    def check_seq(self, op: str, seq: int, wildcard: bool = False) -> None:
        """Refuse an id on which llama.cpp asserts."""
        if 0 <= seq < self.known_ids() or (wildcard and seq == -1):
            return
        every = " (or -1 for every sequence)" if wildcard else ""
        raise CacheUsageError(
            f"{op}: sequence {seq} is unknown to cache {self.name!r}; llama.cpp aborts. "
            f"Use an id from 0 to {self.known_ids() - 1}{every}"
        )

    def check_full_copy(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Refuse a sub-range between streams. Ends beyond the cache, and p1 = 0, count as the whole."""
        if self.stream_of(src) == self.stream_of(dst):
            return
        if 0 < p0 < self.size - 1 or 0 < p1 < self.size - 1:
            raise CacheUsageError(
                f"seq_cp({src}, {dst}, {p0}, {p1}): between streams only whole sequences can be copied; "
                f"llama.cpp aborts. Copy with p0 = p1 = -1 and remove what is not wanted from the copy"
            )

    def check_editable(self, op: str, seq: int) -> None:
        """Refuse seq_add and seq_div where llama.cpp asserts."""
        self.check_seq(op, seq)
        if self.spec.n_pos_per_embd > 1:
            raise CacheUsageError(
                f"{op}: this model has {self.spec.n_pos_per_embd} positions per token (M-RoPE), which cannot "
                f"be moved; llama.cpp aborts. Remove and re-decode the tokens instead"
            )

    def check_divisor(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Division by 0 faults in llama.cpp as soon as a cell is in range."""
        p0, p1 = position_range(p0, p1)
        if d == 0 and p0 != p1 and self.holds_in_range(seq, p0, p1):
            raise CacheUsageError(
                f"seq_div({seq}, {p0}, {p1}, 0): positions cannot be divided by 0; llama.cpp crashes. "
                f"Use a divisor of 2 or more"
            )

    def check_update(self) -> None:
        """Refuse a pending shift on which llama.cpp ends the process, before anything is taken."""
        if not self.has_shift:
            return
        if not self.can_shift:
            raise CacheUsageError(
                f"cache {self.name!r} cannot shift its keys (rope widths differ by layer); llama.cpp aborts "
                f"at the next decode. Remove and re-decode the positions instead of shifting them"
            )
        if self.spec.rope_type is RopeType.NONE:
            return
        if not self.spec.layers:
            raise CacheUsageError(
                f"cache {self.name!r} has no layer, so the shift graph is empty; llama.cpp aborts at the "
                f"next decode. Do not call seq_add or seq_div on this model"
            )
        if self.spec.is_quantized_k and not self.spec.n_rot_k:
            raise CacheUsageError(
                f"cache {self.name!r} stores quantised keys whose head size is no multiple of 64: llama.cpp "
                f"has no rotation matrix for its shift graph and crashes. Use an f16 K cache, or do not shift"
            )
        for layer in self.spec.layers:
            if layer.has_rope and layer.k.is_quantized and layer.n_rot != layer.n_embd_head_k:
                raise CacheUsageError(
                    f"cache {self.name!r} stores quantised keys of which {layer.n_rot} of {layer.n_embd_head_k} "
                    f"values rotate (layer {layer.il}): llama.cpp's CPU backend cannot write back a part and "
                    f"aborts at the next decode. Use an f16 K cache, or do not shift"
                )

    # -- preparing changes ---------------------------------------------------------------------

    def init_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool = False) -> MemoryContext:
        """One stream: the simple split; several: equal splits of consecutive sequences (section 9)."""
        if self.n_stream == 1:
            return self.place_batch(batch.split_all(lambda: batch.split_simple(n_ubatch)))
        return self.place_batch(batch.split_all(lambda: batch.split_equal(n_ubatch, sequential=True)))

    def init_update(self, optimize: bool = False) -> UpdateContext:
        """The queued stream copies and the pending shift. ``optimize`` changes nothing (b11434), unless the
        cache was given a :attr:`defrag` strategy."""
        self.check_update()
        return UpdateContext([self.take_update(optimize)])

    # -- what an implementation gives ----------------------------------------------------------

    @property
    @abstractmethod
    def has_shift(self) -> bool:
        """Whether positions moved since the keys last turned."""

    @abstractmethod
    def holds_in_range(self, seq: int, p0: int, p1: int) -> bool:
        """Whether ``seq`` has a cell at a position in [p0, p1)."""

    @abstractmethod
    def view(self, slot: SlotInfo, ubatch: Ubatch) -> AttentionView:
        """What a graph that reads ``slot`` sees, after its ubatch was placed."""

    @abstractmethod
    def restore(self, io: StateReader, seq: int, mirror: Mirror | None = None) -> Mirror:
        """Restore ``seq`` (-1: everything) and return the slots taken. ``mirror``: slots that must be taken,
        those of another cache. Raises StateError; what was removed before it stays so."""

    @abstractmethod
    def drop_sequence(self, seq: int) -> None:
        """Forget ``seq`` (-1: everything) and zero the rows that were its alone."""

    @abstractmethod
    def same_cells(self, other: AttentionLeaf) -> bool:
        """Whether the next search finds the same cells in both. False where that is too hard to tell."""

    @abstractmethod
    def plans_moves(self, optimize: bool) -> bool:
        """Whether an update would move cells."""

    @abstractmethod
    def pool_layout(self, size: int, by_order: bool) -> Pools:
        """The pools of ``size`` keys that an indexer over these cells keeps."""


class Pools(Protocol):
    """Which cells make up which pools, brought up to the cells by :meth:`refresh`."""

    @property
    def cache_safe(self) -> bool:
        """Whether pooled keys can be kept: no cell has several owners."""

    def refresh(self, cache: Any, stale: Sequence[int]) -> None:
        """Look at the cells again; ``stale[s]`` is from which position on sequence s was edited."""

    def view(self, cache: Any, slot: SlotInfo, ubatch: Ubatch, stale: Sequence[int] | None) -> AttentionView:
        """What the graph of a placed ubatch sees. ``stale`` as above, in the first ubatch of a batch only."""
