"""The minimal trace of every hazard, made by our own tools.

    python -m kvsim.testing.hazard_traces [FOLDER]

writes ``<id>.jsonl.gz`` for each into ``fixtures/hazards``. No operation of them can be spared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.state import ON_DEVICE, PARTIAL_ONLY
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.recorded import steps_of, write_steps
from kvsim.trace.describe import header_of

FOLDER = "fixtures/hazards"


@dataclass(frozen=True)
class Case:
    """A configuration, and the operations that meet the hazard."""

    config: Config
    ops: tuple[Op, ...]


def _config(kind: str, name: str) -> Config:
    return next(config for config in CACHES[kind].configs if config.name == name)


KV, STREAMS = _config("kv", "tiny"), _config("kv", "streams")
ISWA, CHUNKED = _config("iswa", "tiny"), _config("iswa", "chunked")
STATES, HYBRID = _config("recurrent", "tiny"), _config("hybrid", "tiny")
ROLLBACK, DSV4 = _config("hybrid", "rollback"), _config("dsv4", "rollback")
NARROW = replace(STATES, name="narrow", params=replace(STATES.params, n_ubatch=1))
_WIDE = replace(KV.model.layers[0], n_embd_head_k=64, n_embd_head_v=64, n_rot=64)
QUANTIZED = replace(
    KV, name="quantized", model=replace(KV.model, layers=(_WIDE,)), params=replace(KV.params, type_k="q8_0")
)

ABORT = Fault(0)


def run(seq: int | Sequence[int], start: int, n: int = 1, fault: Fault | None = None) -> Op:
    """Decode ``n`` tokens from position ``start`` on."""
    return Op.decode_run(seq, start, range(1, n + 1), fault)


def at(seq: int, *pos: int, fault: Fault | None = None) -> Op:
    """Decode tokens of one sequence at these positions."""
    return Op.decode(range(1, len(pos) + 1), pos, [[seq]] * len(pos), fault=fault)


def rows(*entries: tuple[int, int], fault: Fault | None = None) -> Op:
    """Decode one token each at (sequence, position)."""
    return Op.decode(
        range(1, len(entries) + 1), [p for _, p in entries], [[s] for s, _ in entries], fault=fault
    )


def case(config: Config, *ops: Op) -> Case:
    return Case(config, ops)


CASES: dict[str, Case] = {
    "shift-moves-other-owners": case(KV, run([0, 1], 0), Op.seq_add(0, -1, -1, 2)),
    "division-turns-backwards": case(KV, run(0, 4), Op.seq_div(0, -1, -1, 2)),
    "keep-spares-other-streams": case(STREAMS, run(1, 0), Op.seq_keep(0)),
    "copy-ignores-range": case(STREAMS, run(0, 0, 2), Op.seq_cp(0, 1, -1, 0)),
    "position-minus-one": case(KV, run(0, -1)),
    # moving nothing sends the next search back to cell 0
    "cell-keeps-old-owner": case(KV, run(0, -1), Op.seq_add(1, -1, -1, 1), run(1, 0)),
    "undo-misses-position-minus-one": case(KV, run(0, -1)),
    "cell-keeps-old-token": case(
        KV, run(0, 0), Op.seq_add(0, -1, -1, -1), Op.decode(None, [0], [[1]]),
    ),
    "heads-exchanged": case(STREAMS, run(1, 0), run(1, 1, 8)),
    "clear-keeps-copies": case(STREAMS, Op.seq_cp(0, 1), Op.clear()),
    "restore-under-queued-copy": case(
        STREAMS, run(1, 0), Op.state_seq_get(1, 0), Op.seq_cp(0, 1), Op.state_seq_set(1, 0),
    ),
    "save-before-copy": case(STREAMS, run(0, 0), Op.seq_cp(0, 1), Op.state_seq_get(1, 0)),
    "save-before-shift": case(KV, run(0, 0), Op.seq_add(0, -1, -1, 3), Op.state_seq_get(0, 0)),
    "state-omits-owner": case(KV, run(0, 0), Op.seq_cp(0, 3), Op.state_get(0)),
    "empty-state-removes-nothing": case(KV, Op.state_seq_get(1, 0), run(0, 0), Op.state_seq_set(0, 0)),
    "failed-restore-loses-sequence": case(
        KV, run(0, 0), Op.state_seq_get(0, 0), Op.state_seq_set(0, 0, truncate=30),
    ),
    "state-not-used-up": case(ISWA, Op.state_seq_get(0, 0), Op.state_seq_set(1, 0, PARTIAL_ONLY)),
    "device-state-replaced": case(
        KV, run(0, 0), Op.state_seq_get(0, 0, ON_DEVICE), Op.seq_add(0, -1, -1, 1),
        Op.state_seq_get(0, 1, ON_DEVICE), Op.state_seq_set(0, 0, ON_DEVICE),
    ),
    "rollback-refused": case(HYBRID, run(0, 4, fault=ABORT)),
    "rollback-first-owner-only": case(KV, run([0, 1], 0, fault=ABORT)),
    "rollback-removes-older-tokens": case(KV, at(0, 0, 1, 2, 3, 3, fault=Fault(1))),
    "shared-token-sees-one-history": case(KV, rows((0, 0), (1, 0)), run([0, 1], 1)),
    "ubatch-exceeds-limit": case(NARROW, rows((0, 0), (1, 0), (2, 0))),
    "shift-requantizes-all": case(QUANTIZED, run(0, 0), Op.seq_add(0, -1, -1, 1), run(0, 2)),
    "indexer-keys-turned-as-stored": case(
        _config("dsa", "tiny"), run(0, 0), Op.seq_add(0, -1, -1, 1), run(0, 2),
    ),
    "shift-although-cannot": case(ISWA, run(0, 0), Op.seq_add(0, -1, -1, 1)),
    "trimmed-past-window": case(ISWA, run(0, 0, 12), Op.seq_rm(0, 4)),
    "window-forgets-sequence": case(CHUNKED, run(0, 0, 4), run(1, 0, 10)),
    "purge-survives-refusal": case(
        ISWA, run([0, 1], 0, 2), run(0, 2),
        rows(*[(0, p) for p in range(3, 8)], *[(2, p) for p in range(7)]),
    ),
    "purge-blinds-earlier-ubatch": case(ISWA, run([0, 1], 0), run(0, 1, 10)),
    "eviction-blinds-own-ubatch": case(ISWA, run([1, 2], 0, 6), at(0, 0, 1, 2, 3, 3)),
    "partial-state-alone": case(
        ISWA, run(0, 0), Op.state_seq_get(0, 0, PARTIAL_ONLY), Op.state_seq_set(1, 0, PARTIAL_ONLY),
    ),
    "base-keeps-later-positions": case(
        ISWA, run(0, 0), Op.state_seq_get(0, 0, PARTIAL_ONLY), run(0, 1),
        Op.state_seq_set(0, 0, PARTIAL_ONLY),
    ),
    "half-restored": case(ISWA, run(0, 0), Op.state_seq_get(0, 0), Op.state_seq_set(1, 0, truncate=100)),
    "state-keeps-removed": case(STATES, run(0, 0, 3), Op.seq_rm(0, 0, 2)),
    "remove-any-refused": case(STATES, Op.seq_rm(-1)),
    "state-knows-last-position-only": case(STATES, run(0, 0, 2), Op.seq_add(0, 1, -1, 3)),
    "state-copy-ignores-range": case(STATES, run(0, 0, 2), Op.seq_cp(0, 1, -1, 1)),
    "unknown-sequence-ignored": case(HYBRID, Op.seq_cp(0, 3)),
    "state-moves-for-all-owners": case(
        STATES, run(0, 0), Op.seq_cp(0, 1), Op.seq_add(0, -1, -1, 2),
    ),
    "state-position-below-zero": case(STATES, run(0, 0), Op.seq_add(0, -1, -1, -4)),
    "rollback-beyond-snapshot": case(ROLLBACK, run(0, 1), Op.seq_rm(0, 1)),
    "rollback-counts-positions": case(ROLLBACK, at(0, 0, 1, 1), Op.seq_rm(0, 1)),
    "rollback-moves-other-owners": case(ROLLBACK, run([0, 1], 0, 2), Op.seq_rm(0, 1)),
    "copy-ignores-rollback": case(ROLLBACK, run(0, 0, 2), Op.seq_rm(0, 1), Op.seq_cp(0, 1)),
    "stale-rollback-kept": case(ROLLBACK, run(0, 0, 2), Op.seq_rm(0, 1), Op.seq_keep(1)),
    "stale-rollback-used": case(ROLLBACK, run(0, 0, 2), Op.seq_rm(0, 1), Op.seq_keep(1), run(0, 0)),
    "failed-ubatch-strands-states": case(
        STATES, rows((1, 0), (0, 0)), rows((1, 1), (2, 0), fault=ABORT),
    ),
    # cells 0, 1, 2 hold sequences 0, 2, 1; without 2 its cell lies between those of 0 and 1
    "fresh-state-not-zero": case(
        STATES, rows((0, 0), (2, 0)), run(1, 0), Op.seq_rm(2), rows((0, 1), (1, 1), fault=ABORT),
        run(2, 0),
    ),
    "state-skips-positions": case(STATES, rows((0, 0), (1, 0), (1, 0))),
    "ownerless-state": case(STATES, run(0, 0), Op.state_seq_get(0, 0), Op.state_seq_set(-1, 0)),
    "halves-disagree": case(HYBRID, run(0, 0), Op.seq_cp(1, 0)),
    "partial-failure-drops-all": case(
        _config("hybrid_idx", "tiny"), run(0, 0), Op.state_seq_get(0, 0, PARTIAL_ONLY),
        Op.state_seq_set(0, 0, PARTIAL_ONLY, truncate=20),
    ),
    "indexer-slots-diverge": case(
        _config("dsa", "tiny"), run(0, 0), Op.state_seq_get(0, 0), Op.state_seq_set(0, 0, truncate=30),
        run(0, 0),
    ),
    "clearing-empties-queued-copy": case(DSV4, Op.seq_cp(0, 1), Op.seq_rm(0)),
    "refuses-harmless-range": case(DSV4, Op.seq_rm(0, 5, 7)),
    "rollback-consumed-early": case(DSV4, run(0, 0, 2), Op.seq_rm(0, 1), run(0, 1, fault=ABORT)),
    "rollback-arms-uncomputed": case(ROLLBACK, run(0, 1, fault=ABORT)),
    "compressed-rows-of-nothing": case(DSV4, run(0, 3)),
}  # fmt: skip
"""Hazard -> how it is met."""


def write(folder: Path) -> None:
    """Write the trace of every case."""
    for hazard, met in CASES.items():
        config = met.config
        header = header_of(config.model, config.params, sizes=config.sizes, name=config.name)
        write_steps(folder / f"{hazard}.jsonl.gz", header, steps_of(config, met.ops))


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else FOLDER))
