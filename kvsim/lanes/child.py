"""The process in which llama.cpp runs: requests come and answers go through one pipe, pickled.

    python -m kvsim.lanes.child FD

The first request is the arguments of :class:`~kvsim.lanes.session.Session`. A request is a method's name and
arguments; the answer is ``("ok", value)``, or ``("refused", text)`` if we refuse it. If llama.cpp ends the
process, the pipe just ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from kvsim.errors import KvsimError
from kvsim.lanes.session import Answer, Session

T = TypeVar("T")

COPY_TIMEOUT = 90
"""Seconds after which a copy of this process is ended, before the other side gives up on this one."""


def in_a_copy(act: Callable[[], T]) -> tuple[T | None, str]:
    """What ``act`` gives in a copy of this process, which then ends; or None, and how the copy ended before.

    Nothing that ``act`` does is left, here or there. Raises KvsimError for an exception of ours, which is no end
    of llama.cpp.
    """
    read, write = os.pipe()
    copy = os.fork()
    if copy == 0:
        try:
            signal.alarm(COPY_TIMEOUT)
            with os.fdopen(write, "wb") as out:
                out.write(pickle.dumps(_done(act)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as theirs:
        data = theirs.read()
    code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    if code == -signal.SIGALRM:
        raise KvsimError(f"llama.cpp did not answer within {COPY_TIMEOUT} s")
    if data and code == 0:
        found, wrong = pickle.loads(data)
        if wrong:
            raise KvsimError(f"a request could not be made: {wrong}")
        return found, ""
    return None, f"signal {-code}" if code < 0 else f"exit {code}"


def _done(act: Callable[[], T]) -> tuple[T | None, str]:
    """What ``act`` gives, or the exception that it raised."""
    try:
        return act(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def show(session: Session, n_stream: int) -> tuple[list[tuple[int, int]], list[tuple[bool, str]], bytes]:
    """Position ranges; what the slot search of the next token of each of the first ``n_stream`` sequences would
    print, tried in a copy, and whether it would find a slot; the whole state, empty if saving it ends the copy."""
    spans = session.spans()

    def place_each() -> list[tuple[bool, str]]:
        found = []
        for seq in range(n_stream):
            batch = {"tokens": [0], "pos": [spans[seq][1] + 1], "seq": [[seq]], "out": [1]}
            answer = session.perform("decode", batch)
            found.append((answer.ret == 0, answer.log))
        return found

    both, _ = in_a_copy(lambda: (session.state(), place_each()))
    if both is None:  # one of the two ends a copy: each in its own
        both = in_a_copy(session.state)[0] or b"", in_a_copy(place_each)[0] or []
    state, searches = both
    return spans, searches, state


def attempt(
    session: Session, op: str, args: dict[str, Any], do: bool = False, logits: bool = False
) -> tuple[Answer | None, str]:
    """What an operation would give now, or how it would end the process. ``do``: if it would not, do it."""
    answer, how = in_a_copy(lambda: session.perform(op, args))
    return (session.perform(op, args, logits), "") if do and answer is not None else (answer, how)


ALONE: dict[str, Callable[..., Any]] = {"show": show, "attempt": attempt}
"""Requests that are no method of a session."""


def serve(pipe: Any) -> None:
    """Answer requests until the pipe is closed."""
    session: Session | None = None
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        try:
            if session is None:
                session = Session(*args)
                value: Any = session.version.name, session.n_vocab, session.n_seq_max, session.n_embd
            elif method in ALONE:
                value = ALONE[method](session, *args)
            else:
                value = getattr(session, method)(*args)
        except KvsimError as error:
            pipe.send(("refused", str(error)))
        except Exception as error:  # a fault of ours, which must not pass for an end of llama.cpp
            pipe.send(("refused", f"a request could not be made: {type(error).__name__}: {error}"))
        else:
            pipe.send(("ok", value))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
