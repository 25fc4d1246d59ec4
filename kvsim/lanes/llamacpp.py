"""The real llama.cpp as something that performs operations, and can be looked at.

>>> lane = LlamaCpp(Path("model.gguf"), ContextParams(n_ctx=512, n_seq_max=2))   # doctest: +SKIP
>>> lane.apply(Op.decode_run(0, 0, [1, 2, 3])).ret                               # doctest: +SKIP
0

It runs in a child process. A call that ends llama.cpp raises :class:`EndedError`, with what it printed; the
lane is then over. What a picture of it shows: cells with index, position and owners, heads, used counts,
position ranges. Unobserved, so absent: accumulated shifts, pending copies, heads and links of recurrent
cells, DeepSeek-V4's compressors, and caches that never search because a sibling's slots are theirs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvsim.errors import KvsimError
from kvsim.lanes.declarations import VERSIONS
from kvsim.lanes.library import LaneError
from kvsim.lanes.session import Answer
from kvsim.logs.searches import SEVERAL, Search, read_searches
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.gguf_header import read_model
from kvsim.models.memory_spec import memory_spec
from kvsim.ops import Op
from kvsim.state import PARTIAL_ONLY
from kvsim.state_format import KVSection, RecurrentSection, SavedState, parse_state

TIMEOUT = 120
"""Seconds after which a call that does not return counts as ended."""


class EndedError(KvsimError):
    """llama.cpp ended its process: an assertion, a fault, an exception, or no answer. ``last_words``: what it
    printed."""

    def __init__(self, op: str, how: str, last_words: str) -> None:
        self.op, self.how, self.last_words = op, how, last_words
        super().__init__(f"llama.cpp ended at {op} ({how}): {last_words or 'without a word'}")


class LlamaCpp:
    """A model and a context of llama.cpp in a process of their own.

    ``lib`` names a shared library instead of the installed wheel. ``debug``: let the slot search print, which
    :meth:`snapshot` and ``placements`` need. ``faults``: decodes may ask for an abort.
    Raises LaneError if there is no library, no such model, or no such context.
    """

    def __init__(
        self,
        model: Path,
        params: ContextParams,
        lib: Path | None = None,
        debug: bool = True,
        faults: bool = True,
    ) -> None:
        self.params = params
        self.debug = debug
        self.model = read_model(model)
        self.resolved = resolve(self.model, params)
        spec = memory_spec(self.model, self.resolved)
        if spec is None:
            raise LaneError(f"{model}: {self.model.arch} keeps no memory")
        self.spec: MemorySpec = spec
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "kvsim.lanes.child", str(theirs.fileno())]
        env = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=env, stderr=self._words, stdin=subprocess.DEVNULL
        )
        theirs.close()
        try:
            about = self._call("open", lib, model, params, debug, faults)
        except KvsimError:
            self.close()
            raise
        self.version, self.n_vocab, self.n_seq_max, self.n_embd = about
        version = next(version for version in VERSIONS if version.name == self.version)
        self.layout, self.ids_reversed = version.layout, version.ids_reversed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    @property
    def is_alive(self) -> bool:
        """Whether llama.cpp's process runs."""
        return self._process.poll() is None

    def renew(self) -> None:
        """A fresh context in the same process; saved states are forgotten."""
        self._call("renew")

    def _call(self, method: str, *args: Any) -> Any:
        self._ask(method, *args)
        return self._answer()

    def _ask(self, method: str, *args: Any) -> None:
        self._asked = str(Op(args[0], args[1])) if method == "perform" else method
        with suppress(BrokenPipeError, ConnectionResetError):  # ended: told when the answer is awaited
            self._pipe.send((method, args))

    def _answer(self) -> Any:
        what = self._asked
        try:
            if not self._pipe.poll(TIMEOUT):
                self._process.kill()
                raise EndedError(what, f"no answer in {TIMEOUT} s", self._last_words())
            outcome, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            code = self._process.wait()
            raise EndedError(
                what, f"signal {-code}" if code < 0 else f"exit {code}", self._last_words()
            ) from None
        if outcome == "refused":
            raise LaneError(value)
        return value

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = [line.strip() for line in self._words if line.strip()]
        telling = [line for line in lines if "ASSERT" in line or "abort" in line.lower() or "what()" in line]
        return "; ".join((telling or lines)[-2:])

    # -- operations ----------------------------------------------------------------------------

    def apply(self, op: Op, logits: bool = False) -> Answer:
        """Perform an operation. Raises EndedError if it ends llama.cpp."""
        self.send(op, logits)
        return self.receive()

    def send(self, op: Op, logits: bool = False) -> None:
        """Begin an operation; :meth:`receive` waits for it."""
        self._ask("perform", op.op, op.args, logits)

    def receive(self) -> Answer:
        """The answer to the operation that was sent. Raises EndedError if it ended llama.cpp."""
        answer: Answer = self._answer()
        return answer

    def attempt(self, op: Op) -> Answer:
        """What an operation would answer now, tried in a copy of the process: nothing changes. Raises
        EndedError if it would end llama.cpp; the lane goes on."""
        return self._attempt(op, do=False)

    def apply_if_it_survives(self, op: Op) -> Answer:
        """Perform an operation after it was tried in a copy, with logits. Raises EndedError if it would end
        llama.cpp; the lane goes on."""
        return self._attempt(op, do=True)

    def _attempt(self, op: Op, do: bool) -> Answer:
        self._words.seek(0)
        self._words.truncate()
        answer, how = self._call("attempt", op.op, op.args, do, do)
        if answer is None:
            raise EndedError(str(op), how, self._last_words())
        found: Answer = answer
        return found

    def state(self, seq: int | None = None, flags: int = 0) -> SavedState:
        """The whole state, or that of a sequence, taken apart."""
        partial = bool(flags & PARTIAL_ONLY)
        return parse_state(self.state_bytes(seq, flags), self.spec, partial, layout=self.layout)

    def state_bytes(self, seq: int | None = None, flags: int = 0) -> bytes:
        """The whole state, or that of a sequence, as llama.cpp writes it."""
        return bytes(self._call("state", seq, flags))

    def saved(self, slot: int) -> bytes:
        """The state that was saved into a slot."""
        return bytes(self._call("saved_state", slot))

    def restore(self, data: bytes) -> int:
        """Restore a whole state; the bytes read, 0 if refused."""
        return int(self._call("restore", data))

    def can_shift(self) -> bool:
        """Whether the memory says that positions can be moved."""
        return bool(self._call("can_shift"))

    def clock(self, ops: Sequence[Op]) -> list[float]:
        """Perform operations; the seconds that each took inside llama.cpp."""
        return list(self._call("clock", [(op.op, op.args) for op in ops]))

    # -- looking at it -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What can be seen now: ``caches`` by name, per stream ``head``, ``used`` and ``cells`` as ``[index,
        position, [owners]]``; ``recurrent`` cells as ``[position, [owners]]``; ``pos`` by sequence.

        Of a shared cell, owners beyond n_seq_max are not seen; owners that are not seen at all are None. So
        is a stream that was not seen: an earlier cache is so full that the search stopped there.
        """
        return self.look()[0]

    def look(self) -> tuple[dict[str, Any], SavedState | None]:
        """As :meth:`snapshot`, and the whole state (None if it cannot be saved)."""
        n_stream = max((cache.n_stream for cache in self.spec.caches.values()), default=1)
        spans, searches, data = self._call("show", n_stream)
        state = parse_state(data, self.spec, layout=self.layout) if data else None
        sections = state.sections if state is not None else {}
        seen: dict[str, dict[int, Search]] = {}
        for found, log in searches:
            for name, search in searches_by_cache(read_searches(log), self.spec, found).items():
                seen.setdefault(name, {})[search.stream] = search
        caches: dict[str, Any] = {}
        for name, cache in self.spec.caches.items():
            section = sections.get(name)
            logs = seen.get(name, {})
            caches[name] = [_stream(logs.get(s), section, s) for s in range(cache.n_stream)]
        recurrent = sections.get("recurrent")
        cells = None
        if isinstance(recurrent, RecurrentSection):
            cells = [[cell.pos, list(cell.owners)] for cell in recurrent.cells]
        pos = {str(seq): list(span) for seq, span in enumerate(spans)}
        return {"caches": caches, "recurrent": cells, "pos": pos}, state


def searches_by_cache(logs: list[Search], spec: MemorySpec, found: bool) -> dict[str, Search]:
    """Which cache printed what when one token was placed: each searches once, in its order.

    If no slot was ``found``, the caches behind the full one have not searched, and the first ones search
    again: only the first print is certain.
    """
    certain = logs if found else logs[:1]
    return dict(zip(searching_caches(spec), certain, strict=False))


def searching_caches(spec: MemorySpec) -> list[str]:
    """The caches that search for slots; the others use those of a sibling, or compress what it holds."""
    followers = {"hybrid_idx": {"idx"}, "dsv4": {"csa", "hca", "lid"}}.get(spec.kind, set())
    return [name for name in spec.caches if name not in followers]


def _stream(log: Search | None, section: Any, stream: int) -> dict[str, Any] | None:
    cells = log.marks() if log is not None else None
    if log is None or cells is None:
        return None
    saved: list[Any] = [None] * len(cells)
    if isinstance(section, KVSection):
        records = section.streams[stream].cells
        if [cell.pos for cell in records] == [pos for pos, _ in cells.values()]:
            saved = [list(cell.owners) for cell in records]
    rows = [
        [i, pos, saved_owners if owner == SEVERAL else [owner]]
        for (i, (pos, owner)), saved_owners in zip(cells.items(), saved, strict=True)
    ]
    return {"head": log.head, "used": log.used, "cells": rows}
