"""Right answers, read from the trace: nothing here knows a lesson's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from app.lessons.lesson import Answer, Moment
from kvsim.changes import Lane, Picture, masked_swa


def _lane(picture: Picture, cache: str, stream: int = 0) -> Lane:
    return next(lane for lane in picture.lanes if (lane.spec.cache, lane.spec.stream) == (cache, stream))


def _index(m: Moment, cache: str, stream: int) -> int:
    specs = [(lane.spec.cache, lane.spec.stream) for lane in m.after.lanes]
    return specs.index((cache, stream))


def _holding(m: Moment, lane: Lane, seq: int) -> Any:
    """Cells of ``seq``, read from the last line of the trace."""
    records = m.last.after["caches"][lane.spec.cache][lane.spec.stream]["cells"]
    return [cell[0] for cell in records if seq in cell[2]]


def written(*caches: str) -> Answer:
    """The cells that the decodes of the step wrote in these caches, in the order of their tokens."""

    def answer(m: Moment) -> list[tuple[int, int]]:
        found = []
        slots = [ubatch["slots"] for step in m.steps for ubatch in step.ubatches or []]
        for cache in caches:
            for slot in (each[cache] for each in slots):
                for stream, cells in zip(slot["strm"], slot["idxs"], strict=True):
                    found += [(_index(m, cache, stream), cell) for cell in cells]
        return found

    return answer


def cells_of_seq(cache: str, seq: int) -> Answer:
    """The cells that a sequence holds afterwards."""

    def answer(m: Moment) -> list[tuple[int, int]]:
        return [
            (k, cell)
            for k, lane in enumerate(m.after.lanes)
            if lane.spec.cache == cache
            for cell in _holding(m, lane, seq)
        ]

    return answer


def moved_to(cache: str) -> Answer:
    """The cells that a defragmentation moved something into."""

    def answer(m: Moment) -> list[tuple[int, int]]:
        moves = m.last.extra["moves"][cache]
        return sorted((_index(m, cache, stream), dst + j) for stream, _, dst, n in moves for j in range(n))

    return answer


def head(cache: str) -> Answer:
    """Where the next search begins."""
    return lambda m: _lane(m.after, cache).head


def used(cache: str, stream: int = 0) -> Answer:
    """Cells in use afterwards."""
    return lambda m: _lane(m.after, cache, stream).used


def freed(cache: str) -> Answer:
    """Cells that were used before and are empty now."""

    def answer(m: Moment) -> int:
        before, after = _lane(m.before, cache), _lane(m.after, cache)
        return int(((before.owners != 0) & (after.owners == 0)).sum())

    return answer


def n_ubatches(m: Moment) -> int:
    """Ubatches of the last decode."""
    return len(m.last.ubatches or [])


def tokens_in_ubatch(u: int, seq: int) -> Answer:
    """Tokens of a sequence in one ubatch."""

    def answer(m: Moment) -> int:
        batch = m.last.args["seq"]
        return sum(seq in batch[i] for i in (m.last.ubatches or [])[u]["idx"])

    return answer


def outcome(m: Moment) -> int:
    """0 done, 1 no slot, 2 refused as invalid or answered false, 3 llama.cpp would end."""
    if m.error:
        return 3
    step = m.last
    if step.op == "decode":
        return {0: 0, 1: 1, -1: 2}.get(step.ret or 0, 2)
    return 0 if step.ret is None or step.ret else 2


def held(seq: int, cache: str) -> Answer:
    """Positions of a sequence that a cache holds afterwards."""
    return lambda m: sum(len(_holding(m, lane, seq)) for lane in m.after.lanes if lane.spec.cache == cache)


def first_position(seq: int, cache: str) -> Answer:
    """The smallest position of a sequence in a cache."""

    def answer(m: Moment) -> int:
        lane = _lane(m.after, cache)
        return int(lane.pos[_holding(m, lane, seq)].min())

    return answer


def last_position(seq: int) -> Answer:
    """The last position of a sequence, as the memory as a whole answers."""
    return lambda m: int(m.after.pos[str(seq)][1])


def visible(seq: int, cache: str) -> Answer:
    """How many positions in a cache the last token sees, itself included: the width of its mask."""

    def answer(m: Moment) -> int:
        lane = _lane(m.after, cache)
        pos = lane.pos[_holding(m, lane, seq)]
        query = np.full_like(pos, pos.max())
        return int((~masked_swa(lane.spec.swa_type, lane.spec.n_swa, pos, query)).sum())

    return answer


def shifts_pending(cache: str) -> Answer:
    """Keys that still carry an old rotation."""

    def answer(m: Moment) -> int:
        lane = _lane(m.after, cache)
        return int((lane.cells[lane.owners != 0, 2] != 0).sum())

    return answer


def n_moves(cache: str) -> Answer:
    """Block copies of a defragmentation."""
    return lambda m: len(m.last.extra["moves"][cache])


def cells_moved(cache: str) -> Answer:
    return lambda m: sum(n for *_, n in m.last.extra["moves"][cache])


def moves_with(strategy: str, cache: str) -> Answer:
    """Block copies another strategy would need from the same cells."""
    from kvsim.defrag import plan_classic, plan_minimal

    plan = {"classic": plan_classic, "minimal": plan_minimal}[strategy]

    def answer(m: Moment) -> int:
        lane = _lane(m.before, cache)
        end = int(np.flatnonzero(lane.owners)[-1]) + 1
        return len(plan(lane.owners[:end] == 0, 1000))

    return answer


# -- recurrent states ------------------------------------------------------------------------------


def _recurrent(m: Moment) -> dict[str, Any]:
    record: dict[str, Any] = m.last.after["recurrent"]
    return record


def states_used(m: Moment) -> int:
    """Recurrent cells that some sequence holds."""
    return sum(bool(cell[5]) for cell in _recurrent(m)["cells"])


def tail(seq: int) -> Answer:
    """The recurrent cell in which a sequence stands."""
    return lambda m: next(cell[4] for cell in _recurrent(m)["cells"] if cell[0] == seq)


def plane(seq: int) -> Answer:
    """The snapshot the next decode starts from; 0 is the newest."""
    return lambda m: _recurrent(m)["rs_idx"][seq]


# -- speculation -----------------------------------------------------------------------------------


def n_ops(m: Moment) -> int:
    """Operations the step took."""
    return len(m.steps)


def decoded_twice(m: Moment) -> int:
    """Tokens that went through the network a second time."""
    decodes = [set(step.args["pos"]) for step in m.steps if step.op == "decode"]
    return sum(len(late & early) for i, late in enumerate(decodes) for early in decodes[:i])


def rolled_back(m: Moment) -> int:
    """0 a plain removal did, 1 it was refused and a checkpoint was restored."""
    return int(any(step.op == "state_seq_set" for step in m.steps))


# -- indexers and compressors ----------------------------------------------------------------------


def blocks(seq: int, cache: str) -> Answer:
    """Blocks of positions in which a sequence holds at least one."""

    def answer(m: Moment) -> int:
        lane = _lane(m.after, cache)
        size = m.header.hparams["indexer_block_size"]
        return len({int(p) // size for p in lane.pos[_holding(m, lane, seq)]})

    return answer


def rows(compressor: str) -> Answer:
    """Pooled rows of a compressor that the last token sees."""
    return lambda m: (m.last.ubatches or [])[-1]["plan"][compressor]["n_visible"][-1]


def collecting(compressor: str) -> Callable[[Moment], int]:
    """Tokens that wait for their block to be full."""
    return lambda m: (m.last.args["pos"][-1] + 1) % m.header.config["dsv4"][compressor]["ratio"]
