"""A configuration of the page: a :class:`Setup`, perhaps of an uploaded header, and its short text in a link.

>>> text_of_setup(Setup("gemma3-4b", n_ctx=8192, unified=True))
'arch:gemma3-4b,n_ctx:8192,unified:1'
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from app.workload_page.source import text_of, value_of
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.params import ModelParams
from kvsim.workload.cost import PARAMETERS
from kvsim.workload.setup import POLICIES, Setup

MODELS = tuple(PARAMETERS)
TYPES = tuple(CACHE_TYPES)
FIRST = Setup("gemma3-4b", n_ctx=16384, parallel=8, unified=True)
"""What a newcomer finds: small enough to fail now and then."""

MOST = {
    "n_ctx": 2**22, "parallel": 256, "n_batch": 2**16, "n_ubatch": 2**16, "similarity": 1.0, "n_keep": 2**20,
    "cache_reuse": 2**20, "checkpoints": 1024, "n_params": 1e14, "n_active": 1e14, "weight_bytes": 16.0,
    "bandwidth": 1e18, "rate": 1e21, "overhead": 10.0,
}  # fmt: skip
"""The largest numbers the page takes."""

_WORDS = {
    "n_ctx": lambda v: f"{v:,} cells",
    "parallel": lambda v: f"{v} slots",
    "unified": lambda v: "unified" if v else "streams",
    "swa_full": lambda v: "swa_full" if v else "window",
    "policy": lambda v: "paged" if v == "paged" else "slots",
    "ctx_shift": lambda v: "context shift" if v else "no shift",
    "type_k": lambda v: f"K {v}",
    "type_v": lambda v: f"V {v}",
    "checkpoints": lambda v: f"{v} checkpoints",
    "cache_reuse": lambda v: f"reuse from {v}",
}


@dataclass(frozen=True)
class HeaderSetup(Setup):
    """A setup whose model was read from an uploaded header."""

    header: ModelParams | None = None

    def model(self) -> ModelParams:
        return self.header or super().model()


def text_of_setup(setup: Setup) -> str:
    """The settings that are not as by default, for an address."""
    first = Setup(arch="")
    told = [
        f"{f.name}:{text_of(getattr(setup, f.name))}"
        for f in fields(Setup)
        if getattr(setup, f.name) != getattr(first, f.name)
    ]
    return ",".join(told)


def setup_of_text(text: str) -> Setup | None:
    """The setup an address asks for; None if it cannot be."""
    kinds = {f.name: getattr(Setup(arch=""), f.name) for f in fields(Setup)}
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, raw = part.partition(":")
        value = value_of(raw, kinds[name]) if name in kinds else None
        if value is None or (name in MOST and value > MOST[name]):
            return None
        found[name] = value
    known = {"arch": MODELS, "policy": POLICIES, "type_k": TYPES, "type_v": TYPES}
    if "arch" not in found or any(found.get(name, names[0]) not in names for name, names in known.items()):
        return None
    return Setup(**found)


def in_words(setup: Setup, beside: Setup | None = None) -> str:
    """What a setup is; with ``beside``, only what differs from it."""
    names = [f.name for f in fields(Setup)]
    shown = names if beside is None else [n for n in names if getattr(setup, n) != getattr(beside, n)]
    usual = {"n_ctx", "parallel", "unified"}
    if beside is None:
        first = Setup(arch="")
        shown = [n for n in names if n in usual or getattr(setup, n) != getattr(first, n)]
    told = [
        _WORDS[name](getattr(setup, name)) if name in _WORDS else f"{name} {text_of(getattr(setup, name))}"
        for name in shown
        if name not in ("arch", "n_params", "n_active") or beside is not None
    ]
    model = [setup.arch] if beside is None else []
    return ", ".join(model + told) or "the same"
