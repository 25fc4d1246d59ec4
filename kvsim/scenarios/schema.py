"""What a scenario may hold, and reading one: every error names the file, the line and what is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError, TraceError
from kvsim.memory import MAX_SEQ
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.context_params import ContextParams
from kvsim.trace.kinds import BOOL, COUNT, INT, LIST, RECORD, Kind, Table, integer, one_of

MAX_OPS = 100_000
"""Most operations of a scenario, its repetitions counted."""

_SEQ = integer(0, MAX_SEQ - 1)
_SEQS = Kind(
    f"a sequence, 0 to {MAX_SEQ - 1}, or a list of different ones",
    lambda v: (
        _SEQ.test(v) or (type(v) is list and v != [] and all(map(_SEQ.test, v)) and len(set(v)) == len(v))
    ),
)
_LINES = Kind("text", lambda v: type(v) is str and v.strip() != "")
_TOKENS = Kind(
    "a list of token ids from 0 on", lambda v: type(v) is list and v != [] and all(map(COUNT.test, v))
)
_MANY = integer(1, MAX_OPS)
_TYPE = one_of(*CACHE_TYPES)
_SIZE = integer(1, 2**24)

CONTEXT: Table = {
    **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), _SIZE),
    "n_seq_max": integer(1, MAX_SEQ),
    "n_rs_seq": integer(0, 64),
    **dict.fromkeys(("kv_unified", "swa_full", "flash_attn"), BOOL),
    **dict.fromkeys(("type_k", "type_v"), _TYPE),
}
"""Settings of the context: those of ``ContextParams`` that change a memory."""

_RANGE: Table = {"p0": INT, "p1": INT}
_FLAGS = one_of(0, 1)

STEPS: dict[str, tuple[Table, Table]] = {
    "decode": ({"seq": _SEQS}, {"n": _MANY, "tokens": _TOKENS, "at": INT}),
    "seq_rm": ({"seq": integer(-1, MAX_SEQ - 1)}, {**_RANGE, "last": _MANY}),
    "seq_cp": ({"src": _SEQ, "dst": _SEQ}, _RANGE),
    "seq_keep": ({"seq": _SEQ}, {}),
    "seq_add": ({"seq": _SEQ, "delta": INT}, _RANGE),
    "seq_div": ({"seq": _SEQ, "d": integer(1, 1000)}, _RANGE),
    "clear": ({}, {"data": BOOL}),
    "state_seq_get": ({"seq": _SEQ, "slot": COUNT}, {"flags": _FLAGS}),
    "state_seq_set": ({"seq": _SEQ, "slot": COUNT}, {"flags": _FLAGS}),
    "state_get": ({"slot": COUNT}, {}),
    "state_set": ({"slot": COUNT}, {}),
    "repeat": ({"times": _MANY, "steps": LIST}, {}),
}
"""Every step with what it must have, and what it may have."""


class ScenarioError(KvsimError):
    """A scenario that cannot be used: file and line, what is there, what is wanted."""


@dataclass(frozen=True)
class ScenarioStep:
    """One step: the operation, its arguments as written, the answer that is expected (None: any), its line.

    ``parts`` are those of a batch, in place of ``args``; ``steps`` are those of a ``repeat``.
    """

    op: str
    args: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...] = ()
    gives: int | None = None
    line: int = 0
    steps: tuple[ScenarioStep, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A scenario: its title, what it shows, the model it is written for, the context, the steps."""

    path: str
    title: str
    about: str
    model: str
    context: ContextParams
    steps: tuple[ScenarioStep, ...] = field(repr=False, default=())


def parse_scenario(text: str, path: str = "scenario") -> Scenario:
    """Read and check a scenario. Raises ScenarioError, at the first mistake."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ScenarioError("scenarios need PyYAML: pip install 'kvsim[cli]'") from error
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ScenarioError(f"{path}: aliases (*name) are not used in scenarios: write it out")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else path
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ScenarioError(f"{where}: not YAML: {problem}") from None
    except ValueError as error:  # of a date or a number that cannot be
        raise ScenarioError(f"{path}: not YAML: {error}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply") from None
    return _Reader(path, _lines_of(node)).scenario(data)


def _lines_of(node: Any, where: str = "") -> dict[str, int]:
    """The line of every value, by its place (``steps[2].decode``)."""
    if node is None:
        return {}
    found = {where: node.start_mark.line + 1}
    if node.id == "mapping":
        for key, value in node.value:
            found |= {
                **_lines_of(value, f"{where}.{key.value}"),
                f"{where}.{key.value}": key.start_mark.line + 1,
            }
    elif node.id == "sequence":
        for i, value in enumerate(node.value):
            found |= _lines_of(value, f"{where}[{i}]")
    return found


class _Reader:
    """Checks the parts of one file."""

    def __init__(self, path: str, lines: dict[str, int]) -> None:
        self.path, self.lines = path, lines

    def fail(self, where: str, reason: str) -> ScenarioError:
        # what is missing has no line: that of what it is missing in
        at = where
        while at and at not in self.lines:
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        return ScenarioError(f"{self.path}, line {self.lines.get(at, 1)}: {where.lstrip('.')}{reason}")

    def record(self, value: Any, where: str, needs: Table, may: Table) -> dict[str, Any]:
        """A mapping with these keys, of these kinds."""
        name = where.lstrip(".") or "a scenario"
        if type(value) is not dict:
            raise self.fail(
                where, f" is {value!r}, must be a mapping" if where else "a scenario is a mapping"
            )
        known = {**needs, **may}
        for key in value:
            if key not in known:
                raise self.fail(
                    f"{where}.{key}", f" is not known; {name} has {', '.join(known) or 'nothing'}"
                )
        for key in needs:
            if key not in value:
                raise self.fail(where, f"{' ' if where else ''}has no {key!r}")
        for key, item in value.items():
            try:
                known[key].check(item, "")
            except TraceError as error:
                raise self.fail(f"{where}.{key}", str(error.reason)) from None
        return value

    def scenario(self, data: Any) -> Scenario:
        needs: Table = {"title": _LINES, "about": _LINES, "model": _LINES, "context": RECORD, "steps": LIST}
        top = self.record(data, "", needs, {})
        context = self.record(top["context"], ".context", {"n_ctx": CONTEXT["n_ctx"]}, CONTEXT)
        steps = self.steps(top["steps"], ".steps")
        n = sum(map(n_ops, steps))
        if n > MAX_OPS:
            raise self.fail(".steps", f": {n} operations with all repetitions, at most {MAX_OPS}")
        about = " ".join(top["about"].split())
        params = ContextParams(**{"swa_full": False, **context})
        return Scenario(self.path, top["title"].strip(), about, top["model"], params, steps)

    def steps(self, data: list[Any], where: str) -> tuple[ScenarioStep, ...]:
        if not data:
            raise self.fail(where, " is empty")
        return tuple(self.step(step, f"{where}[{i}]") for i, step in enumerate(data))

    def step(self, data: Any, where: str) -> ScenarioStep:
        names = [key for key in data if key != "gives"] if type(data) is dict else []
        if len(names) != 1 or names[0] not in STEPS:
            raise self.fail(where, f" must be one of {', '.join(STEPS)}, with its arguments")
        [op] = names
        gives = data.get("gives")
        if gives is not None and type(gives) is not int:
            raise self.fail(f"{where}.gives", f" is {gives!r}, must be the number that the operation answers")
        needs, may = STEPS[op]
        line = self.lines.get(f"{where}.{op}", 1)
        if op == "repeat":
            args = self.record(data[op], f"{where}.repeat", needs, may)
            inner = self.steps(args["steps"], f"{where}.repeat.steps")
            return ScenarioStep(op, args, line=line, steps=inner)
        if op == "decode":
            return ScenarioStep(op, {}, self.batch(data[op], f"{where}.decode"), gives, line)
        args = self.record(data[op] or {}, f"{where}.{op}", needs, may)
        if "last" in args and ("p0" in args or "p1" in args):
            raise self.fail(f"{where}.{op}.last", " stands for p0 and p1: give either it or them")
        return ScenarioStep(op, args, (), gives, line)

    def batch(self, data: Any, where: str) -> tuple[dict[str, Any], ...]:
        """The parts of a batch: one, or a list of them."""
        parts = data if type(data) is list else [data]
        if not parts:
            raise self.fail(where, " is empty")
        for i, part in enumerate(parts):
            at = f"{where}[{i}]" if type(data) is list else where
            self.record(part, at, *STEPS["decode"])
            if ("n" in part) == ("tokens" in part):
                raise self.fail(at, " must have either n (how many tokens) or tokens (their ids)")
        return tuple(parts)


def n_ops(step: ScenarioStep) -> int:
    """The operations of a step, repetitions counted."""
    return step.args["times"] * sum(map(n_ops, step.steps)) if step.op == "repeat" else 1
