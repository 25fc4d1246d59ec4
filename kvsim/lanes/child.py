"""The process in which llama.cpp runs: requests come and answers go through one pipe, pickled.

    python -m kvsim.lanes.child FD

The first request is the arguments of :class:`~kvsim.lanes.session.Session`. A request is a method's name and
arguments; the answer is ``("ok", value)``, or ``("refused", text)`` if we refuse it. If llama.cpp ends the
process, the pipe just ends.
"""

from __future__ import annotations

import json
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from kvsim.errors import KvsimError
from kvsim.lanes.session import Session


def peek(session: Session, tokens: list[tuple[int, int]]) -> list[tuple[bool, str]]:
    """What the slot search for a token would print now, for each sequence and position in ``tokens``.

    It is done in a copy of this process, which then ends. Returns whether a slot was found, and the print.
    """
    read, write = os.pipe()
    copy = os.fork()
    if copy == 0:
        try:
            found = []
            for seq, pos in tokens:
                batch = {"tokens": [0], "pos": [pos], "seq": [[seq]], "out": [1]}
                answer = session.perform("decode", batch)
                found.append((answer.ret == 0, answer.log))
            with os.fdopen(write, "w") as out:
                json.dump(found, out)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as theirs:
        text = theirs.read()
    os.waitpid(copy, 0)
    return [(ok, log) for ok, log in json.loads(text or "[]")]


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
            elif method == "peek":
                value = peek(session, *args)
            else:
                value = getattr(session, method)(*args)
        except KvsimError as error:
            pipe.send(("refused", str(error)))
        else:
            pipe.send(("ok", value))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
