"""Sessions whose logs llama.cpp wrote (fixtures/logs), and what kvsim's caches held at each slot search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import tiny_model
from kvsim.ops import Op
from kvsim.replay import Replayer

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


@dataclass(frozen=True)
class LogSession:
    """A tiny model, a context, operations on it; ``levels`` of LLAMA_KV_CACHE_DEBUG there are logs of."""

    model: str
    params: ContextParams
    ops: tuple[Op, ...]
    levels: tuple[int, ...] = (3,)


def _params(**given: Any) -> ContextParams:
    return ContextParams(**{"n_ctx": 256, "n_ubatch": 32, "swa_full": False, **given})


def _run(seq: int, start: int, n: int) -> Op:
    return Op.decode_run(seq, start, [7] * n)


_EDITS = (
    _run(0, 0, 40),
    Op.seq_cp(0, 1),
    _run(1, 40, 5),
    Op.seq_rm(0, 10, -1),
    _run(2, 0, 20),
    Op.seq_cp(0, 2, 0, 5),
    _run(0, 10, 3),
)

SESSIONS = {
    # sharing, removing, then a batch without room, one with a gap, and a state that is refused
    "llama": LogSession(
        "llama",
        _params(n_seq_max=3, kv_unified=True),
        (
            *_EDITS,
            _run(2, 20, 200),
            _run(2, 25, 1),
            Op.state_seq_get(1, 0),
            _run(2, 20, 180),
            Op.state_seq_set(0, 0),
            _run(1, 45, 1),
        ),
    ),
    # past the window: cells are taken over, older positions purged; then nobody can go back
    "gemma3": LogSession(
        "gemma3",
        _params(n_ctx=512, n_seq_max=2, kv_unified=True),
        (
            _run(0, 0, 70),
            _run(1, 0, 40),
            _run(0, 70, 90),
            Op.seq_cp(1, 0),
            _run(1, 40, 90),
            _run(0, 160, 31),
            _run(0, 191, 150),
        ),
        (1, 2, 3),
    ),
    "llama-streams": LogSession(
        "llama",
        _params(n_ctx=512, n_seq_max=2, kv_unified=False),
        (
            _run(0, 0, 10),
            Op.decode([5] * 8, [*range(4), *range(10, 14)], [[1]] * 4 + [[0]] * 4),
            Op.seq_rm(1),
            Op.seq_cp(0, 1),
            _run(1, 14, 3),
        ),
    ),
    # ids of two digits, which the print of owners runs together
    "llama-12": LogSession(
        "llama",
        _params(n_seq_max=12, kv_unified=True),
        (
            *(_run(seq, 0, 4 + seq) for seq in range(12)),
            *(Op.seq_cp(11, 10, 0, 2), Op.seq_rm(1), _run(11, 15, 9)),
        ),
    ),
    "deepseek32": LogSession("deepseek32", _params(n_seq_max=3, kv_unified=True), _EDITS),
    "dots3note": LogSession("dots3note", _params(n_seq_max=3, kv_unified=True), (*_EDITS, _run(2, 20, 60))),
    "jamba": LogSession(
        "jamba", _params(n_seq_max=2, kv_unified=True), (_run(0, 0, 20), _run(1, 0, 12), _run(0, 20, 3))
    ),
}


@dataclass(frozen=True)
class Held:
    """One stream of one cache before a search: head, cells in use; index, position and owners of each."""

    cache: str
    stream: int
    head: int
    used: int
    cells: list[tuple[int, int, tuple[int, ...]]]


@contextmanager
def _watched(found: list[Held]) -> Iterator[None]:
    search = KVCache.find_slot

    def find_slot(self: KVCache, ubatch: Any, *rest: Any) -> Any:
        for seq in ubatch.seq_id_unq:
            stream = self.stream_of(seq)
            table = self.cells[stream]
            cells = [(cell[0], cell[1], tuple(cell[2])) for cell in table.rows()]
            found.append(Held(self.name, stream, self.heads[stream], table.used, cells))
        return search(self, ubatch, *rest)

    with patch.object(KVCache, "find_slot", find_slot):
        yield


def held_at_searches(session: LogSession) -> list[Held]:
    """What kvsim's caches held before each search, in the order of the searches."""
    replayer = Replayer(Context(tiny_model(session.model).params(), session.params, n_vocab=128))
    found: list[Held] = []
    with _watched(found):
        for op in session.ops:
            replayer.apply(op.op, op.args)
    return found
