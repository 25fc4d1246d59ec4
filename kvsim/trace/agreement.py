"""Whether a header agrees with itself: what was made must be what the model and the parameters give.

Reading a trace does not need this (a picture can be shown for any model); replaying it does.
"""

from __future__ import annotations

import reprlib
from typing import Any

from kvsim.errors import TraceError
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ResolvedContext
from kvsim.trace.header import Header

RESOLVED = ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "kv_unified", "flash_attn")


def check_agreement(header: Header, resolved: ResolvedContext, spec: MemorySpec) -> None:
    """Compare the header's ``cparams``, ``caches``, ``recurrent`` and ``dsv4`` with the derived ones.

    Raises TraceError naming the first that differs, with both values.
    """
    if spec.kind != header.memory:
        raise TraceError(f"header.memory is {header.memory!r}, but {header.arch} has {spec.kind!r}")
    for key in RESOLVED:
        _same(f"config.cparams.{key}", header.cparams[key], getattr(resolved, key))
    for name, cache in spec.caches.items():
        recorded = header.caches.get(name, {})
        for key, value in cache.to_json().items():
            if key == "size" and name in header.made_smaller:
                continue
            _same(f"config.caches.{name}.{key}", recorded.get(key), value)
    _same("config.recurrent", header.config["recurrent"], spec.recurrent and spec.recurrent.to_json())
    for name, ring in spec.compressors.items():
        _same(f"config.dsv4.{name}", header.config["dsv4"][name], ring.to_json())


def _same(where: str, recorded: Any, derived: Any) -> None:
    if recorded != derived:
        values = f"{reprlib.repr(recorded)}, the model and the parameters give {reprlib.repr(derived)}"
        raise TraceError(f"{where} is {values}")
