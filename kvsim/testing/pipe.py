"""Subjects in any language: a program that is told operations on stdin and answers on stdout, in JSON lines.

The protocol is docs/protocol.md. A program is never trusted: it has so long to answer, may say so much, and
whatever else it does (dying, hanging, talking nonsense, flooding) is a finding, not an end of the campaign.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.models.context_params import resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.subject import (
    OPERATIONS,
    Observes,
    Picture,
    Rows,
    Subject,
    SubjectError,
    UnsupportedError,
)
from kvsim.trace.describe import header_of

VERSION = 1
LIMIT = 1 << 22
"""Most bytes of one answer."""

ANSWER_WITHIN = 5.0
"""Seconds that a program has for an answer, unless told otherwise."""

STDERR_KEPT = 20
"""Last lines of the program's stderr that a message shows."""


class PipeSubject(Subject):
    """The program ``command``. ``timeout``: seconds it has for an answer."""

    def __init__(self, command: Sequence[str], timeout: float = ANSWER_WITHIN) -> None:
        self.command = list(command)
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._picture: Picture = {}
        self._answer: dict[str, Any] = {}
        self._greet()

    # -- the protocol --------------------------------------------------------------------------

    def _greet(self) -> None:
        """Start the program and ask what it is."""
        self._start()
        answer = self._ask({"kvsim": VERSION, "op": "hello"})
        if answer.get("kvsim") != VERSION:
            self.close()
            raise SubjectError("garbage", f"it speaks version {answer.get('kvsim')!r}, not {VERSION}")
        self.name = _said(answer.get("name", self.command[0]))
        try:
            self.observes = Observes(answer.get("observes"))
            self.memories = _some_of("memories", answer, CACHES)
            self.operations = _some_of("operations", answer, OPERATIONS)
        except ValueError as error:
            self.close()
            raise SubjectError("garbage", f"its greeting {_short(answer)}: {error}") from error

    def create(self, config: Config) -> None:
        if self._process is None:
            self._greet()
        self._i = 0
        answer = self._ask({"i": 0, "op": "create", "args": setup(config)})
        if "unsupported" in answer:
            raise UnsupportedError(f"{self.name}: {_said(answer['unsupported'])}")
        self._take(answer)

    def apply(self, op: Op) -> int | None:
        self._i += 1
        answer = self._ask({"i": self._i, **op.to_json()})
        self._take(answer)
        if "refused" in answer:
            raise CacheUsageError(f"{self.name}: {_said(answer['refused'])}")
        ret = answer.get("ret")
        if ret is not None and (type(ret) is not int or not -(1 << 63) <= ret < 1 << 63):
            raise SubjectError("garbage", f'its "ret" is no integer of 64 bits: {_short(ret)}')
        return ret

    def _take(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        after = answer.get("after")
        if answer.get("i") != self._i or not isinstance(after, dict):
            raise SubjectError("garbage", f'its answer {_short(answer)} lacks "i": {self._i} or "after"')
        self._picture = after

    def snapshot(self) -> Picture:
        return self._picture

    # -- what a program may tell besides -------------------------------------------------------

    def read_rows(self) -> Rows | None:
        rows = self._answer.get("rows")
        if rows is None:
            return None
        if not isinstance(rows, dict):
            raise SubjectError("garbage", f'its "rows" are no object: {_short(rows)}')
        return {where: _numbers("rows", values) for where, values in rows.items()}

    def logits(self) -> NDArray[np.float32] | None:
        logits = self._answer.get("logits")
        return None if logits is None else _numbers("logits", logits)

    def state(self) -> bytes | None:
        state = self._answer.get("state")
        try:
            return None if state is None else base64.b64decode(state, validate=True)
        except (ValueError, TypeError) as error:
            raise SubjectError("garbage", f'its "state" is no base64: {error}') from error

    # -- the process ---------------------------------------------------------------------------

    def _start(self) -> None:
        self._rest = b""
        self._said: deque[str] = deque(maxlen=STDERR_KEPT)
        try:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SubjectError("died", f"{self.command[0]} cannot be started: {error.strerror}") from error
        stdin, stderr = self._process.stdin, self._process.stderr
        assert stdin is not None
        assert stderr is not None
        os.set_blocking(stdin.fileno(), False)
        self._listener = threading.Thread(target=_keep, args=(stderr, self._said), daemon=True)
        self._listener.start()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One line there, one line back."""
        deadline = time.monotonic() + self.timeout
        try:
            self._send(json.dumps(request, separators=(",", ":")).encode() + b"\n", deadline)
            line = self._receive(deadline)
        except SubjectError:
            self.close()
            raise
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise SubjectError("garbage", f"its answer is no JSON object: {_short(line)}")
        return answer

    def _send(self, line: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if self._rest:
            raise SubjectError("garbage", f"it spoke without being asked: {_short(self._rest)}")
        pipe = self._process.stdin.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_WRITE)
            while line:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise SubjectError("hung", f"it did not read for {self.timeout:g} s{self._last_words()}")
                try:
                    line = line[os.write(pipe, line) :]
                except BrokenPipeError:
                    raise self._died("input") from None

    def _receive(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, data = self._process.stdout.fileno(), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in data:
                if len(data) > LIMIT:
                    raise SubjectError(
                        "flooded", f"its answer is longer than {LIMIT} bytes: {_short(bytes(data))}"
                    )
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    if self._process.poll() is not None:  # what it has started keeps its output open
                        raise self._died("output")
                    raise SubjectError(
                        "hung", f"it did not answer within {self.timeout:g} s{self._last_words()}"
                    )
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    raise self._died("output")
                data += chunk
        line, _, self._rest = bytes(data).partition(b"\n")
        return line

    def _died(self, closed: str) -> SubjectError:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return SubjectError("died", f"it closed its {closed}{self._last_words()}")
        self._listener.join(timeout=1)  # what it wrote last may still be on its way
        ended = f"was ended by {_signal(-code)}" if code < 0 else f"exited with status {code}"
        return SubjectError("died", f"it {ended}{self._last_words()}")

    def _last_words(self) -> str:
        return f"; on stderr: {' | '.join(map(_printable, self._said))}" if self._said else ""

    def close(self) -> None:
        """End the program and whatever it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def setup(config: Config) -> dict[str, Any]:
    """What ``create`` tells: the sizes in a few words, and the header that a trace of it would have."""
    resolved = resolve(config.model, config.params)
    spec = memory_spec(config.model, resolved)
    assert spec is not None
    caches = [
        {
            "name": name,
            "n_stream": cache.n_stream,
            "size": config.sizes.get(name, cache.size),
            "n_swa": cache.n_swa,
            "swa_type": int(cache.swa_type),
        }
        for name, cache in spec.caches.items()
    ]
    return {
        "memory": spec.kind,
        "n_seq_max": resolved.n_seq_max,
        "n_batch": resolved.n_batch,
        "n_ubatch": resolved.n_ubatch,
        "n_rs_seq": resolved.n_rs_seq,
        "n_pos_per_embd": config.model.n_pos_per_embd,
        "caches": caches,
        "header": header_of(config.model, config.params, sizes=config.sizes, name=config.name).to_json(),
    }


def _some_of(key: str, answer: dict[str, Any], known: Collection[str]) -> frozenset[str]:
    """What the greeting says it implements of what there is; everything if it says nothing."""
    named = answer.get(key, list(known))
    unknown = [name for name in named if name not in [*known]] if isinstance(named, list) else [named]
    if unknown:
        raise ValueError(f'"{key}" has {_short(unknown[0])}; it is a list of {", ".join(sorted(known))}')
    return frozenset(named)


def _signal(number: int) -> str:
    """Its name; real-time signals but the first and last have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _numbers(key: str, values: Any) -> NDArray[np.float32]:
    try:
        return np.array(values, np.float32)
    except (ValueError, TypeError) as error:
        raise SubjectError("garbage", f'its "{key}" are no table of numbers: {_short(values)}') from error


def _keep(pipe: IO[bytes], said: deque[str]) -> None:
    """Read stderr to its end, so that the program never waits for it; keep the last lines."""
    with pipe:
        for line in iter(lambda: pipe.readline(1000), b""):
            said.append(line.decode(errors="replace").rstrip()[:200])


def _printable(text: str) -> str:
    """What would move a terminal's cursor or colour it, as an escape sequence."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _said(value: object) -> str:
    """Words of the program, on one line that has an end."""
    return _printable(str(value)[:80])


def _short(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else json.dumps(value)
    text = _printable(text[:121])
    return text if len(text) <= 120 else f"{text[:117]}..."
