"""Every recorded compressor plan is rebuilt from the recorded ubatch, without a difference."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plans
from kvsim.tensors.compressor import CompressorShape

TRACES = Path(__file__).parents[2] / "fixtures" / "traces" / "dsv4"
FILES = sorted(TRACES.glob("*.jsonl.gz"))


def shapes_of(config: dict[str, Any]) -> dict[str, CompressorShape]:
    return {
        name: CompressorShape(
            ratio=state["ratio"],
            overlap=name != "hca",
            state_size=state["state_size"],
            kv_size=config["caches"][name]["size"],
            n_stream=state["n_stream"],
            n_rs_seq=state["n_rs_seq"],
        )
        for name, state in config["dsv4"].items()
    }


def recorded_ubatch(record: dict[str, Any], args: dict[str, Any]) -> Ubatch:
    """The ubatch of a record; ids of shared tokens come from the record, in llama.cpp's order."""
    idx = record["idx"]
    return Ubatch(
        pos=np.array([[args["pos"][i] for i in idx]], np.int32),
        seq_ids=tuple(tuple(ids) for ids in record.get("seq") or [args["seq"][i] for i in idx]),
        output=np.zeros(len(idx), bool),
        idx=np.array(idx, np.int32),
        tokens=None,
        has_embd=False,
        n_seq_tokens=record["n_seq_tokens"],
        n_seqs=record["n_seqs"],
        equal_seqs=record["equal"],
        seq_id_unq=tuple(record["seq_unq"]),
    )


def recorded_plans(path: Path) -> Iterator[tuple[int, str, dict[str, Any], dict[str, Any]]]:
    """Per ubatch and compressor: operation number, compressor, plan built, plan recorded."""
    rs_idx: list[int] = []
    with gzip.open(path, "rt") as lines:
        shapes = shapes_of(json.loads(next(lines))["config"])
        for line in map(json.loads, lines):
            records = line.get("ubatches") or []
            ubatches = [recorded_ubatch(record, line["args"]) for record in records]
            for name, shape in shapes.items():
                for record, plan in zip(records, build_plans(ubatches, shape, rs_idx), strict=True):
                    yield line["i"], name, plan.to_json(), record["plan"][name]
            if line["after"] is not None:
                rs_idx = line["after"]["rs_idx"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.removesuffix(".jsonl.gz"))
def test_recorded_plans_are_rebuilt(path: Path) -> None:
    n_plans = 0
    for i, name, built, recorded in recorded_plans(path):
        assert built == recorded, f"operation {i}, {name}"
        n_plans += 1
    assert n_plans > 100


def test_all_recordings_are_there() -> None:
    assert len(FILES) == 10
