"""What each implementation makes of a recording, operation by operation.

A lane yields one :class:`Mark` an operation: where it differs from the reference, and its own step if it has
cells to show. It ends early, with a reason, where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from kvsim.caches.factory import LeafFactory
from kvsim.errors import CacheUsageError, KvsimError
from kvsim.lanes.library import is_installed
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.lanes.picture import Pictures
from kvsim.lanes.subject import performable, tiny_file, tiny_like
from kvsim.models.context_params import ContextParams
from kvsim.models.params import ModelParams
from kvsim.ops import STATES, Op
from kvsim.replay import N_VOCAB, Replayer, context_of
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.checked import Checked, CheckError
from kvsim.testing.mutants import MUTANTS
from kvsim.trace import Difference, Header, Step, compare_step
from kvsim.trace.unseen import seen_part

LONGEST = 300
"""Characters told of what the ledger found."""


@dataclass(frozen=True)
class Mark:
    """One operation of a lane. ``hazards`` are the ids that explain why the ledger's account differs.
    ``broken``: it is not as the ledger has it, so the lane ends here."""

    i: int
    differences: list[Difference] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)
    step: Step | None = None
    broken: bool = False


Performed = tuple[Step, Step, list[str], bool]
"""A step as it is known, as it was computed, the hazards it met, and whether the ledger disagrees."""


class LaneEnd(KvsimError):  # noqa: N818 - no fault of ours: a lane may end
    """Why a lane goes no further."""


def reference(header: Header, steps: list[Step]) -> Iterator[Mark]:
    """kvsim itself, held against the recording."""
    for recorded, computed in zip(steps, _replayed(header, steps, LeafFactory()), strict=False):
        yield Mark(recorded.i, compare_step(recorded, computed), step=computed)


def engine(header: Header, steps: list[Step]) -> Iterator[Mark]:
    """The torch engine's leaves. Raises LaneEnd without torch."""
    try:
        from engine import EngineFactory
    except ModuleNotFoundError as error:
        raise LaneEnd(f"not installed: pip install 'kvsim[engine]' ({error.name} is missing)") from None
    for known, computed in zip(steps, _replayed(header, steps, EngineFactory()), strict=False):
        yield Mark(known.i, compare_step(known, computed), step=computed)


def llamacpp(header: Header, steps: list[Step]) -> Iterator[Mark]:
    """The installed llama.cpp, with a tiny model that has a memory of the same kind and size, in what it shows.

    Raises LaneEnd where it cannot be performed there: no library, no such model, a damaged state (which byte
    is hit depends on the model), an operation that ends it.
    """
    params = ContextParams.from_header(header.to_json())
    try:
        lane = LlamaCpp(tiny_file(tiny_like(header)), params)
    except KvsimError as error:
        raise LaneEnd(str(error)) from error
    with lane:
        pictures = Pictures(lane, header)
        for known in steps:
            if {"truncate", "xor0"} & set(known.args):
                raise LaneEnd(f"operation {known.i} damages a state, of another model than this one")
            try:
                op = performable(Op(known.op, known.args), lane.n_vocab)
                ret = known.ret if known.op in ("init", "rows") else lane.apply(op).ret
            except EndedError as error:
                raise LaneEnd(f"operation {known.i} ends it: {error}") from error
            if known.op in STATES and ret and known.ret:
                ret = known.ret  # a size, which depends on the model
            found = replace(known, ret=ret, after=pictures.take())
            seen = replace(known, after=seen_part(found.after, known.after))
            yield Mark(known.i, compare_step(seen, found), step=found)


def ledger(header: Header, steps: list[Step]) -> Iterator[Mark]:
    """The abstract specification: the reference's content must be what each sequence should hold, or a hazard
    says why not."""
    for known, computed, met, broken in _checked(header, steps):
        yield Mark(known.i, hazards=met, step=computed, broken=broken)


BESIDE: dict[str, Callable[[Header, list[Step]], Iterator[Mark]]] = {"ledger": ledger, "engine": engine}
"""The lanes beside the reference."""
if is_installed():
    BESIDE["llamacpp"] = llamacpp


def mutant(name: str, header: Header, steps: list[Step]) -> Iterator[Mark]:
    """The reference with a planted fault: cells against ``steps``, content against the ledger.

    Only for a process of its own: the fault is in for everybody.
    """
    fault = MUTANTS[name]
    try:
        Checked(CACHES[header.memory], _config(header))
        performed = _checked(header, steps, fault.applied())
    except Exception:
        performed = _unchecked(header, steps, fault.applied())
    for known, computed, met, broken in performed:
        yield Mark(known.i, compare_step(known, computed), met, computed, broken)


def _replayed(header: Header, steps: list[Step], leaves: LeafFactory) -> Iterator[Step]:
    replayer = Replayer(context_of(header, leaves))
    for step in steps:
        try:
            yield replayer.step(step.i, step.op, step.args)
        except CacheUsageError as error:
            raise LaneEnd(f"operation {step.i} ends it: {error}") from error


def _unchecked(header: Header, steps: list[Step], fault: AbstractContextManager[Any]) -> Iterator[Performed]:
    with fault:
        for step, computed in zip(steps, _guarded(_replayed(header, steps, LeafFactory())), strict=False):
            yield step, computed, [], False


def _guarded(computed: Iterator[Step]) -> Iterator[Step]:
    """Whatever a faulty implementation raises is its end."""
    try:
        yield from computed
    except LaneEnd:
        raise
    except Exception as error:
        raise LaneEnd(f"it raised {type(error).__name__}: {error}") from error


def _checked(
    header: Header, steps: list[Step], fault: AbstractContextManager[Any] | None = None
) -> Iterator[Performed]:
    """Every step as a context held to the ledger performs it, and the hazards it met. The step that the ledger does
    not agree with is given too, with the answer it should have, and is the last."""
    with fault or nullcontext():
        checked = Checked(CACHES[header.memory], _config(header))
        checked.context.recording = True
        checked.context.allocator.n_vocab = N_VOCAB
        for step in steps:
            try:
                ret = step.ret if step.op in ("init", "rows") else checked.perform(Op(step.op, step.args))
            except CheckError as error:
                yield step, _step(checked, step, step.ret), _met(checked), True
                raise LaneEnd(f"operation {step.i} is not as the ledger has it: {_told(error)}") from error
            except Exception as error:  # whatever a fault leads to
                raise LaneEnd(f"operation {step.i} raised {type(error).__name__}: {error}") from error
            if checked.refusal is not None and step.op not in ("init", "rows"):
                raise LaneEnd(f"operation {step.i} ends it: {checked.refusal}")
            yield step, _step(checked, step, ret), _met(checked), False


def _step(checked: Checked, step: Step, ret: int | bool | None) -> Step:
    """A step as the context has just performed it."""
    ubatches = [record.json for record in checked.context.records] if step.op == "decode" else None
    extra = {"size": ret} if step.op.endswith("_get") else {}
    return Step(step.i, step.op, step.args, ret, ubatches, checked.memory.snapshot().to_json(), extra)


def _met(checked: Checked) -> list[str]:
    """The hazards of the operation, by id."""
    return list(dict.fromkeys(event.detail["id"] for event in checked.events))


def _told(error: CheckError) -> str:
    """What the ledger found, without the operation, which the page shows anyway."""
    text = str(error).partition("): ")[2] or str(error)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _config(header: Header) -> Config:
    line = header.to_json()
    model, params = ModelParams.from_header(line), ContextParams.from_header(line)
    return Config(header.model, model, params, header.made_smaller)
