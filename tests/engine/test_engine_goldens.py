"""llama.cpp's recorded numbers, recomputed by the engine: the checks of ``kvsim verify``, with kvsim's
functions replaced by the engine's, within the same tolerances (on a GPU: four times)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_recordings import slack

from engine import codecs, compressor, indexer, rope, store
from kvsim.models.cache_types import cache_type
from kvsim.tensors import codecs as reference
from kvsim.tensors.shift import KeyShift
from kvsim.verify import dsa, dsv4, msa, rowcodec, verify_file

GOLDENS = Path(__file__).parents[2] / "fixtures" / "goldens"
STORED = ("f32", "f16", "bf16", "q8_0", "q4_0")


def files(family: str) -> list[Path]:
    return sorted((GOLDENS / family).glob("*.npz"))


def on(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors as a function of arrays."""

    def convert(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(x)).to(device)
        return x

    def called(*args: Any, **kwargs: Any) -> Any:
        out = function(*map(convert, args), **{k: convert(v) for k, v in kwargs.items()})
        parts = out if isinstance(out, tuple) else (out,)
        arrays = tuple(part.cpu().numpy() for part in parts)
        return arrays if isinstance(out, tuple) else arrays[0]

    return called


def bytes_of(stored: torch.Tensor) -> torch.Tensor:
    return stored.contiguous().view(torch.uint8)


def encode(name: str, rows: torch.Tensor) -> torch.Tensor:
    return bytes_of(codecs.encode(cache_type(name), rows))


def decode(name: str, raw: torch.Tensor) -> torch.Tensor:
    kind = cache_type(name)
    return codecs.decode(kind, raw.view(codecs.FLOATS.get(name, torch.uint8)))


def assert_agrees(path: Path, device: str) -> int:
    result = verify_file(path)
    bad = [check for check in result.checks if check.max_error > slack(device) * check.tolerance]
    assert not bad, f"{path.name}: {bad[0]}"
    return len(result.checks)


def test_rows_have_llama_cpps_bytes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowcodec, "CACHE_TYPES", {name: cache_type(name) for name in STORED})
    monkeypatch.setattr(rowcodec, "encode", on(device, encode))
    monkeypatch.setattr(rowcodec, "decode", on(device, decode))
    assert sum(assert_agrees(path, device) for path in files("rowcodec")) > 10


@pytest.mark.parametrize("name", STORED)
def test_many_rows_have_the_references_bytes(name: str, device: str) -> None:
    """One value in a hundred thousand is near enough to the middle of two quants for a last bit to decide."""
    rng = np.random.default_rng(12)
    rows = (rng.normal(size=(4096, 256)) * np.exp(rng.normal(size=(4096, 1)))).astype(np.float32)
    stored = reference.encode(name, rows)
    ours = encode(name, torch.from_numpy(rows).to(device))
    assert np.array_equal(ours.cpu().numpy(), np.ascontiguousarray(stored).view(np.uint8).reshape(ours.shape))
    assert np.array_equal(decode(name, ours).cpu().numpy(), reference.decode(name, stored))


def test_keys_turn_as_recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte where rows are quantised."""

    def apply(key: KeyShift, rows: np.ndarray, shift: np.ndarray) -> None:
        raw = torch.from_numpy(rows).to(device)
        stored = raw.view(codecs.FLOATS.get(key.kind.name, torch.uint8))
        store.turn_keys(key, stored, torch.from_numpy(shift).to(device))
        rows[:] = bytes_of(stored).cpu().numpy()

    monkeypatch.setattr(KeyShift, "apply", apply)
    for path in files("kshift"):
        if not any(f"_{name}" in path.name for name in ("iq4_nl", "q4_1", "q5_0", "q5_1")):
            assert_agrees(path, device)


def test_the_lightning_indexer_scores_as_recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsa, "index_vectors", on(device, indexer.index_vectors))
    monkeypatch.setattr(dsa, "index_scores", on(device, indexer.index_scores))
    for path in files("dsa"):
        assert_agrees(path, device)


def test_blocks_are_scored_and_chosen_as_recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slots(pos: torch.Tensor, mine: torch.Tensor, n_pos: int) -> torch.Tensor:
        return indexer.cells_of_positions(pos, mine, n_pos)[0].to(torch.int32)

    def visible(tok_pos: torch.Tensor, pos: torch.Tensor, mine: torch.Tensor, n_pos: int) -> torch.Tensor:
        return indexer.visible_positions(tok_pos, indexer.cells_of_positions(pos, mine, n_pos)[1])

    def scores(q: Any, keys: Any, slots: Any, seen: Any, block: int) -> torch.Tensor:
        return indexer.block_scores(q, keys, slots.to(torch.int64), seen, block)

    monkeypatch.setattr(msa, "rope", on(device, rope.turn))
    for name, function in (
        ("slots_of_positions", slots), ("visible_positions", visible), ("block_scores", scores),
        ("gathered_cells", lambda b, s, v, n: indexer.gathered_blocks(b.to(torch.int64), s, v, n)),
    ):  # fmt: skip
        monkeypatch.setattr(msa.msa, name, on(device, function))
    for path in files("msa"):
        assert_agrees(path, device)


def test_compressors_give_the_recorded_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(state: Any, plan: Any, kv: np.ndarray, score: np.ndarray) -> np.ndarray:
        ours = compressor.CompressorState(
            state.shape, *(torch.from_numpy(x).to(device) for x in (state.kv, state.score))
        )
        on_device = compressor.DevicePlan(plan, torch.device(device))
        rows = compressor.run_plan(ours, on_device, *(torch.from_numpy(x).to(device) for x in (kv, score)))
        state.kv[:], state.score[:] = ours.kv.cpu().numpy(), ours.score.cpu().numpy()
        return rows.cpu().numpy()

    monkeypatch.setattr(dsv4, "run_plan", run)
    for path in files("dsv4"):
        assert_agrees(path, device)
