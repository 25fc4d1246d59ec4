"""The K-shift of llama.cpp's own library beside kvsim's: every type is measured, times are not checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from live_lane import needs_library

from kvsim.bench import upstream
from kvsim.bench.cells import LEFT_FREE, filled, library, params_for
from kvsim.bench.tensors import rows_of
from kvsim.models.cache_types import CACHE_TYPES, cache_type
from kvsim.tensors.codecs import decode

pytestmark = needs_library

SIZE = 2048


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.bench.measure.COPIED", 1 << 16)
    monkeypatch.setattr("kvsim.bench.upstream.COPIED", 1 << 16)


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_two_rows_a_type(kind: str) -> None:
    """llama.cpp's CPU backend has no rope for bf16, and ends the process."""
    rows = list(upstream.shift_rows(cache_type(kind), SIZE, None, repeats=3))
    if kind == "bf16":
        assert [row.against for row in rows] == ["llama.cpp (ends its process)"]
    else:
        assert [row.against.split(" b")[0] for row in rows] == ["a plain copy", "llama.cpp"]
        assert rows[0].seconds == rows[1].reference
    assert rows[-1].seconds > 0


@pytest.mark.parametrize("kind", [kind for kind in CACHE_TYPES if kind != "bf16"])
def test_both_sides_turn_the_same_rows_alike(kind: str, tmp_path: Path) -> None:
    """What is measured is the same work: the keys are equal afterwards, but for a few last places."""
    params = replace(params_for(SIZE), type_k=kind)
    n = SIZE - LEFT_FREE
    context, copy = filled(params, n, data=True), filled(params, n, data=True)
    layer, keys = upstream.keys_of(context)
    keys[...] = rows_of(cache_type(kind), SIZE, layer.n_embd_k)
    before = keys[:n].copy()
    live = library(tmp_path, params, context, None)
    assert live is not None
    with live:
        upstream.Turner(context)()
        live.clock(upstream.shift_and_decode(1, n + 1))
        assert copy.state_set(live.state_bytes()) > 0
    theirs = upstream.keys_of(copy)[1][:n]
    assert (keys[:n] != before).mean() > 0.5
    ours, upstreams = decode(kind, keys[:n]), decode(kind, theirs)
    if kind == "f32":
        assert np.abs(ours - upstreams).max() < 1e-6
    else:
        assert (ours != upstreams).mean() < 1e-3
        assert np.abs(ours - upstreams).max() < 0.5  # one quant of the largest block
