"""A recording performed on a memory with rows and a network, so that one decode can be looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.errors import KvsimError, TraceError
from kvsim.models.cached_rows import Read
from kvsim.models.context_params import ContextParams
from kvsim.models.network import CachedNetwork
from kvsim.models.params import ModelParams, SwaType
from kvsim.models.probe import ProbeNetwork
from kvsim.replay import Replayer, context_of
from kvsim.trace import Header, Step, Trace, compare_step

N_VOCAB = 128


@dataclass(frozen=True)
class Seen:
    """One block's attention in one ubatch and one stream, and the cells as they were then. ``n_swa`` is the
    window of their cache, 0 if it has none."""

    ubatch: int
    read: Read
    pos: NDArray[np.int32]
    owners: list[tuple[int, ...]]
    n_swa: int


@dataclass(frozen=True)
class Moment:
    """A decode of the recording as performed here: what it did, and all that its ubatches read."""

    step: Step
    differences: int
    seen: list[Seen]


class Walk:
    """Performs a recording up to an operation; going back begins anew.

    ``network`` None is the probe; else a model file's, with its parameters: the same operations on a memory
    of that model. Raises KvsimError if the two do not fit together.
    """

    def __init__(self, trace: Trace, network: tuple[ModelParams, CachedNetwork] | None = None) -> None:
        self.trace = trace
        self._network = network
        self.context = self._begin()

    def at(self, i: int, told: Callable[[int], object] = lambda _: None) -> Moment:
        """The operation ``i``. ``told`` hears how many are performed; if it raises, the walk can go on later.

        Raises TraceError if there is no such operation, KvsimError if it cannot be performed.
        """
        if i < self._done:
            self.context = self._begin()
        for step in self._steps:
            seen: list[Seen] = []
            network: Any = self.context.network
            network.watch = self._watcher(seen) if step.i == i else None
            try:
                computed = self._replayer.step(step.i, step.op, step.args)
            except KvsimError as error:
                raise KvsimError(f"operation {step.i} ({step.op}): {error}") from error
            self._done = step.i + 1
            if step.i == i:
                found = 0 if self._network else len(compare_step(step, computed))
                return Moment(computed, found, seen)
            told(self._done)
        raise TraceError(f"there is no operation {i}; the trace has 0 to {self._done - 1}", self.trace.path)

    def _begin(self) -> Context:
        context = _context(self.trace.header, self._network)
        self._replayer, self._steps, self._done = Replayer(context), iter(self.trace), 0
        return context

    def _watcher(self, seen: list[Seen]) -> Callable[[Read], None]:
        def watch(read: Read) -> None:
            leaf = self.context.memory.leaves()[read.cache]
            assert isinstance(leaf, KVCache)
            table = leaf.cells[read.stream]
            pos = table.pos[: read.n_cells].copy()
            owners = [tuple(table.owners(c)) for c in range(read.n_cells)]
            ubatch, spec = len(self.context.records) - 1, leaf.spec
            n_swa = 0 if spec.swa_type is SwaType.NONE else spec.n_swa
            seen.append(Seen(ubatch, read, pos, owners, n_swa))

        return watch


def _context(header: Header, network: tuple[ModelParams, CachedNetwork] | None) -> Context:
    if network is None:
        context = context_of(header, LeafFactory(data=True))
        context.network = ProbeNetwork(context.model, context.resolved, N_VOCAB)
        return context
    model, computing = network
    params = ContextParams.from_header(header.to_json())
    context = Context(model, params, N_VOCAB, computing, LeafFactory(data=True), recording=True)
    computing.flash_attn = context.resolved.flash_attn
    return context
