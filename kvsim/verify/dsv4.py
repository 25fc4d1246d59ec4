"""Goldens of DeepSeek-V4's compressors: plan, rings, compressed rows, selection and attention.

Prefix ``s<k>.<compressor>.`` per recorded decode. Everything starts from recorded inputs: the plan from
the ubatch, the rings from the rings before, a compressed row from the rings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plan
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.compressor import (
    CompressorShape,
    CompressorState,
    Plan,
    add_position_bias,
    finish_rows,
    run_plan,
    visible_rows,
)
from kvsim.tensors.indexer import chosen, index_scores
from kvsim.tensors.rope import Rope
from kvsim.tensors.topk import heap_top_k
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact
from kvsim.verify.precision import attend

NORM_EPS = 1e-5
# the figures of the goldens' README, which have two digits: hence half a digit more
ROWS = {"csa": 3.55e-6, "lid": 1.15e-6, "hca": 2.45e-7}
SCORE = 6.1e-7
ATTENTION = {"f32": 4e-7, "f16": 2e-4}
"""With f16 the output is collected in f16, where one step may round the other way."""


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks: list[ArrayCheck] = []
    for name in ("csa", "hca", "lid"):
        state: tuple[NDArray[Any], NDArray[Any]] | None = None
        for args in (op[1] for op in meta["ops"] if op[0] == "decode" and op[1].get("recorded")):
            part = _Part(arrays, meta, args, name)
            if "state_kv_before" in part:
                state = part["state_kv_before"], part["state_score_before"]
            assert state is not None, "the first recorded step holds the state before it"
            checks += _check_compression(part, *state)
            state = part["state_kv_after"], part["state_score_after"]
            checks += _check_selection(part) if name == "lid" else _check_attention(part, meta)
    return checks


class _Part:
    """One compressor in one ubatch."""

    def __init__(self, arrays: Arrays, meta: Meta, args: Meta, name: str) -> None:
        self.arrays, self.name, self.args = arrays, name, args
        self.prefix = f"{args['prefix']}{name}."
        config, cache = meta["dsv4"][name], meta["caches"][name]
        self.shape = CompressorShape(
            ratio=config["ratio"],
            overlap=name != "hca",
            state_size=config["state_size"],
            kv_size=cache["size"],
            n_stream=config["n_stream"],
            n_rs_seq=config["n_rs_seq"],
        )
        self.n_hadamard = cache["n_rot_k"]
        self.type_k = cache["layers"][0]["type_k"]
        rotated, base = meta["rope"]["n_rot"], meta["rope"]["base"]
        self.rope = Rope(rotated, offset=self["rows"].shape[-1] - rotated, base=base)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[self.prefix + name]

    def constant(self, name: str) -> NDArray[Any]:
        return self.arrays[f"{self.name}.{name}"]

    def plan(self) -> Plan:
        record, prefix = self.args["ubatch"], self.args["prefix"]
        n_tokens = len(record["idx"])
        ubatch = Ubatch(
            pos=self.arrays[prefix + "tok_pos"][None],
            seq_ids=tuple((s,) for s in self.arrays[prefix + "tok_seq"].tolist()),
            output=np.ones(n_tokens, np.bool_),
            idx=np.array(record["idx"], np.int32),
            tokens=None,
            has_embd=False,
            n_seq_tokens=record["n_seq_tokens"],
            n_seqs=record["n_seqs"],
            equal_seqs=record["n_seqs"] != n_tokens,
            seq_id_unq=tuple(record["seq_unq"]),
        )
        return build_plan(ubatch, self.shape, self.args["rs_idx_before"])


def _check_compression(part: _Part, kv: NDArray[Any], score: NDArray[Any]) -> Iterator[ArrayCheck]:
    plan = part.plan()
    for field, built in plan.to_json().items():
        if part.prefix + field in part.arrays:
            yield exact(part.prefix + field, built, part[field])
    biased = add_position_bias(part["score_in"], part.constant("ape"), plan.state_pos)
    yield exact(part.prefix + "score_ape", biased, part["score_ape"])
    state = CompressorState(part.shape, kv.astype(np.float64), score.astype(np.float64))
    raw = run_plan(state, plan, part["kv_in"].astype(np.float64), biased.astype(np.float64))
    yield exact(part.prefix + "state_kv_after", state.kv, part["state_kv_after"])
    yield exact(part.prefix + "state_score_after", state.score, part["state_score_after"])
    norm = part.constant("norm").astype(np.float64)
    rows = finish_rows(raw, plan.state_write_pos, norm, NORM_EPS, part.rope, part.n_hadamard)
    yield close(part.prefix + "rows", rows.astype(np.float32), part["rows"], ROWS[part.name])
    yield _check_cache(part, plan)


def _check_cache(part: _Part, plan: Plan) -> ArrayCheck:
    """The recorded first rows of the cache hold the rows of this ubatch, as the cache's type stores them."""
    stream, row = np.divmod(plan.state_write_idxs, part.shape.kv_size)
    recorded = row < part["cache_rows"].shape[1]
    stored = decode(part.type_k, encode(part.type_k, part["rows"]))
    cached = part["cache_rows"][stream[recorded], row[recorded]]
    return exact(part.prefix + "cache_rows", stored[recorded], cached)


def _check_selection(part: _Part) -> Iterator[ArrayCheck]:
    """The indexer's scores, the chosen rows, and the mask that attention gets for them."""
    prefix = part.args["prefix"]
    streams = part.args["ubatch"]["seq_unq"] if part.shape.n_stream > 1 else [0]
    n_visible = part["n_visible"].reshape(len(streams), -1)
    n_kv = int(part["n_kv"])
    scores, masks = part["score"], part.arrays[prefix + "csa.topk_mask"]
    for i, stream in enumerate(streams):
        keys = part["cache_rows"][stream].astype(np.float64)
        q, w = part["q"][i].astype(np.float64), part["w"][i].astype(np.float64)
        visible = visible_rows(n_visible[i], n_kv)
        seen = index_scores(q, keys, w, visible[:, : len(keys)])
        width = min(len(keys), scores.shape[-1])
        name = f"{part.prefix}score[{i}]"
        yield close(name, seen[:, :width], scores[i, :, :width], SCORE)
        # the rows beyond those recorded are invisible
        padded = np.full((len(q), n_kv), -np.inf)
        padded[:, : scores.shape[-1]] = scores[i]
        top = heap_top_k(padded, part["topk"].shape[-1])
        yield exact(f"{part.prefix}topk[{i}]", top, part["topk"][i])
        mask = np.where(chosen(top, n_kv) & visible, 0, -np.inf)[:, : masks.shape[-1]]
        yield exact(f"{prefix}csa.topk_mask[{i}]", mask, masks[i])


def _check_attention(part: _Part, meta: Meta) -> Iterator[ArrayCheck]:
    """Raw window cells, then compressed rows; rows are keys and values at once, and each head has a sink."""
    streams = part.args["ubatch"]["seq_unq"] if part.shape.n_stream > 1 else [0]
    n_visible = np.split(part["n_visible"], len(streams))
    queries = np.split(part["q"].astype(np.float64), len(streams))
    want = np.split(part["attn_out"], len(streams))
    for i, stream in enumerate(streams):
        compressed = part["cache_rows"][stream].astype(np.float64)
        selected = visible_rows(n_visible[i], len(compressed))
        if part.name == "csa":
            width = min(part["topk_mask"].shape[-1], len(compressed))
            selected[:, :width] &= part["topk_mask"][i, :, :width] == 0
        rows = np.concatenate([part["raw_k"][i].astype(np.float64), compressed])[:, None]
        mask = np.concatenate([part["raw_mask"][i] == 0, selected], axis=1)
        out = attend(
            queries[i],
            rows,
            rows,
            mask,
            scale=rows.shape[-1] ** -0.5,
            type_k=part.type_k,
            type_v=part.type_k,
            flash=meta["cparams"]["flash_attn"],
            sinks=part.constant("sinks").astype(np.float64),
        )
        yield close(f"{part.prefix}attn_out[{i}]", out, want[i], ATTENTION[part.type_k])
