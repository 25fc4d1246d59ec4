"""A configuration whose memory is counted: what is chosen on the page, and what its address says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.context_params import ContextParams
from kvsim.models.known import KNOWN, known_model
from kvsim.models.params import ModelParams
from kvsim.models.tiny import tiny_model

TINY = ("deepseek4", "glm5-next", "minimax-m3", "dots3note", "lfm2-windowed")
"""Small test models, for members of the family of which no public model is known by name."""

MODELS = (*KNOWN, *(f"{name} (test model)" for name in TINY))
TYPES = tuple(CACHE_TYPES)


@dataclass(frozen=True)
class Setting:
    """``n_ctx`` cells for ``n_seq_max`` sequences; ``streams`` gives each a part of its own."""

    model: str = "gemma3-12b"
    n_ctx: int = 32768
    n_seq_max: int = 1
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    streams: bool = False
    swa_full: bool = False
    n_rs_seq: int = 0

    @property
    def params(self) -> ContextParams:
        """What a context is asked for."""
        return ContextParams(
            n_ctx=self.n_ctx,
            n_seq_max=self.n_seq_max,
            n_ubatch=self.n_ubatch,
            type_k=self.type_k,
            type_v=self.type_v,
            kv_unified=not self.streams,
            swa_full=self.swa_full,
            n_rs_seq=self.n_rs_seq,
        )

    def to_query(self) -> dict[str, str]:
        """What the address says: the fields that are not as at first."""
        first = Setting()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            k: str(int(v) if isinstance(v, bool) else v) for k, v in values.items() if v != getattr(first, k)
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Setting:
        """The setting an address asks for; what cannot be is left as at first."""
        first, found = cls(), {}
        for f in fields(cls):
            raw, old = query.get(f.name, ""), getattr(first, f.name)
            if isinstance(old, bool) and raw in ("0", "1"):
                found[f.name] = raw == "1"
            elif type(old) is int and raw.isascii() and raw.isdigit() and len(raw) < 12:
                found[f.name] = min(int(raw), LIMITS[f.name])
            elif isinstance(old, str) and raw in (MODELS if f.name == "model" else TYPES):
                found[f.name] = raw
        return cls(**found)


LIMITS = {"n_ctx": 2**24, "n_seq_max": 256, "n_ubatch": 2**16, "n_rs_seq": 64}
"""The largest numbers the page takes."""


def model_of(name: str) -> ModelParams:
    """The model called ``name`` on the page."""
    tiny = name.removesuffix(" (test model)")
    return known_model(name) if tiny == name else tiny_model(tiny).params()
