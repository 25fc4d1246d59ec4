"""Goldens of the lightning indexer: rotation, scores, selected cells, final mask, per layer ``l<i>.``.

Scores start from the recorded queries and keys, the selection from the recorded scores, so that each
step is judged by itself. A layer without an indexer has only ``mask_final``: it shares the selection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.models.params import SwaType
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.indexer import VARIANTS, chosen, deciding_layers, index_scores, index_vectors
from kvsim.tensors.mask import attention_mask
from kvsim.tensors.rope import Rope
from kvsim.tensors.topk import heap_top_k
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact
from kvsim.verify.precision import attend

ROTATED = 9.4e-7
SCORE = 9.2e-7
ATTENTION = 5.7e-7


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks: list[ArrayCheck] = []
    has_indexer = [layer["indexer_full"] for layer in meta["hparams"]["layers"]]
    for il in range(meta["hparams"]["n_layer"]):
        if f"l{il}.topk" in arrays:
            layer = _Layer(arrays, meta, il)
            checks += [*_check_vectors(layer, meta), *_check_scores(layer), *_check_selection(layer)]
            checks += _check_attention(layer, meta)
        elif f"l{il}.mask_final" in arrays:
            decides = _Layer(arrays, meta, deciding_layers(has_indexer)[il])
            final = np.stack([decides.final(i) for i in range(len(decides.streams))])
            checks.append(exact(f"l{il}.mask_final", final, arrays[f"l{il}.mask_final"] == 0))
        elif f"l{il}.mask_swa" in arrays:
            checks.append(_check_window(arrays, meta, il))
    return checks


class _Layer:
    """The arrays of one layer, cut by the streams of the ubatch."""

    def __init__(self, arrays: Arrays, meta: Meta, il: int) -> None:
        self.arrays, self.il = arrays, il
        self.prefix = f"l{il}."
        self.streams: list[int] = arrays["slot_strm.lid"].tolist()
        self.type_k = next(x["type_k"] for x in meta["caches"]["lid"]["layers"] if x["il"] == il)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[self.prefix + name]

    def of_stream(self, name: str, i: int) -> NDArray[np.float64]:
        """Rows of a ``[token, ...]`` array that belong to the i-th stream of the ubatch."""
        return np.split(self[name], len(self.streams))[i].astype(np.float64)

    def final(self, i: int) -> NDArray[np.bool_]:
        """Selected and visible cells of the i-th stream, ``[token, cell]``."""
        visible: NDArray[np.bool_] = self["mask"][i] == 0
        return chosen(heap_top_k(self["score"][i], self["topk"].shape[-1]), visible.shape[-1]) & visible


def _check_vectors(layer: _Layer, meta: Meta) -> Iterator[ArrayCheck]:
    variant, pos = VARIANTS[meta["arch"]], layer.arrays["tok_pos"]
    rotation = Rope(meta["n_rot"], base=meta["cparams"]["rope_freq_base"])
    for before, after in (("indexer_q_pre", "indexer_q"), ("indexer_k_pre", "indexer_k_new")):
        turned = index_vectors(layer[before].astype(np.float64), pos, rotation, variant)
        yield close(layer.prefix + after, turned, layer[after], ROTATED)
    slots = layer.arrays["slot_idxs.lid"]
    cached = layer["lid_k"][np.array(layer.streams)[:, None], slots].reshape(len(pos), -1)
    stored = decode(layer.type_k, encode(layer.type_k, layer["indexer_k_new"]))
    yield exact(layer.prefix + "lid_k", stored, cached)


def _check_scores(layer: _Layer) -> Iterator[ArrayCheck]:
    for i, stream in enumerate(layer.streams):
        visible = layer["mask"][i] == 0
        keys = layer["lid_k"][stream, : visible.shape[-1]].astype(np.float64)
        scores = index_scores(layer.of_stream("indexer_q", i), keys, layer.of_stream("indexer_w", i), visible)
        yield close(f"{layer.prefix}score[{i}]", scores, layer["score"][i], SCORE)


def _check_selection(layer: _Layer) -> Iterator[ArrayCheck]:
    listed = heap_top_k(layer["score"], layer["topk"].shape[-1])
    yield exact(layer.prefix + "topk", listed, layer["topk"])
    for i in range(len(layer.streams)):
        yield exact(f"{layer.prefix}mask_final[{i}]", layer.final(i), layer["mask_final"][i] == 0)


def _check_attention(layer: _Layer, meta: Meta) -> Iterator[ArrayCheck]:
    """MLA over the selected cells: rows ``[latent | rope part]``, of which the latent is also the value."""
    type_k = next(x["type_k"] for x in meta["caches"]["mla"]["layers"] if x["il"] == layer.il)
    n_latent = layer["kqv"].shape[-1]
    for i, stream in enumerate(layer.streams):
        mask = layer.final(i)
        k = layer["mla_k"][stream, : mask.shape[-1], None].astype(np.float64)
        out = attend(
            layer.of_stream("q", i),
            k,
            k[..., :n_latent],
            mask,
            scale=float(layer["kq_scale"]),
            type_k=type_k,
            type_v=type_k,
            flash=meta["cparams"]["flash_attn"],
        )
        yield close(f"{layer.prefix}kqv[{i}]", out, layer["kqv"][i].swapaxes(0, 1), ATTENTION)


def _check_window(arrays: Arrays, meta: Meta, il: int) -> ArrayCheck:
    """A layer with a sliding window has no indexer: its mask is that of its own cache."""
    cache = meta["caches"]["swa"]
    mask = attention_mask(
        arrays["swa.pos"][0],
        arrays["swa.seqbits"].astype(np.uint64),
        arrays["tok_pos"],
        arrays["tok_seq"],
        swa_type=SwaType(cache["swa_type"]),
        n_swa=cache["n_swa"],
    )
    return exact(f"l{il}.mask_swa", mask, arrays[f"l{il}.mask_swa"][0] == 0)
