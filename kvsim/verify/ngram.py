"""Goldens of the n-gram embeddings: predecessors, table rows and the third recurrent row, all exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvsim.tensors import ngram, scan
from kvsim.verify import ArrayCheck, Arrays, Meta, exact


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks: list[ArrayCheck] = []
    for name, args, *_ in meta["ops"]:
        if name.startswith("decode"):
            step = {
                k.removeprefix(args["prefix"]): a for k, a in arrays.items() if k.startswith(args["prefix"])
            }
            checks += _check_rows(step, meta, args["prefix"])
            checks.append(_check_history(step, meta, args))
    return checks


def _check_rows(step: Arrays, meta: Meta, prefix: str) -> Iterator[ArrayCheck]:
    pos, seq, tok = step["tok_pos"], step["tok_seq"].tolist(), step["tok"]
    n_streams = len(step["cell_pos"])

    def history(s: int) -> ngram.History:
        stream = s if n_streams > 1 else 0
        cells = np.flatnonzero(step["cell_seqbits"][stream] >> s & 1)
        cells = cells[np.argsort(step["cell_pos"][stream, cells], kind="stable")]
        return step["cell_pos"][stream, cells], step["cell_tok"][stream, cells]

    previous = ngram.previous_tokens(pos, seq, meta["ngram"] - 1, bool((tok < 0).any()), history)
    yield exact(prefix + "prev_tokens", previous, step["prev_tokens"])
    own = np.where(tok < 0, meta["image_token"], tok)
    rows = ngram.hash_rows(
        own, previous, meta["eos"], meta["multipliers"], meta["head_vocab_sizes"], meta["head_offsets"]
    )
    yield exact(prefix + "rows", rows, step["rows"])


def _check_history(step: Arrays, meta: Meta, args: Meta) -> ArrayCheck:
    rows, x = step["p_before"].copy(), step["conv_in"]
    states = scan.gather(rows, step["s_copy"], args["rs_z"])
    window = scan.conv_window(states[: len(x)], x)
    snapshots = scan.conv_snapshots_all(window, x.shape[-1], meta["n_rs_seq"] + 1)
    scan.scatter(rows, states, snapshots, args["head"], meta["size"])
    return exact(args["prefix"] + "p_after", rows, step["p_after"])
