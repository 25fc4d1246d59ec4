"""What can be tested: anything that performs the operations of the trace format and shows what it holds.

A subject is adapted by three methods (docs/adapt_your_cache.md)::

    class Mine(Subject):
        def create(self, config): self.cache = ...        a fresh cache
        def apply(self, op): ...                          perform one operation, return its answer
        def snapshot(self): ...                           what the cache holds now

What :meth:`Subject.snapshot` must show depends on :attr:`Subject.observes`. ``CELLS``: the picture of the
trace format, which cell holds what; two such subjects must agree to the last cell. ``BEHAVIOUR``: what
the next token of each sequence would attend to; two allocators may both be right.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.caches.factory import LeafFactory
from kvsim.context import FAULTS, Context
from kvsim.errors import KvsimError
from kvsim.models.context_params import resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.ops import STATES, Op
from kvsim.replay import Replayer
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.checked import Checked

Picture = dict[str, Any]
Rows = Mapping[str, NDArray[np.float32]]
"""What lies behind the cells, as numbers: where, and the values."""

OPERATIONS = frozenset({"decode", "seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "clear"} | STATES)
"""What a campaign performs."""


class Observes(Enum):
    """How much of a subject is compared."""

    CELLS = "cells"
    BEHAVIOUR = "behaviour"


class SubjectError(KvsimError):
    """A subject did not answer as it must: it died, hung, talked nonsense or raised what it may not.

    ``verdict`` is one word for the kind of failure.
    """

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


class UnsupportedError(KvsimError):
    """A subject does not implement this configuration, which is then left out."""


class Subject(ABC):
    """An implementation under test. ``name`` is what reports call it."""

    name: str = "subject"
    observes: Observes = Observes.CELLS
    memories: frozenset[str] = frozenset(CACHES)
    """The members of the family that it implements."""
    operations: frozenset[str] = OPERATIONS
    """The operations that it is asked to perform."""
    faults: frozenset[str] = frozenset(FAULTS)
    """The kinds of faults that a decode can be given; others are left out of it."""

    def configs(self, info: CacheInfo) -> Sequence[Config] | None:
        """The configurations that it brings for a member of the family; None: it takes the tester's."""
        return None

    @abstractmethod
    def create(self, config: Config) -> None:
        """Begin anew: a cache for this model with these parameters, holding nothing.

        ``config.sizes`` says how many cells per stream it has. Raises UnsupportedError for a configuration
        that the subject does not implement.
        """

    @abstractmethod
    def apply(self, op: Op) -> int | None:
        """Perform one operation; return what a trace has under ``ret`` (None where it has null).

        Raises CacheUsageError where llama.cpp would end the process, before anything has changed.
        """

    @abstractmethod
    def snapshot(self) -> Picture:
        """What is held now: ``after`` of the trace format, or for BEHAVIOUR ``{"reads": {part: {sequence:
        [[position, token], ...]}}}`` (:mod:`kvsim.testing.behaviour`)."""

    def shown(self, picture: Picture) -> Picture:
        """What it would show of the reference's picture: the same, but for what it cannot observe."""
        return picture

    def excuse(self, op: Op, wanted: int | str | None, found: int | str | None) -> str:
        """Why it may answer ``found`` where the reference answers ``wanted`` (``ends``: it refuses), in words;
        empty if it may not. Both begin anew then."""
        return ""

    def ubatches(self) -> list[dict[str, Any]] | None:
        """The ubatches of the last decode in the trace format, with slots and masks; None: not told."""
        return None

    def read_rows(self) -> Rows | None:
        """The numbers behind the cells; None: there are none, or they are not told."""
        return None

    def logits(self) -> NDArray[np.float32] | None:
        """The results of the last decode, ``float32[n_outputs, n]`` in the order of the batch; None: there are
        none, or they are not told."""
        return None

    def state(self) -> bytes | None:
        """The bytes that the last operation saved; None: it saved nothing, or they are not told."""
        return None

    def close(self) -> None:
        """Let go of what :meth:`create` took."""


def check_names(subject: Subject) -> None:
    """Raise KvsimError if a subject names what there is not: a misspelt operation would never be tested."""
    for what, named, known in (
        ("memories", subject.memories, frozenset(CACHES)),
        ("operations", subject.operations, OPERATIONS),
        ("faults", subject.faults, frozenset(FAULTS)),
    ):
        unknown = sorted({*named} - known)
        if unknown:
            there = ", ".join(sorted(known))
            raise KvsimError(f"{what} of {subject.name} has {unknown[0]!r}: it is a set of {there}")


def supports(subject: Subject, info: CacheInfo, config: Config) -> bool:
    """Whether the subject implements this configuration. One that fails otherwise does: that is a finding."""
    if info.kind not in subject.memories:
        return False
    try:
        subject.create(config)
    except UnsupportedError:
        return False
    except Exception:
        return True
    return True


class ContextSubject(Subject):
    """kvsim's own composites and decode loop over any leaves: the reference's by default, or the engine's."""

    def __init__(
        self,
        name: str = "reference",
        leaves: Callable[[Config], LeafFactory] = lambda config: LeafFactory(sizes=config.sizes),
    ) -> None:
        self.name = name
        self._leaves = leaves

    def create(self, config: Config) -> None:
        self.context: Context = config.context(self._leaves(config))
        self._replayer = Replayer(self.context)
        self._saved: bytes | None = None

    def apply(self, op: Op) -> int | None:
        self._saved = None
        ret = self._replayer.apply(op.op, op.args)
        if op.op in ("state_get", "state_seq_get"):
            self._saved = self._replayer.saved[op.args["slot"]]
        return ret

    def snapshot(self) -> Picture:
        return self.context.memory.snapshot().to_json()

    def state(self) -> bytes | None:
        return self._saved


class LedgerSubject(Subject):
    """The reference held to the ledger while it runs (:class:`~kvsim.testing.checked.Checked`): it raises
    CheckError at the first difference that no hazard explains."""

    name = "reference and ledger"

    def create(self, config: Config) -> None:
        spec = memory_spec(config.model, resolve(config.model, config.params))
        assert spec is not None
        self.checked = Checked(CACHES[spec.kind], config)

    def apply(self, op: Op) -> int | None:
        ret = self.checked.perform(op)
        if self.checked.refusal is not None:
            raise self.checked.refusal
        return ret

    def snapshot(self) -> Picture:
        return self.checked.picture.to_json()

    def violated(self) -> str | None:
        """The rule that the last batch was refused for."""
        failure = self.checked.context.last_failure
        return failure.batch.rule if failure is not None and failure.batch is not None else None


def engine_leaves(config: Config, data: bool = False) -> LeafFactory:
    """The torch engine's leaves. Raises KvsimError without torch."""
    try:
        from engine import EngineFactory  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise KvsimError(f"the engine needs {error.name}: pip install 'kvsim[engine]'") from error
    made: LeafFactory = EngineFactory(data=data, sizes=config.sizes)
    return made


def subject_named(name: str) -> Subject:
    """``reference`` (held to the ledger), ``engine``, ``llamacpp``, or ``module:Class``, whose module may lie in
    the working directory. Raises KvsimError if there is no such subject."""
    if name == "reference":
        return LedgerSubject()
    if name == "engine":
        return ContextSubject("engine", engine_leaves)
    if name.partition("@")[0] == "llamacpp":
        from kvsim.lanes.subject import LlamaSubject

        return LlamaSubject(name.partition("@")[2])
    module, _, attribute = name.partition(":")
    if not attribute:
        raise KvsimError(f"unknown subject {name!r}: give reference, engine, llamacpp, or module:Class")
    if not {"", os.getcwd()} & {*sys.path}:  # an installed command lacks it, unlike python -m
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except KvsimError:
        raise
    except Exception as error:  # whatever is raised in there
        raise KvsimError(f"the subject {name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, Subject):
        raise KvsimError(f"{name} is no Subject: derive it from kvsim.testing.Subject")
    return made
