"""Subjects with and without faults, for the tests of the tester."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kvsim.ops import Op
from kvsim.testing.behaviour import behaviour
from kvsim.testing.cache_info import Config
from kvsim.testing.match import attention_caches
from kvsim.testing.subject import ContextSubject, Observes, Picture


class Same(ContextSubject):
    """The reference once more."""

    def __init__(self) -> None:
        super().__init__("the same")


class Behaves(Same):
    """The reference once more, which shows its behaviour alone, tokens in another order."""

    observes = Observes.BEHAVIOUR
    memories = frozenset({"kv", "iswa"})

    def create(self, config: Config) -> None:
        super().create(config)
        self._caches = attention_caches(config)

    def snapshot(self) -> Picture:
        reads = behaviour(super().snapshot(), self._caches)["reads"]
        return {"reads": {name: {s: held[::-1] for s, held in part.items()} for name, part in reads.items()}}


class KeepsLast(Same):
    """Removes all but the last position of a range that has an end."""

    def apply(self, op: Op) -> int | None:
        if op.op == "seq_rm" and op.args["p1"] > 1:
            op = Op.seq_rm(op.args["seq"], op.args["p0"], op.args["p1"] - 1)
        return super().apply(op)


class BehavesButKeepsLast(Behaves, KeepsLast):
    """The same fault in a subject that shows its behaviour alone."""


class CannotBeMade(Same):
    def __init__(self) -> None:
        raise RuntimeError("no device")


class Misspelt(Same):
    operations = frozenset({"decode", "seq_remove"})


class Raises(Same):
    """Falls over a batch of more than three tokens."""

    def apply(self, op: Op) -> int | None:
        if op.op == "decode" and len(op.args["seq"]) > 3:
            raise ZeroDivisionError("three is the most")
        return super().apply(op)


class RaisesOnce(Same):
    """Falls over its 40th operation, whoever asks for it."""

    left = 40

    def apply(self, op: Op) -> int | None:
        RaisesOnce.left -= 1
        if RaisesOnce.left == 0:
            raise ZeroDivisionError("once")
        return super().apply(op)


class DiesOnce(Same):
    """Its process is killed once, at the 50th operation of a session; the file ``died`` remembers it."""

    died = os.environ.get("KVSIM_TEST_DIED", "")

    def create(self, config: Config) -> None:
        super().create(config)
        self._left = 50

    def apply(self, op: Op) -> int | None:
        self._left -= 1
        if self._left == 0 and not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply(op)
