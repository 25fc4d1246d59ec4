"""A trace of an interval of a simulation, to be looked at in the player.

It begins with the picture at that moment, which a replay takes up, and carries the states of before that are
restored in it. Every operation carries the whole picture of the cells: keep intervals short, or caches small.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from kvsim.batch import Batch
from kvsim.context import Context, Fault
from kvsim.ops import Op
from kvsim.trace import Step, TraceWriter
from kvsim.trace.describe import header_of
from kvsim.workload.slot_server import SlotServer


class IntervalRecorder:
    """Writes the operations on a server's context to ``path``, ``most`` of them from time ``start`` on.

    Call :meth:`look` before every round. While it records, each round is a decode of its own. Close it, or
    use it in a ``with`` statement; without a single operation no file is left.
    """

    def __init__(
        self, server: SlotServer, path: str | os.PathLike[str], start: float, most: int = 200, name: str = ""
    ) -> None:
        self.context: Context = server.context
        self._decoder = server.decoder
        self.start = start
        self.most = most
        self.n_written = 0
        self._path = path
        self._header = header_of(
            server.config.model, server.config.params, name=name, source="kvsim simulate", interval=True
        )
        self._writer: TraceWriter | None = None
        self._inside = False
        self._slots: dict[bytes, int] = {}
        self._n_slots = 0
        self._done = False

    def look(self, clock: float) -> None:
        """Begin once ``start`` has come."""
        if self._writer is None and not self._done and clock >= self.start:
            self._begin()

    def close(self) -> None:
        """Stop recording."""
        self._done = True
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self.context.recording = False
        for owner, name in self._watched():
            del owner.__dict__[name]

    def __enter__(self) -> IntervalRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._decoder.settle()
        self._writer = TraceWriter(self._path, self._header)
        self._write("init", {}, None)
        self.context.recording = True
        watchers: dict[str, Callable[..., Any]] = {
            "decode": self._decode, "seq_rm": self._seq_rm, "seq_add": self._seq_add,
            "state_seq_get": self._state_get, "state_seq_set": self._state_set,
        }  # fmt: skip
        for owner, name in self._watched():
            owner.__dict__[name] = self._watcher(getattr(owner, name), watchers[name])

    def _watched(self) -> list[tuple[Any, str]]:
        context, memory = self.context, self.context.memory
        of_context = [(context, name) for name in ("decode", "state_seq_get", "state_seq_set")]
        return [*of_context, (memory, "seq_rm"), (memory, "seq_add")]

    def _watcher(self, do: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
        """``do``, and a line about it, unless it is a part of another operation."""

        def watched(*args: Any) -> Any:
            if self._inside:
                return do(*args)
            self._inside = True
            try:
                result = do(*args)
            finally:
                self._inside = False
            tell(result, *args)
            return result

        return watched

    # -- one line per operation ----------------------------------------------------------------

    def _decode(self, code: int, batch: Batch, fault: Fault | None = None) -> None:
        assert batch.tokens is not None
        assert batch.pos is not None
        assert batch.seq_ids is not None
        op = Op.decode(batch.tokens, batch.pos, batch.seq_ids, [int(x) for x in batch.output or ()])
        self._write(op.op, op.args, code, [record.json for record in self.context.records])

    def _seq_rm(self, done: bool, seq: int, p0: int, p1: int) -> None:
        self._write("seq_rm", {"seq": seq, "p0": p0, "p1": p1}, int(done))

    def _seq_add(self, _: None, seq: int, p0: int, p1: int, delta: int) -> None:
        self._write("seq_add", {"seq": seq, "p0": p0, "p1": p1, "delta": delta}, None)

    def _state_get(self, data: bytes, seq: int, flags: int = 0) -> None:
        self._slots[data] = self._n_slots
        args = {"seq": seq, "flags": flags, "slot": self._n_slots}
        self._n_slots += 1
        self._write("state_seq_get", args, len(data), extra={"size": len(data)})

    def _state_set(self, n_bytes: int, data: bytes, seq: int, flags: int = 0) -> None:
        args = {"seq": seq, "flags": flags}
        if data in self._slots:
            self._write("state_seq_set", {**args, "slot": self._slots[data]}, n_bytes)
            return
        self._slots[data] = self._n_slots  # it was saved before the interval
        self._n_slots += 1
        carried = {"slot": self._slots[data], "data": b64encode(data).decode()}
        self._write("state_seq_set", {**args, **carried}, n_bytes)

    def _write(
        self,
        op: str,
        args: dict[str, Any],
        ret: int | None,
        ubatches: list[dict[str, Any]] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        assert self._writer is not None
        after = self.context.memory.snapshot().to_json()
        self._writer.write(Step(self.n_written, op, args, ret, ubatches, after, extra or {}))
        self.n_written += 1
        if self.n_written > self.most:
            self.close()
