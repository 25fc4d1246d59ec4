"""What composites ask of an attention cache, whoever implements it.

:class:`kvsim.caches.kv.KVCache` is the numpy implementation; others (the torch engine's) serve the same
composites by implementing this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvsim.memory import Leaf, SlotInfo, View
from kvsim.models.cache_spec import CacheSpec

if TYPE_CHECKING:
    from kvsim.batch import Ubatch
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

    @property
    def size(self) -> int:
        """Cells per stream."""
        return self.spec.size

    @property
    def n_stream(self) -> int:
        return self.spec.n_stream

    @property
    def n_positions(self) -> int:
        """Positions that a graph over blocks of positions looks at: those of all sequences, padded."""
        pad = max(self.spec.n_pad, 256)
        end = 1 + max(self.seq_pos_max(s) for s in range(self.n_seq_max))
        return max(pad, -(-end // pad) * pad)

    @abstractmethod
    def stream_of(self, seq: int) -> int:
        """The stream that holds ``seq``."""

    @abstractmethod
    def known_ids(self) -> int:
        """Sequence ids below this are known."""

    @abstractmethod
    def check_editable(self, op: str, seq: int) -> None:
        """Raise CacheUsageError where llama.cpp asserts that positions cannot be changed."""

    @abstractmethod
    def check_full_copy(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Raise CacheUsageError for a part of a sequence that is to be copied between streams."""

    @abstractmethod
    def check_divisor(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Raise CacheUsageError for a division of positions by 0."""

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
