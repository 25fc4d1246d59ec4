"""Acts in a copy of a process: what is given, how the copy ends, and that a mistake of ours is no end."""

from __future__ import annotations

import os
import signal

import pytest

from kvsim.errors import KvsimError
from kvsim.lanes import child
from kvsim.lanes.child import in_a_copy


def test_what_an_act_gives_comes_back_and_nothing_else() -> None:
    left: list[int] = []
    assert in_a_copy(lambda: (left.append(1), len(left))[1]) == (1, "")
    assert left == []


def test_how_a_copy_ends_is_told() -> None:
    assert in_a_copy(lambda: os._exit(3)) == (None, "exit 3")
    assert in_a_copy(lambda: os.kill(os.getpid(), signal.SIGKILL)) == (None, "signal 9")


def test_an_exception_of_ours_is_no_end() -> None:
    with pytest.raises(KvsimError, match=r"a request could not be made: KeyError: 'slot'"):
        in_a_copy(lambda: {}["slot"])


def test_a_copy_that_hangs_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "COPY_TIMEOUT", 1)
    with pytest.raises(KvsimError, match=r"llama\.cpp did not answer within 1 s"):
        in_a_copy(lambda: signal.pause())
