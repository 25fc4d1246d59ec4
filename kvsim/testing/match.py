"""Two or more subjects side by side: the same operations, and every answer and everything seen compared.

The first subject leads: it is what the others must agree with, and what generators look at.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from kvsim.context import BAD_BATCH
from kvsim.errors import CacheUsageError, KvsimError
from kvsim.hazard_table import CONTENT
from kvsim.hazards import HAZARDS
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.context_params import resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.narrate.verdicts import failed
from kvsim.ops import STATES, Op, fault_of
from kvsim.testing.behaviour import behaviour, normal
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.checked import CheckError
from kvsim.testing.subject import LedgerSubject, Observes, Picture, Subject, SubjectError
from kvsim.trace.compare import compare_step
from kvsim.trace.read import Step

T = TypeVar("T")

ENDS = "ends"
"""What an operation answers on which llama.cpp would end."""

ROUNDING = 4e-3
"""Rows are f16 numbers of at most 1; turning keys several times adds up to no more than this."""

SHOWN = 6
"""How many differing fields a message lists."""


@dataclass(frozen=True)
class Outcome:
    """What an operation led to at one subject: its answer (:data:`ENDS` if refused, and then ``why``), and the
    picture."""

    answer: int | str | None
    picture: Picture
    why: str = ""


class DifferenceError(KvsimError):
    """Subjects differ, or one failed, at the last of ``ops``.

    ``subject`` is who, ``verdict`` what kind of difference (``differs``, ``ledger``, ``raised``, ``died``,
    ``hung``, ``garbage``, ``flooded``), ``wanted`` and ``found`` what the leader and it said, where known.
    """

    def __init__(
        self,
        subject: str,
        verdict: str,
        what: str,
        ops: Sequence[Op],
        wanted: Outcome | None = None,
        found: Outcome | None = None,
    ) -> None:
        self.subject, self.verdict, self.what = subject, verdict, what
        self.ops = list(ops)
        self.wanted, self.found = wanted, found
        where = f"at operation {len(ops)}, {ops[-1]}" if ops else "before the first operation"
        super().__init__(f"{failed(subject, verdict)} {where}: {what}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes by their arguments, which are not the message alone."""
        return type(self), (self.subject, self.verdict, self.what, self.ops, self.wanted, self.found)


class Match:
    """Subjects that get the same operations, of one configuration. What a generator may ask of a world
    (:class:`~kvsim.testing.generate.World`) it answers for the leader.

    A subject of which only behaviour is compared is not asked what never reaches a cache: a batch that the
    decode loop refuses, a call that ends llama.cpp. Once the leader meets a hazard that concerns content,
    the two have :attr:`parted`: nobody wants what llama.cpp does there, so the subject is asked no more. So has
    a subject that was :attr:`excused`: it may differ at this operation, for the reason that it gives.
    """

    def __init__(self, info: CacheInfo, config: Config, subjects: Sequence[Subject]) -> None:
        self.info = info
        self.config = config
        self.subjects = list(subjects)
        resolved = resolve(config.model, config.params)
        self.n_seq_max, self.n_batch = resolved.n_seq_max, resolved.n_batch
        self.unified = resolved.kv_unified
        self.n_pos = config.model.n_pos_per_embd
        self.ops: list[Op] = []
        self.states: dict[int, Op] = {}
        self.next_token = 1
        self.full = self.raised = self.parted = False
        self.excused = ""
        self._caches = attention_caches(config)
        for subject in self.subjects:
            self._guarded(subject, partial(subject.create, config))
        self.picture = self._compare(None)

    # -- what generators ask -------------------------------------------------------------------

    def span(self, seq: int) -> tuple[int, int]:
        lo, hi = self.picture["pos"].get(str(seq), (-1, -1))
        return (lo, hi)

    @property
    def saved(self) -> Sequence[Op]:
        return list(self.states.values())

    def forget_state(self, slot: int) -> None:
        """Do not restore this state any more."""
        del self.states[slot]

    # -- one operation -------------------------------------------------------------------------

    def perform(self, op: Op) -> int | None:
        """Let every subject perform ``op``; returns the leader's answer (None if it was refused).

        Raises DifferenceError at the first subject that does not agree.
        """
        op = without_fault(op, [subject.faults for subject in self.subjects])
        self.ops.append(op)
        self.picture = self._compare(op)
        answer = self.answer
        self.raised = answer == ENDS
        self.full = op.op == "decode" and answer == 1
        if op.op == "decode":
            self.next_token += len(op.args["seq"])
        elif op.op in ("state_get", "state_seq_get") and not self.raised:
            self.states[op.args["slot"]] = op
        return answer if isinstance(answer, int) else None

    def _compare(self, op: Op | None) -> Picture:
        """Perform (None: nothing yet), look, compare; returns the leader's picture."""
        leader, *others = self.subjects
        wanted = self._outcome(leader, op)
        self.answer = wanted.answer
        self.parted = self.parted or hazardous(leader)
        for subject in others:
            exact = subject.observes is Observes.CELLS
            if self.excused or (not exact and (self.parted or wanted.answer in (ENDS, BAD_BATCH))):
                continue
            found = self._outcome(subject, op)
            if op is not None and found.answer != wanted.answer:
                self.excused = subject.excuse(op, wanted.answer, found.answer)
                if self.excused:
                    continue
            same = _same_cells if exact else self._same_behaviour
            seen = replace(wanted, picture=subject.shown(wanted.picture)) if exact else wanted
            what = same(op, seen, found, len(self.ops))
            if what:
                raise DifferenceError(subject.name, "differs", what, self.ops, wanted, found)
        if self.excused:
            return wanted.picture
        for teller in (Subject.ubatches, Subject.read_rows, Subject.logits, Subject.state) if others else ():
            self._compare_told(teller.__name__)
        return wanted.picture

    def _compare_told(self, what: str) -> None:
        """Compare what only some subjects tell with the first of those."""
        told = [(each, self._guarded(each, getattr(each, what))) for each in self.subjects]
        told = [(each, answer) for each, answer in told if answer is not None]
        for subject, answer in told[1:]:
            apart = "; ".join(islice(_apart(what, told[0][1], answer), SHOWN))
            if apart:
                raise DifferenceError(subject.name, "differs", apart, self.ops)

    def _outcome(self, subject: Subject, op: Op | None) -> Outcome:
        def run() -> Outcome:
            answer: int | str | None = None
            why = ""
            if op is not None:
                try:
                    answer = subject.apply(op)
                except CacheUsageError as error:
                    answer, why = ENDS, str(error)
            return Outcome(answer, subject.snapshot(), why)

        return self._guarded(subject, run)

    def _guarded(self, subject: Subject, run: Callable[[], T]) -> T:
        try:
            return run()
        except CheckError as error:
            found = Outcome(None, subject.snapshot())
            raise DifferenceError(subject.name, "ledger", str(error), self.ops, None, found) from error
        except SubjectError as error:
            raise DifferenceError(subject.name, error.verdict, str(error), self.ops) from error
        except (Exception, SystemExit) as error:  # whatever a faulty subject raises is a finding
            what = f"{type(error).__name__}: {error} ({_place(error)})"
            raise DifferenceError(subject.name, "raised", what, self.ops) from error

    def _same_behaviour(self, op: Op | None, wanted: Outcome, found: Outcome, i: int) -> str:
        try:
            theirs = normal(found.picture)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return f"its snapshot is no account of what is read ({type(error).__name__}: {error})"
        answers = [wanted.answer, found.answer]
        if op is not None and op.op in STATES:
            answers = [bool(answer) for answer in answers]  # how many bytes is nobody's business
        if answers[0] != answers[1]:
            return f"it answered {_in_words(found)}, expected was {_in_words(wanted)}"
        ours = behaviour(wanted.picture, self._caches)
        if ours == theirs:
            return ""
        return "; ".join(_reads_apart(ours["reads"], theirs["reads"]))

    def close(self) -> None:
        for subject in self.subjects:
            subject.close()


def _apart(what: str, ours: Any, theirs: Any) -> Iterator[str]:
    """Where two accounts differ: exactly, but rows and logits by more than rounding."""
    if what == "state":
        yield from _bytes_apart(ours, theirs)
        return
    if what == "logits":
        ours, theirs = {"logits": ours}, {"logits": theirs}
    if what == "ubatches":
        for i in range(max(len(ours), len(theirs))):
            pair = [(each[i : i + 1] or [{}])[0] for each in (ours, theirs)]
            for key in {**pair[0], **pair[1]}:
                if pair[0].get(key) != pair[1].get(key):
                    found, wanted = _short(pair[1].get(key)), _short(pair[0].get(key))
                    yield f"ubatch {i}: {key} is {found}, expected {wanted}"
        return
    for where in {**ours, **theirs}:
        if where not in ours or where not in theirs:
            yield f"{where}: rows on one side only"
        elif np.shape(ours[where]) != np.shape(theirs[where]):
            yield f"{where}: shape {np.shape(theirs[where])}, expected {np.shape(ours[where])}"
        elif not np.allclose(ours[where], theirs[where], rtol=0, atol=ROUNDING, equal_nan=True):
            yield f"{where}: rows differ by up to {np.abs(ours[where] - theirs[where]).max():.2g}"


def _bytes_apart(ours: bytes, theirs: bytes) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"saved state: {len(theirs)} bytes, expected {len(ours)}"
        return
    at = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    if at:
        yield (
            f"saved state: {len(at)} of {len(ours)} bytes differ; byte {at[0]} is {theirs[at[0]]}, expected "
            f"{ours[at[0]]}"
        )


def without_fault(op: Op, possible: Iterable[frozenset[str]]) -> Op:
    """The operation without a fault that not everybody can be given."""
    fault = fault_of(op.args) if op.op == "decode" else None
    if fault is None or all(fault.kind in kinds for kinds in possible):
        return op
    return replace(op, args={k: v for k, v in op.args.items() if k not in ("fault", "abort_at_ubatch")})


def hazardous(leader: Subject) -> bool:
    """Whether the leader's last operation met a hazard after which sequences hold what no caller wants, or
    tokens of another id."""
    met = [event.detail["id"] for event in leader.checked.events] if isinstance(leader, LedgerSubject) else []
    return any(HAZARDS[name].kind == CONTENT or name == "cell-keeps-old-token" for name in met)


def attention_caches(config: Config) -> dict[str, CacheSpec]:
    """The caches that attention reads, without indexers."""
    spec = memory_spec(config.model, resolve(config.model, config.params))
    assert spec is not None
    return {name: cache for name, cache in spec.caches.items() if cache.has_mask}


def _same_cells(op: Op | None, wanted: Outcome, found: Outcome, i: int) -> str:
    """Empty if answers and pictures are equal, else what differs."""
    if wanted.answer == found.answer and wanted.picture == found.picture:
        return ""
    name, args = (op.op, op.args) if op else ("init", {})
    if wanted.answer == ENDS or found.answer == ENDS:
        return f"it answered {_in_words(found)}, expected was {_in_words(wanted)}"
    steps = [Step(i, name, args, o.answer, None, o.picture) for o in (wanted, found)]  # type: ignore[arg-type]
    try:
        apart = compare_step(*steps)
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # whatever it showed
        return f"its snapshot is no picture of cells ({type(error).__name__}: {error})"
    fields = [f"{d.path} is {_short(d.computed)}, expected {_short(d.recorded)}" for d in apart]
    more = f"; and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    return "; ".join(fields[:SHOWN]) + more


def _place(error: BaseException) -> str:
    """Where it was raised: the file, the line and the function."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}, line {last.lineno}, in {last.name}"


def _in_words(outcome: Outcome) -> str:
    if outcome.answer != ENDS:
        return str(outcome.answer)
    return f"a refusal, because llama.cpp would end ({outcome.why})"


def _reads_apart(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterable[str]:
    for part in sorted({*ours, *theirs}):
        a, b = ours.get(part, {}), theirs.get(part, {})
        for seq in sorted({*a, *b}, key=int):
            if a.get(seq) != b.get(seq):
                yield (
                    f"{part}: the next token of sequence {seq} attends to {_short(b.get(seq, []))}, expected "
                    f"{_short(a.get(seq, []))} ([position, token])"
                )


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
