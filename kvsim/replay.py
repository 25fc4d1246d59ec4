"""Replaying a recording: the same operations on our own memory, in the recording's own format."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.narrow import NarrowLeaves
from kvsim.caches.take_up import take_up
from kvsim.context import Context
from kvsim.defrag import Defrag, Strategy
from kvsim.errors import CacheUsageError, KvsimError, TraceError
from kvsim.events import Observer
from kvsim.models.context_params import ContextParams
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams
from kvsim.ops import fault_of
from kvsim.trace.agreement import check_agreement
from kvsim.trace.header import Header
from kvsim.trace.read import Step, Trace
from kvsim.trace.unseen import as_seen

N_VOCAB = 128
"""Vocabulary of every recorded model; the header does not say it."""


def context_of(header: Header, leaves: LeafFactory | None = None) -> Context:
    """A context like the recorded one. Raises TraceError if the header contradicts itself."""
    if "log" in header.config:
        raise TraceError("an imported log shows what llama.cpp had, not what was done: it cannot be replayed")
    line = header.to_json()
    try:
        model, params = ModelParams.from_header(line), ContextParams.from_header(line)
        made = leaves or (NarrowLeaves() if header.interval else LeafFactory())
        made = replace(made, sizes={**header.made_smaller, **made.sizes})
        n_vocab = None if header.interval else N_VOCAB  # a simulation's tokens are made up
        context = Context(model, params, n_vocab, leaves=made, recording=True)
    except TraceError:
        raise
    except KvsimError as err:
        raise TraceError(f"the header describes a context that cannot be: {err}") from err
    spec = memory_spec(model, context.resolved)
    if spec is None:
        raise TraceError(f"{header.arch} keeps no memory, so nothing can be replayed")
    check_agreement(header, context.resolved, spec)
    return context


class Replayer:
    """Performs operations of the trace format on a context; saved states are kept by slot."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.saved: dict[int, bytes] = {}
        self.moves: dict[str, list[list[int]]] = {}

    def step(self, i: int, op: str, args: dict[str, Any]) -> Step:
        """Perform one operation and return it as line ``i`` of a trace: all that came of it."""
        ret = self.apply(op, args)
        ubatches = [record.json for record in self.context.records] if op == "decode" else None
        extra: dict[str, Any] = {}
        if op in ("state_seq_get", "state_get"):
            extra = {"size": ret}
        elif op == "defrag":
            extra = {"moves": self.moves}
        return Step(i, op, args, ret, ubatches, self.context.memory.snapshot().to_json(), extra)

    def apply(self, op: str, args: dict[str, Any]) -> int | None:
        """Perform one operation and return what the recording has under ``ret``."""
        memory = self.context.memory
        if op == "decode":
            return self.decode(args)
        if op == "seq_rm":
            return int(memory.seq_rm(args["seq"], args["p0"], args["p1"]))
        if op == "seq_cp":
            memory.seq_cp(args["src"], args["dst"], args["p0"], args["p1"])
        elif op == "seq_keep":
            memory.seq_keep(args["seq"])
        elif op == "seq_add":
            memory.seq_add(args["seq"], args["p0"], args["p1"], args["delta"])
        elif op == "seq_div":
            memory.seq_div(args["seq"], args["p0"], args["p1"], args["d"])
        elif op == "clear":
            memory.clear(args["data"])
        elif op == "defrag":
            self.moves = defragmented(self.context, args["strategy"])
        elif op.startswith("state_"):
            return self.state(op, args)
        elif op == "rows":
            return 0
        elif op != "init":
            raise TraceError(f"unknown operation {op!r}")
        return None

    def decode(self, args: dict[str, Any]) -> int:
        tokens, seq, out = args["tokens"], args.get("seq"), args.get("out")
        embd = np.zeros((len(seq or ()), 0), np.float32) if tokens is None else None
        batch = Batch(tokens=tokens, embd=embd, pos=args.get("pos"), seq_ids=seq, output=out)
        return self.context.decode(batch, fault_of(args))

    def state(self, op: str, args: dict[str, Any]) -> int:
        context, slot = self.context, args["slot"]
        if op == "state_seq_get":
            self.saved[slot] = context.state_seq_get(args["seq"], args["flags"])
            return len(self.saved[slot])
        if op == "state_get":
            self.saved[slot] = context.state_get()
            return len(self.saved[slot])
        if "data" in args:
            self.saved[slot] = base64.b64decode(args["data"])
        data = _damaged(self.saved[slot], args)
        if op == "state_seq_set":
            return context.state_seq_set(data, args["seq"], args["flags"])
        return context.state_set(data)


def _damaged(data: bytes, args: dict[str, Any]) -> bytes:
    """The bytes a recording fed back: cut short, or with the first byte changed."""
    if "xor0" in args and data:
        data = bytes([data[0] ^ args["xor0"]]) + data[1:]
    return data[: args["truncate"]] if "truncate" in args else data


def replay(trace: Trace, leaves: LeafFactory | None = None) -> Iterator[Step]:
    """Every recorded operation, computed by kvsim: the same fields, the whole picture after each.

    Memory does not grow with the trace, but for the states it saves. Raises TraceError at an operation on
    which llama.cpp would have ended, naming it.
    """
    for _, computed in replay_beside(trace, leaves):
        yield computed


def replay_beside(
    trace: Trace, leaves: LeafFactory | None = None, observer: Observer | None = None
) -> Iterator[tuple[Step, Step]]:
    """As :func:`replay`, each computed step after the recorded one; the trace is read once.

    ``observer`` is told the events of a step before the step is given. Where the recording is of the live
    library, the computed step has only what the recorded one can show.
    """
    try:
        replayer = Replayer(context_of(trace.header, leaves))
    except TraceError as err:
        raise TraceError(err.reason, trace.path, 1) from err
    replayer.context.observe(observer)
    for recorded in trace:
        try:
            if trace.header.interval and recorded.op == "init":
                take_up(replayer.context.memory, recorded.after)
            computed = replayer.step(recorded.i, recorded.op, recorded.args)
        except CacheUsageError as err:
            reason = f"operation {recorded.i} ({recorded.op}): {err}"
            raise TraceError(reason, trace.path, recorded.i + 2) from err
        yield recorded, as_seen(trace.header, recorded, computed)


def defragmented(context: Context, strategy: Strategy) -> dict[str, list[list[int]]]:
    """Defragment every attention cache of a context once, after its pending updates.

    Returns the moves by cache, ``[stream, from, to, cells]`` each. The habits of the caches stay as they are.
    """
    caches = {name: leaf for name, leaf in context.memory.leaves().items() if isinstance(leaf, KVCache)}
    habits = {name: cache.defrag for name, cache in caches.items()}
    for cache in caches.values():
        cache.defrag, cache.last_defrag = Defrag(strategy), ()
    try:
        context.update(optimize=True)
    finally:
        for name, cache in caches.items():
            cache.defrag = habits[name]
    return {
        name: [[report.stream, m.src, m.dst, m.length] for report in cache.last_defrag for m in report.moves]
        for name, cache in caches.items()
    }
