"""Which requests are served: a bundled trace, an upload, or made-up ones; and what an address says of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.numbers import whole
from kvsim.workload.choose import choose
from kvsim.workload.request import Request
from kvsim.workload.synthetic import LogNormal, Synthetic

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "workloads"

BUNDLED = {
    "azure-chat": ("Azure chat service, one hour", "azure_llm_2023_conv.csv.gz"),
    "azure-code": ("Azure coding service, one hour", "azure_llm_2023_code.csv.gz"),
    "mooncake": ("Mooncake chat, shared prefixes", "mooncake_conversation_4000.jsonl.gz"),
}
UPLOAD, MADE_UP = "upload", "made-up"
TITLES = {
    **{key: title for key, (title, _) in BUNDLED.items()},
    MADE_UP: "Made up",
    UPLOAD: "A file of yours",
}

MOST = {
    "requests": 100_000, "turns": 100.0, "system": 100_000, "think": 1e6, "seed": 2**31 - 1, "rate": 1e4,
    "user": 1_000_000, "answer": 100_000, "spread": 3.0, "burstiness": 20.0,
}  # fmt: skip
"""The largest numbers the page takes."""

LEAST = {"turns": 1.0, "rate": 0.001, "user": 1, "answer": 1}


@dataclass(frozen=True)
class Source:
    """``requests`` 0: all of a trace. ``fitted``: made up with the pace and the lengths of the trace. The rest
    is about made-up ones: mean ``turns`` of a conversation, seconds to ``think`` between them, tokens of the
    shared ``system`` prompt; and where nothing is fitted, requests a second, median tokens of what a ``user``
    says and of an ``answer``, the ``spread`` of their logarithms, and how bursty they come."""

    kind: str = "azure-chat"
    requests: int = 1000
    fitted: bool = False
    turns: float = 1.0
    think: float = 60.0
    system: int = 0
    seed: int = 0
    rate: float = 5.0
    user: int = 400
    answer: int = 150
    spread: float = 1.0
    burstiness: float = 1.0

    def title(self, file_name: str = "") -> str:
        """In a few words."""
        name = file_name if self.kind == UPLOAD else TITLES[self.kind]
        return f"{name}, fitted" if self.fitted else name

    def to_query(self) -> dict[str, str]:
        """What the address says: the fields that are not as at first."""
        first = Source()
        return {
            f.name: text_of(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) != getattr(first, f.name)
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Source:
        """The source an address asks for; what cannot be is left as at first. An upload is not in an address."""
        first, found = cls(), {}
        for f in fields(cls):
            value = value_of(query.get(f.name, ""), getattr(first, f.name))
            if f.name == "kind":
                value = value if value in TITLES and value != UPLOAD else None
            elif value is not None and not isinstance(value, bool):
                value = min(max(value, LEAST.get(f.name, 0)), MOST[f.name])
            if value is not None:
                found[f.name] = value
        return cls(**found)


def text_of(value: Any) -> str:
    """A value in an address."""
    return (
        str(int(value))
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def value_of(text: str, like: Any) -> Any:
    """A value from an address, of the type of ``like``; None if it is none."""
    if isinstance(like, bool):
        return {"0": False, "1": True}.get(text)
    if isinstance(like, int):
        return whole(text, 11)
    if isinstance(like, float):
        try:
            value = float(text) if text.isascii() else math.nan
        except ValueError:
            return None
        return value if math.isfinite(value) and value >= 0 else None
    return text or None


def requests_of(source: Source, file: Path | None) -> tuple[Iterable[Request], int, float]:
    """The requests, how many they are, and over how many seconds they come.

    Raises WorkloadError with its line for a file that cannot be used, before anything is simulated.
    """
    if source.kind == MADE_UP:
        made = Synthetic(
            n_requests=source.requests,
            rate=source.rate,
            user=LogNormal(source.user, source.spread),
            answer=LogNormal(source.answer, source.spread),
            system=source.system,
            turns=source.turns,
            think=source.think,
            burstiness=source.burstiness,
            seed=source.seed,
        )
        return made, source.requests, source.requests / source.rate
    path = file or FOLDER / BUNDLED[source.kind][1]
    if not source.fitted:
        return choose(path, source.requests)
    found, n, seconds = choose(
        path, 0, source.requests or choose(path)[1], source.turns, source.system, source.seed
    )
    assert isinstance(found, Synthetic)
    return replace(found, think=source.think), n, seconds
