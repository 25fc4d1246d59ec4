"""The two interfaces of the family: a memory, and the context of one prepared change to it.

Names are llama.cpp's without the prefix (``src/llama-memory.h``). A *leaf* holds cells itself; a
*composite* (``caches/composite.py``) holds parts and a policy. All changes go through a
:class:`MemoryContext`: ``init_batch`` and ``init_update`` only prepare, ``apply`` changes.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError

if TYPE_CHECKING:
    from kvsim.batch import BatchAllocator, Ubatch
    from kvsim.events import Observer
    from kvsim.state import StateReader, StateWriter

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

MAX_SEQ = 256
"""Most sequence ids any cache knows (``LLAMA_MAX_SEQ``)."""

POS_INF = 2**31 - 1
"""What ``p1 < 0`` means: the end of the sequence."""


def position_range(p0: int, p1: int) -> tuple[int, int]:
    """Clamp a half-open range the way every sequence operation does: p0 < 0 is 0, p1 < 0 infinity."""
    return max(p0, 0), POS_INF if p1 < 0 else p1


def moved_position(pos: int, delta: int) -> int:
    """``pos + delta`` in the 32 bits that llama.cpp holds positions in: past the end it goes on below 0."""
    return (pos + delta + 2**31) % 2**32 - 2**31


def check_delta(delta: int) -> None:
    """Refuse a distance that llama.cpp's ``llama_pos`` cannot hold."""
    if not -(2**31) <= delta < 2**31:
        raise CacheUsageError(
            f"seq_add: positions cannot move by {delta}, it does not fit into 32 bits: use a smaller distance"
        )


class MemoryStatus(Enum):
    """Outcome of preparing or applying a change (``llama_memory_status``)."""

    SUCCESS = "success"
    NO_UPDATE = "no update"
    FAILED_PREPARE = "failed to prepare"
    FAILED_COMPUTE = "failed to compute"

    @property
    def failed(self) -> bool:
        return self in (MemoryStatus.FAILED_PREPARE, MemoryStatus.FAILED_COMPUTE)


def combine_status(a: MemoryStatus, b: MemoryStatus) -> MemoryStatus:
    """Status of a pair: the first failure, else SUCCESS if either has work (decode.md 1)."""
    for status in (a, b):
        if status.failed:
            return status
    return MemoryStatus.SUCCESS if MemoryStatus.SUCCESS in (a, b) else MemoryStatus.NO_UPDATE


@dataclass(frozen=True)
class SlotInfo:
    """Where a ubatch goes: for each part, its stream and the cells of its tokens in order."""

    strm: tuple[int, ...]
    idxs: tuple[IntArray, ...]

    @property
    def n_cells(self) -> int:
        return sum(len(part) for part in self.idxs)

    def part(self, i: int) -> SlotInfo:
        """The slot of the i-th stream alone."""
        return SlotInfo((self.strm[i],), (self.idxs[i],))

    def to_json(self) -> dict[str, Any]:
        return {"strm": list(self.strm), "idxs": [part.tolist() for part in self.idxs]}


class PrepareFailure(NamedTuple):
    """Why a batch found no place, in the four numbers an operator needs.

    ``asked`` tokens of the ubatch that failed, ``free`` empty cells, ``reclaimable`` cells that the
    window has passed, ``largest_hole`` the longest run of free or reclaimable cells, all counted with
    the earlier ubatches placed. ``found`` cells were there for it; ``ubatch`` is its index of
    ``n_ubatches``; ``cache`` and ``stream`` say which part refused.
    """

    cache: str
    stream: int
    ubatch: int
    asked: int
    free: int
    reclaimable: int
    largest_hole: int
    found: int = 0
    n_ubatches: int = 1

    def __str__(self) -> str:
        return (
            f"{self.cache} (stream {self.stream}) has no room for ubatch {self.ubatch + 1} of "
            f"{self.n_ubatches}: {self.asked} cells asked for, {self.free} free, {self.reclaimable} "
            f"reclaimable by the window, largest hole {self.largest_hole}"
        )


class View(ABC):
    """What the graph of one ubatch sees of one leaf, valid from ``apply`` to ``next``."""

    def undone(self) -> None:
        """The graph did not run, and its ubatch is about to be rolled back."""

    def set_inputs(self) -> None:
        """Read what the graph reads before it runs; the recurrent part consumes a rollback here."""

    @abstractmethod
    def reuse_key(self) -> dict[str, Any]:
        """The shapes and constants baked into a graph; a graph is reused only if they are equal."""

    @abstractmethod
    def describe(self, name: str, record: dict[str, Any]) -> None:
        """Add this view to the ubatch's record in the trace format (slots, mask, recurrent, plan)."""


class MemoryContext(ABC):
    """One prepared change: a batch to place, or an update to run."""

    status: MemoryStatus
    failure: PrepareFailure | None = None

    @abstractmethod
    def apply(self) -> bool:
        """Make the change of the current ubatch (or the update). The only place where memory changes."""

    def next(self) -> bool:
        """Go to the next ubatch. False when there is none."""
        return False

    @property
    def ubatch(self) -> Ubatch:
        raise LookupError("this context has no ubatches")

    @property
    def views(self) -> Mapping[str, View]:
        """Per leaf name, what the graph of the current ubatch sees. Valid after :meth:`apply`."""
        return {}


@dataclass(frozen=True)
class Snapshot:
    """The canonical picture of a memory's metadata: the ``after`` field of the trace format.

    ``caches`` maps a leaf's name to one record per stream (head, used, has_shift, cells);
    ``extra`` holds the optional keys (``pending_copies``, ``rs_idx``, ``idx_stale``).
    """

    caches: dict[str, list[dict[str, Any]]]
    recurrent: dict[str, Any] | None
    pos: dict[str, list[int]]
    extra: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"caches": self.caches, "recurrent": self.recurrent, "pos": self.pos, **self.extra}


class Memory(ABC):
    """A memory of the family: leaf or composite.

    Sequence operations take positions as half-open ranges; ``p0 < 0`` is 0, ``p1 < 0`` is infinity.
    What llama.cpp asserts on raises :class:`~kvsim.errors.CacheUsageError` before anything changes.
    """

    kind: str
    n_seq_max: int
    observer: Observer | None = None
    restore_may_end: ClassVar[bool] = False
    """Whether restoring a damaged state can end llama.cpp after it has changed something."""

    # -- preparing changes ---------------------------------------------------------------------

    @abstractmethod
    def init_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool = False) -> MemoryContext:
        """Split the batch and find slots for every ubatch; nothing is placed yet.

        Returns a context whose status is SUCCESS, or FAILED_PREPARE with ``failure`` set.
        """

    @abstractmethod
    def init_update(self, optimize: bool = False) -> MemoryContext:
        """Collect pending work (stream copies, K-shift, state drops); NO_UPDATE if there is none."""

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        """Raise CacheUsageError for a valid batch on which llama.cpp would end, before anything changes."""

    def copy_metadata(self) -> Self:
        """A copy to try things on: the cells, without the rows behind them and without observer."""
        leaves = self.leaves().values()
        left_out = [self.observer, *(leaf.observer for leaf in leaves), *(leaf.store for leaf in leaves)]
        constants = [leaf.spec for leaf in leaves if hasattr(leaf, "spec")]
        memo = {**{id(part): None for part in left_out}, **{id(spec): spec for spec in constants}}
        return copy.deepcopy(self, memo)

    def init_full(self) -> None:
        """Called where llama.cpp makes a context over the whole memory to reserve its graph."""

    # -- sequence operations -------------------------------------------------------------------

    @abstractmethod
    def clear(self, data: bool) -> None:
        """Forget everything; zero the stored rows too if ``data``."""

    @abstractmethod
    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove positions [p0, p1) of ``seq`` (-1: every sequence). False: refused, and nothing changed."""

    @abstractmethod
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` see the positions [p0, p1) of ``src``."""

    @abstractmethod
    def seq_keep(self, seq: int) -> None:
        """Forget every sequence but ``seq``."""

    @abstractmethod
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions [p0, p1) of ``seq`` by ``delta``; the keys follow at the next update."""

    @abstractmethod
    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide positions [p0, p1) of ``seq`` by ``d``."""

    @abstractmethod
    def seq_pos_min(self, seq: int) -> int:
        """Smallest position of ``seq``, -1 if it holds none."""

    @abstractmethod
    def seq_pos_max(self, seq: int) -> int:
        """Largest position of ``seq``, -1 if it holds none."""

    def seq_range(self, seq: int) -> tuple[int, int]:
        """:meth:`seq_pos_min` and :meth:`seq_pos_max`."""
        return self.seq_pos_min(seq), self.seq_pos_max(seq)

    @property
    @abstractmethod
    def can_shift(self) -> bool:
        """Whether the memory says that positions may be shifted."""

    # -- saved states --------------------------------------------------------------------------

    @abstractmethod
    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        """Write the state of ``seq`` (-1: everything) in llama.cpp's byte layout (spec/state.md)."""

    @abstractmethod
    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        """Restore into ``seq`` (-1: everything). Raises StateError, leaving what llama.cpp leaves."""

    # -- looking at it -------------------------------------------------------------------------

    @abstractmethod
    def leaves(self) -> dict[str, Leaf]:
        """The leaves by name, in the order of the trace header's ``caches``."""

    @abstractmethod
    def memory_breakdown(self) -> dict[str, int]:
        """Bytes of tensor data by part."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise IntegrityError if an invariant is broken."""

    def snapshot(self) -> Snapshot:
        """The metadata as the trace format has it."""
        caches: dict[str, list[dict[str, Any]]] = {}
        extra: dict[str, Any] = {}
        recurrent: dict[str, Any] | None = None
        for name, leaf in self.leaves().items():
            recurrent = leaf.snapshot_into(name, caches, extra) or recurrent
        self._snapshot_extra(extra)
        pos = {str(s): list(self.seq_range(s)) for s in range(self.n_seq_max)}
        return Snapshot(caches, recurrent, pos, extra)

    def _snapshot_extra(self, extra: dict[str, Any]) -> None:
        """Add what belongs to the composite as a whole (``rs_idx``, ``idx_stale``)."""

    def observe(self, observer: Observer | None) -> None:
        """Attach an observer (None detaches) here and on every leaf."""
        self.observer = observer
        for leaf in self.leaves().values():
            leaf.observer = observer


class Leaf(Memory):
    """A memory that holds cells itself.

    Two-phase protocol: ``prepare`` looks for the slots of all ubatches and leaves the cells as they
    were (but for the traces llama.cpp leaves too); ``apply_ubatch`` places one of them.
    """

    name: str = ""
    store: Any = None
    """The rows behind the cells; None if only metadata is kept."""
    last_failure: PrepareFailure | None = None

    def check_update(self) -> None:
        """Raise CacheUsageError if the pending work would end llama.cpp."""

    def take_update(self, optimize: bool = False) -> Callable[[], None] | None:
        """Take the pending work out of the leaf, to be run by an update; None if there is none. ``optimize``
        asks for defragmentation, where a leaf is set up to do it."""
        return None

    def place_batch(self, ubatches: Sequence[Ubatch] | None) -> MemoryContext:
        """Look for the slots of a split batch (None: it could not be split), as a leaf that stands alone does."""
        if ubatches is None:
            return FailedContext(None)
        slots = self.prepare(ubatches)
        if slots is None:
            return FailedContext(self.last_failure)
        return BatchContext(ubatches, {self.name: self}, {self.name: slots})

    @abstractmethod
    def prepare(self, ubatches: Sequence[Ubatch]) -> list[Any] | None:
        """Slots of all ubatches, or None with ``last_failure`` set."""

    @staticmethod
    def prepare_all(
        leaves: Sequence[Leaf], ubatches: Sequence[Ubatch]
    ) -> list[list[Any]] | PrepareFailure | None:
        """Slots of all ubatches in every leaf, in order, or why the first one refused: those before it have
        looked, those after it have not. A composite asks its first leaf, for leaves that look together."""
        slots = []
        for leaf in leaves:
            found = leaf.prepare(ubatches)
            if found is None:
                return leaf.last_failure
            slots.append(found)
        return slots

    @abstractmethod
    def apply_ubatch(self, slot: Any, ubatch: Ubatch) -> View:
        """Place one ubatch into its slot and return what its graph sees."""

    @abstractmethod
    def snapshot_into(
        self, name: str, caches: dict[str, list[dict[str, Any]]], extra: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Add this leaf to a snapshot; a recurrent leaf returns its record instead."""

    def leaves(self) -> dict[str, Leaf]:
        return {self.name: self}


class BatchContext(MemoryContext):
    """A prepared batch: the ubatches, and for each leaf the slots found for them."""

    def __init__(
        self,
        ubatches: Sequence[Ubatch],
        leaves: Mapping[str, Leaf],
        slots: Mapping[str, Sequence[Any]],
    ) -> None:
        self.status = MemoryStatus.SUCCESS
        self.ubatches = ubatches
        self.i = 0
        self._leaves = leaves
        self._slots = slots
        self._views: dict[str, View] = {}

    @property
    def ubatch(self) -> Ubatch:
        return self.ubatches[self.i]

    @property
    def views(self) -> Mapping[str, View]:
        return self._views

    def apply(self) -> bool:
        self._views = {
            name: leaf.apply_ubatch(self._slots[name][self.i], self.ubatch)
            for name, leaf in self._leaves.items()
        }
        return True

    def next(self) -> bool:
        self.i += 1
        self._views = {}
        return self.i < len(self.ubatches)

    def __iter__(self) -> Iterator[Ubatch]:
        return iter(self.ubatches)


class FailedContext(MemoryContext):
    """A batch that found no place."""

    def __init__(self, failure: PrepareFailure | None) -> None:
        self.status = MemoryStatus.FAILED_PREPARE
        self.failure = failure

    def apply(self) -> bool:
        return False


class UpdateContext(MemoryContext):
    """Pending work of one or more leaves; ``works`` are called in order by :meth:`apply`."""

    def __init__(self, works: Sequence[Callable[[], None] | None]) -> None:
        self.works = [work for work in works if work is not None]
        self.status = MemoryStatus.SUCCESS if self.works else MemoryStatus.NO_UPDATE

    def apply(self) -> bool:
        for work in self.works:
            work()
        return True
