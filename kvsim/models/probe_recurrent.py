"""The probe's recurrent blocks: a decaying sum and a shift register of token vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.recurrent import RecurrentView
from kvsim.errors import CacheUsageError
from kvsim.models.cached_rows import Floats

if TYPE_CHECKING:
    from kvsim.models.probe import ProbeNetwork

DECAY = 0.75
TAPS = 2


def read_states(probe: ProbeNetwork, ubatch: Ubatch, view: RecurrentView) -> dict[str, Floats]:
    """What each recurrent block reads, ``[token, width]``: its state after the token. Rows are updated.

    S rows decay and add the token's vector; R and P rows shift by half their width and take it in.
    """
    store = view.memory.store
    if store is None:
        raise CacheUsageError("the memory keeps no recurrent states: make it with LeafFactory(data=True)")
    readings: dict[str, Floats] = {}
    for part, blocks in store.rows.items():
        for il, rows in blocks.items():
            width = rows.shape[1]
            if width == 0:
                continue
            start = store.initial_states(part, il, view.head, view.rs_z, view.s_copy, view.n_seqs)
            fed = probe.vectors(f"{part} {il}", ubatch, width if part == "s" else -(-width // TAPS))
            states = _roll(part, start.astype(np.float64), fed.reshape(view.n_seqs, -1, fed.shape[-1]))
            newest = states[:, ::-1][:, : 1 + view.memory.n_rs_seq]
            store.write_states(part, il, view.head, newest.swapaxes(0, 1).astype(np.float32))
            readings[f"recurrent.{part} {il}"] = states.reshape(ubatch.n_tokens, width)
    return readings


def _roll(part: str, state: Floats, fed: Floats) -> Floats:
    """States ``[seq, token, width]`` after each token of ``fed [seq, token, n]``, from ``[seq, width]``."""
    states = []
    for t in range(fed.shape[1]):
        if part == "s":
            state = DECAY * state + fed[:, t]
        else:
            state = np.concatenate([state, fed[:, t]], axis=1)[:, -state.shape[1] :]
        states.append(state)
    return np.stack(states, axis=1)
