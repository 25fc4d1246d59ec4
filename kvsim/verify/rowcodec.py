"""rowcodec: encoding rows gives llama.cpp's bytes, decoding them its values, every one."""

from __future__ import annotations

import numpy as np

from kvsim.models.cache_types import CACHE_TYPES
from kvsim.tensors.codecs import U8, decode, encode, encode_iq4_nl_for_model_file
from kvsim.verify import ArrayCheck, Arrays, Meta, exact


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    rows = arrays["rows"]
    checks = []
    for name in (t for t in CACHE_TYPES if f"{t}.cache_bytes" in arrays):
        stored = arrays[f"{name}.cache_bytes"]
        encoded = encode(name, rows)
        if name == "iq4_nl":
            encoded = with_quants_of_zero_blocks(encoded, stored)
            for_file = encode_iq4_nl_for_model_file(rows)
            in_file = arrays["iq4_nl.chunk_bytes"]
            checks.append(exact("iq4_nl.chunk_bytes", for_file, in_file))
            checks.append(
                exact("iq4_nl.chunk_dequant", decode(name, in_file), arrays["iq4_nl.chunk_dequant"])
            )
        else:
            checks.append(exact(f"{name}.chunk_bytes", encoded, arrays[f"{name}.chunk_bytes"]))
        checks.append(exact(f"{name}.cache_bytes", encoded, stored))
        checks.append(exact(f"{name}.cache_dequant", decode(name, stored), arrays[f"{name}.cache_dequant"]))
    return checks


def with_quants_of_zero_blocks(encoded: U8, recorded: U8) -> U8:
    """Take over the quants of iq4_nl blocks with scale 0, which llama.cpp leaves unspecified."""
    ours, theirs = (
        encoded.reshape(*encoded.shape[:-1], -1, 18),
        recorded.reshape(*recorded.shape[:-1], -1, 18),
    )
    zero = ~theirs[..., :2].any(axis=-1, keepdims=True)
    return np.concatenate([ours[..., :2], np.where(zero, theirs[..., 2:], ours[..., 2:])], axis=-1).reshape(
        encoded.shape
    )
