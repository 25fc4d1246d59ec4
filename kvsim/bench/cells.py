"""The cells of a large cache: sequence operations, placing a token, masks; beside llama.cpp's library.

The model has one block, the cache all positions of one sequence. The library gets the same cells by
restoring a state that kvsim has saved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from kvsim.batch import Batch, Ubatch
from kvsim.bench.measure import Goal, Row, median_of, seconds_of, side_by_side
from kvsim.bench.tensors import defrag_row, shift_row, stream_copy_row
from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.lanes.library import LaneError, find_library
from kvsim.lanes.llamacpp import LlamaCpp
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import tiny_model, write_tiny
from kvsim.ops import Op
from kvsim.replay import Replayer
from kvsim.testing.difftest import Campaign, run
from kvsim.testing.report import Report

N_CELLS = 131_072
REPEATS = 9
LEVELS = (0.0, 0.5, 0.9, 0.999)
LEFT_FREE = 64
"""Cells left empty, so that a token can be placed."""

MASK_TOKENS = 512
CAMPAIGN_OPS = 2000
MODEL = "llama-1"


@dataclass(frozen=True)
class Edit:
    """A sequence operation to measure, what undoes it, and how much faster it is to be."""

    name: str
    op: Op
    undo: Op
    times_faster: float


UNSHARE = Op.seq_rm(1)


def edits(n_cells: int) -> list[Edit]:
    """What is measured; the second sequence shares every cell of the first before some of them."""
    share = Op.seq_cp(0, 1)
    there, back = Op.seq_add(0, 1, -1, 1), Op.seq_add(0, 2, -1, -1)
    return [
        Edit("seq_cp of a whole sequence", share, UNSHARE, 20),
        Edit("seq_rm of a whole sequence", UNSHARE, share, 20),
        Edit("seq_keep of one of two sequences", Op.seq_keep(0), share, 50),
        Edit(f"seq_add of {n_cells - LEFT_FREE - 1:,} positions", there, back, 100),
    ]


def cells_table(n_cells: int = N_CELLS, lib: Path | None = None, repeats: int = REPEATS) -> Iterator[Row]:
    """The rows, one after the other as they are measured; without the library, some without a reference."""
    params = params_for(n_cells)
    context = filled(params, n_cells - LEFT_FREE)
    with tempfile.TemporaryDirectory() as folder:
        live = library(Path(folder), params, context, lib)
        try:
            yield from edit_rows(context, live, n_cells, repeats)
        finally:
            if live is not None:
                live.close()
    yield from placement_rows(params, n_cells, repeats)
    yield mask_row(params, n_cells, repeats)
    yield shift_row(cache_type("f16"), n_cells, repeats)
    yield defrag_row(n_cells, repeats)
    yield stream_copy_row(n_cells, repeats)
    yield campaign_row(CAMPAIGN_OPS * n_cells // N_CELLS)


def params_for(n_cells: int) -> ContextParams:
    """Four sequences in one buffer of so many cells."""
    return ContextParams(
        n_ctx=n_cells, n_batch=2048, n_ubatch=512, n_seq_max=4, kv_unified=True, flash_attn=True
    )


def filled(params: ContextParams, n: int, seqs: Sequence[int] = (0,), data: bool = False) -> Context:
    """A context of which ``n`` cells hold tokens, dealt out to ``seqs`` in turn; ``data``: with rows."""
    context = Context(tiny_model(MODEL).params(), params, leaves=LeafFactory(data=data))
    step = context.resolved.n_batch
    for at in range(0, n, step):
        rows = np.arange(at, min(at + step, n))
        ids = [[seqs[i % len(seqs)]] for i in rows.tolist()]
        code = context.decode(Batch(tokens=[0] * len(rows), pos=(rows // len(seqs)).tolist(), seq_ids=ids))
        assert code == 0, context.last_failure
    return context


def library(folder: Path, params: ContextParams, context: Context, lib: Path | None) -> LlamaCpp | None:
    """llama.cpp with the cells of ``context``, None if it is not installed."""
    try:
        find_library(lib)
    except LaneError:
        if lib is not None:
            raise
        return None
    path = folder / "model.gguf"
    write_tiny(MODEL, path)
    live = LlamaCpp(path, params, lib, debug=False, faults=False)
    if not live.restore(context.state_get()):
        live.close()
        raise LaneError("llama.cpp refuses the state that kvsim saved")
    return live


def edit_rows(context: Context, live: LlamaCpp | None, n_cells: int, repeats: int) -> Iterator[Row]:
    """Sequence operations, each on both sides."""
    against = "llama.cpp (not installed)" if live is None else f"llama.cpp {live.version}"
    for edit in edits(n_cells):
        before = [edit.undo] if edit.undo.op == "seq_cp" else []
        steps = [*before, *[edit.op, edit.undo] * repeats, UNSHARE]
        measured = slice(len(before), len(steps) - 1, 2)
        ours = median(clock(context, steps)[measured])
        theirs = None if live is None else median(live.clock(steps)[measured])
        yield Row(edit.name, ours, against, theirs, Goal("faster", edit.times_faster))
    end = n_cells - LEFT_FREE
    steps = [Op.decode_run(0, end, [0]), Op.seq_rm(0, end, -1)] * repeats
    ours = median(clock(context, steps)[::2])
    theirs = None if live is None else median(live.clock(steps)[::2])
    yield Row("decode of one token: here its cells, there all of it", ours, against, theirs)


def clock(context: Context, ops: Sequence[Op]) -> list[float]:
    """The seconds that each operation takes."""
    replayer = Replayer(context)
    return [seconds_of(partial(replayer.apply, op.op, op.args)) for op in ops]


def placement_rows(params: ContextParams, n_cells: int, repeats: int) -> Iterator[Row]:
    """Searching a slot for one token and placing it, with more and more of the cache in use."""
    goal = Goal("seconds", 1e-4)
    for level in LEVELS:
        n = min(int(level * n_cells), n_cells - LEFT_FREE)
        context = filled(params, n)
        yield Row(f"slot search and apply, {level:.1%} full", placing(context, n, repeats), goal=goal)
    context = filled(params, n_cells - LEFT_FREE, seqs=(0, 1))
    context.memory.seq_rm(1, -1, -1)
    seconds = placing(context, n_cells // 2, repeats)
    yield Row("slot search and apply, every other cell free", seconds, goal=goal)


def placing(context: Context, pos: int, repeats: int) -> float:
    """Seconds to find a cell for a token at ``pos`` and place it there."""
    cache = context.memory
    assert isinstance(cache, KVCache)
    ubatch = Ubatch.restored(0, np.array([[pos]], np.int32))

    def place() -> None:
        slots = cache.prepare([ubatch])
        assert slots is not None
        cache.apply_ubatch(slots[0], ubatch)

    return median_of(place, max(repeats, 3), lambda: cache.seq_rm(0, pos, -1))


def mask_row(params: ContextParams, n_cells: int, repeats: int) -> Row:
    """The mask of a ubatch over a full cache, beside filling a new array of its size once."""
    n_tokens = min(MASK_TOKENS, n_cells // 2)
    context = filled(params, n_cells - n_tokens)
    cache = context.memory
    assert isinstance(cache, KVCache)
    pos = np.arange(n_cells - n_tokens, n_cells, dtype=np.int32)[None]
    ubatch = Ubatch.restored(0, pos)
    slots = cache.prepare([ubatch])
    assert slots is not None
    view = cache.apply_ubatch(slots[0], ubatch)
    shape = n_tokens, view.n_kv
    ours, filling = side_by_side(view.mask, lambda: np.full(shape, True), repeats)
    return Row(
        f"causal mask, {n_tokens} x {view.n_kv:,}", ours, "filling its array", filling, Goal("within", 2)
    )


def campaign_row(n_ops: int) -> Row:
    """Seconds an operation of the seeded campaign with every check on."""
    campaign = Campaign(memory="kv", config="tiny")
    report = Report(campaign.plan)
    run(campaign, report, max(n_ops, 50))
    return Row("seeded campaign against the ledger, an operation", 1 / report.rate, goal=Goal("rate", 5000))
