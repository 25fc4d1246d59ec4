"""Which memory is played with: a model, the context it is given, and what kvsim has against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from kvsim.errors import CacheUsageError, KvsimError, TraceError
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.context_params import CONTEXT_PAD, ContextParams, resolve
from kvsim.models.known import KNOWN, known_model
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams, SwaType
from kvsim.models.tiny import tiny_model
from kvsim.replay import context_of
from kvsim.trace import Header
from kvsim.trace.describe import header_of

MEMBERS: dict[str, str] = {
    "llama": "kv: attention cells",
    "gemma3": "iswa: full and window cells",
    "mamba": "recurrent: one state a sequence",
    "lfm2": "hybrid: cells and states",
    "lfm2-windowed": "hybrid iswa: window and states",
    "glm5-next": "hybrid with an indexer",
    "deepseek32": "dsa: latent cells, indexer",
    "dots3note": "dsa iswa: latent, indexer, window",
    "minimax-m3": "msa: cells and index blocks",
    "deepseek4": "dsv4: window and compressors",
}
"""One small model for every member of the family."""

OTHERS = ("qwen2vl", "gemma2", "jamba")
"""More small models that a script may name."""

TYPES = tuple(CACHE_TYPES)

MAX_CELLS = 16_384
"""Most cells of all caches and streams: a step of more is slow to draw for many at a time."""

MIN_CELLS = 8


class SetupError(KvsimError):
    """A memory that cannot be, for a reason that is no memory's but this page's."""


@dataclass(frozen=True)
class Setup:
    """A memory as its fields on the page say it. ``cells`` are those of one stream; ``window`` 0 is the
    model's own, and ``full_window`` gives window caches as many cells as the others."""

    model: str = "llama"
    cells: int = 128
    ubatch: int = 16
    sequences: int = 4
    unified: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    window: int = 0
    full_window: bool = False
    snapshots: int = 0

    # -- what kvsim makes of it ----------------------------------------------------------------

    @cached_property
    def params(self) -> ContextParams:
        """What is asked of the context."""
        return ContextParams(
            n_ctx=self.cells * (1 if self.unified else self.sequences),
            n_ubatch=self.ubatch,
            n_seq_max=self.sequences,
            n_rs_seq=self.snapshots,
            kv_unified=self.unified,
            swa_full=self.full_window,
            type_k=self.type_k,
            type_v=self.type_v,
        )

    @cached_property
    def model_params(self) -> ModelParams:
        """The model, with the window asked for."""
        model = known_model(self.model) if self.model in KNOWN else tiny_model(self.model).params()
        if not self.window:
            return model
        if model.swa_type is SwaType.NONE:
            raise CacheUsageError(f"n_swa = {self.window}: {model.arch} has no sliding window to set")
        return replace(model, n_swa=self.window)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Caches that get fewer cells than llama.cpp gives them, which rounds up to steps of 256."""
        spec = memory_spec(self.model_params, resolve(self.model_params, self.params))
        if spec is None:
            raise CacheUsageError(f"{self.model_params.arch} keeps no memory: it sees a whole text at once")
        if spec.kind == "dsv4" or self.cells % CONTEXT_PAD == 0:
            return {}  # dsv4: the sizes of its compressed caches follow from one another
        passed = self.model_params.n_swa * (self.sequences if self.unified else 1) + self.ubatch
        windowed = self.cells if self.full_window else min(self.cells, passed)
        wanted = {name: windowed if cache.swa_type else self.cells for name, cache in spec.caches.items()}
        return {name: n for name, n in wanted.items() if n < spec.caches[name].size}

    @cached_property
    def header(self) -> Header:
        """The first line of its trace. Raises KvsimError for a memory that cannot be."""
        self._check()
        try:
            header = header_of(self.model_params, self.params, sizes=self.sizes, name=self.model)
            n = sum(cache["size"] * cache["n_stream"] for cache in header.caches.values())
            if n > MAX_CELLS:
                raise SetupError(
                    f"{n:,} cells in all caches and streams; this page plays with at most {MAX_CELLS:,}"
                )
            context_of(header)
        except TraceError as error:
            raise CacheUsageError(error.reason) from error
        return header

    def _check(self) -> None:
        """What does not depend on a model, before anything large is made."""
        if self.sequences < 1:
            raise CacheUsageError(f"n_seq_max = {self.sequences}: a context has at least 1 sequence")
        if not MIN_CELLS <= self.cells <= MAX_CELLS:
            raise SetupError(f"{self.cells:,} cells: this page plays with {MIN_CELLS} to {MAX_CELLS:,}")
        if self.ubatch < 1:
            raise CacheUsageError(f"n_ubatch = {self.ubatch}: a ubatch takes at least 1 token")

    # -- as text -------------------------------------------------------------------------------

    def line(self) -> str:
        """``memory llama cells=64``: the model, and what is not as usual."""
        usual = Setup(self.model)
        given = [f for f in fields(self) if f.name != "model" and self._value(f.name) != usual._value(f.name)]
        return " ".join(["memory", self.model, *(f"{f.name}={self._value(f.name)}" for f in given)])

    def _value(self, name: str) -> str:
        value = getattr(self, name)
        return ("no", "yes")[value] if isinstance(value, bool) else str(value)

    @classmethod
    def of_line(cls, line: str) -> Setup:
        """From :meth:`line`. Raises SetupError for a field or value that is none."""
        word, _, rest = line.strip().partition(" ")
        model, *given = rest.split() or [""]
        if word != "memory" or model not in {*MEMBERS, *OTHERS, *KNOWN}:
            raise SetupError(
                f"{line[:60]!r} is no memory: write memory, a model of the table, and its fields"
            )
        return replace(cls(model), **dict(map(_field, given)))

    # -- changing ------------------------------------------------------------------------------

    def changed(self, wanted: Setup) -> tuple[Setup, dict[str, str]]:
        """As many of the wanted fields as go together, the model first; and why not the others, by field."""
        setup, errors = self, {}
        for f in fields(self):
            value = getattr(wanted, f.name)
            if value == getattr(setup, f.name):
                continue
            plain = Setup(value, setup.cells, setup.ubatch, setup.sequences, setup.unified)
            tries = [replace(setup, **{f.name: value}), wanted, *([plain] if f.name == "model" else [])]
            for tried in tries:
                why = _refused(tried)
                if not why:
                    setup = tried
                    errors.pop(f.name, None)
                    break
                errors.setdefault(f.name, why)
        return setup, errors


def _refused(setup: Setup) -> str:
    """Why a memory cannot be, "" if it can."""
    try:
        _ = setup.header
    except KvsimError as error:
        return str(error)
    return ""


def _field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    kinds = {f.name: f.type for f in fields(Setup) if f.name != "model"}
    kind = kinds.get(name)
    if kind == "int" and value.isascii() and value.isdigit() and len(value) < 10:
        return name, int(value)
    if kind == "bool" and value in ("yes", "no"):
        return name, value == "yes"
    if kind == "str" and value in TYPES:
        return name, value
    known = ", ".join(kinds)
    raise SetupError(f"{text[:40]!r} is no field of a memory: use {known}, each with = and its value")


def cells_note(setup: Setup, header: Header) -> str:
    """What to say beside the number of cells."""
    made = {cache["size"] for cache in header.caches.values()}
    if setup.sizes:
        return (
            f"llama.cpp would round up to {-(-setup.cells // CONTEXT_PAD) * CONTEXT_PAD:,}; kvsim need not."
        )
    if made and setup.cells not in made:
        return f"Made in steps of {CONTEXT_PAD}: {_either(made)} cells."
    return ""


def _either(sizes: Iterable[int]) -> str:
    return " and ".join(f"{n:,}" for n in sorted(sizes))
