"""masks: which cells each token sees, for every window, causality, image and stream case recorded."""

from __future__ import annotations

import numpy as np

from kvsim.models.arch import NonCausal
from kvsim.models.params import SwaType
from kvsim.tensors.mask import attention_mask, mask_values
from kvsim.verify import ArrayCheck, Arrays, Meta, exact


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    return [_check_cache(name, arrays, meta) for name in meta["caches"]]


def _check_cache(name: str, arrays: Arrays, meta: Meta) -> ArrayCheck:
    cache = meta["caches"][name]
    recorded = arrays[f"{name}.mask"]
    n_kv = cache["n_kv"]
    planes = arrays["tok_pos"].T
    two_d = len(planes) > 1
    rebuilt = []
    for local, stream in enumerate(arrays[f"{name}.slot_strm"]):
        n = recorded.shape[1]
        rows = slice(local * n, (local + 1) * n)
        pos = arrays[f"{name}.pos"][stream, :n_kv]
        x, y = arrays[f"{name}.ext"][stream, :n_kv, 1:].T if two_d else (pos, pos)
        mask = attention_mask(
            pos,
            arrays[f"{name}.seqbits"][stream, :n_kv].astype(np.uint64)[None],
            planes[0, rows],
            arrays["tok_seq"][rows],
            swa_type=SwaType[cache["swa_type"].upper()],
            n_swa=cache["n_swa"],
            causal=meta["causal"],
            non_causal=NonCausal(meta["non_causal_type"]),
            cell_xy=(x, y) if two_d else None,
            row_xy=(planes[2, rows], planes[1, rows]) if two_d else None,
        )
        rebuilt.append(mask_values(mask, (pos, planes[0, rows]) if meta["alibi"] else None))
    return exact(f"{name}.mask", np.stack(rebuilt), recorded)
