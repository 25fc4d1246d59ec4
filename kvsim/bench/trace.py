"""``kvsim bench trace``: how long a large recording takes to open, beside plain gunzip and ``json.loads``.

The recording is made here: eight chats that fill nine tenths of a cache in turns, one of them removed so that the
cells are fragmented, then decodes of one token, with answers rolled back and states saved between them. All seconds
are processor time: each row is measured once, and what else a machine does would count in turns.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from kvsim.bench.measure import Goal, Row, Step
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import tiny_model
from kvsim.ops import Op
from kvsim.player.payload import Packer
from kvsim.replay import N_VOCAB, Replayer, context_of, replay_beside
from kvsim.trace import TraceWriter, compare_step, read_trace
from kvsim.trace.describe import header_of

N_OPERATIONS, N_CELLS, N_SEQ = 2000, 8192, 8
FIRST = 200
"""Operations on which a player can open while the rest is read."""

PLAIN = "gunzip and json.loads"
OPENS = Goal("seconds", 2.0)


def trace_table(n_cells: int = N_CELLS, n_operations: int = N_OPERATIONS) -> Iterator[Row]:
    """The rows of the table: reading, packing and comparing, for both ways to write the same recording."""
    with tempfile.TemporaryDirectory() as folder:
        whole, short = Path(folder, "whole.jsonl.gz"), Path(folder, "short.jsonl.gz")
        write = processor_seconds(lambda: make_recording(whole, short, n_cells, n_operations))
        yield Row(f"making and writing both recordings of {n_operations:,} operations", write)
        for path, which in ((whole, "all lines whole"), (short, "pictures left out where nothing changed")):
            yield from opening_rows(path, f"{which}, {os.path.getsize(path) / 1e6:.0f} MB")


def opening_rows(path: Path, which: str) -> Iterator[Row]:
    """What the Replay page does with a recording, each beside parsing it plainly."""
    plain = processor_seconds(lambda: parse_plainly(path))
    yield Row(f"{which}: the player opens", processor_seconds(lambda: pack(path, FIRST)), PLAIN, plain, OPENS)
    yield Row(
        f"{which}: read to the end", processor_seconds(lambda: pack(path)), PLAIN, plain, Goal("within", 1.0)
    )
    yield Row(f"{which}: compared with kvsim", processor_seconds(lambda: compare(path)), PLAIN, plain)


def processor_seconds(step: Step) -> float:
    """The processor time that a step takes."""
    begun = time.process_time()
    step()
    return time.process_time() - begun


def parse_plainly(path: Path) -> int:
    """Parse every line with what Python brings along; returns their number."""
    with gzip.open(path) as lines:
        return sum(1 for line in lines if json.loads(line))


def pack(path: Path, at_most: int | None = None) -> str:
    """Read, check and pack a recording for the player, all of it or its beginning."""
    trace = read_trace(path)
    packer = Packer(trace.header)
    for step in trace:
        packer.add(step)
        if len(packer.steps) == at_most:
            break
    return json.dumps(packer.payload(), separators=(",", ":"))


def compare(path: Path) -> int:
    """Replay a recording; returns the number of fields that differ."""
    return sum(len(compare_step(recorded, ours)) for recorded, ours in replay_beside(read_trace(path)))


# -- the recording ----------------------------------------------------------------------------


def make_recording(whole: Path, short: Path, n_cells: int, n_operations: int) -> None:
    """Write the same recording twice: every line with its picture, and as the writer leaves them out."""
    params = ContextParams(n_ctx=n_cells, n_batch=n_cells, n_ubatch=512, n_seq_max=N_SEQ, kv_unified=True)
    header = header_of(tiny_model("llama").params(), params, name="chats")
    replayer = Replayer(context_of(header))
    with gzip.open(whole, "wb", 6) as all_lines, TraceWriter(short, header) as changed_lines:
        all_lines.write(_line(header.to_json()))
        for i, op in enumerate(islice(_operations(n_cells), n_operations)):
            step = replayer.step(i, op.op, op.args)
            replayer.saved.clear()
            all_lines.write(_line(step.to_json()))
            changed_lines.write(step)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _operations(n_cells: int) -> Iterator[Op]:
    """Without end: see above. The cells never run out."""
    rng = random.Random(5)
    n = [0] * N_SEQ
    yield Op("init")
    while sum(n) < n_cells * 0.9:
        yield _decode(n, [rng.randrange(N_SEQ)] * rng.randrange(n_cells // 64, n_cells // 16))
    n[5] = 0
    yield Op.seq_rm(5)
    while True:
        seq, chance = rng.randrange(N_SEQ), rng.random()
        if chance < 0.1:
            yield Op.state_seq_get(seq, slot=rng.getrandbits(30))
        elif chance < 0.15 or sum(n) > n_cells - N_SEQ:
            n[seq] = max(n[seq] - rng.randrange(1, 40), 0)
            yield Op.seq_rm(seq, n[seq])
        elif chance < 0.2:
            yield _decode(n, range(N_SEQ))
        else:
            yield _decode(n, [seq])


def _decode(n: list[int], seqs: Sequence[int]) -> Op:
    """The next token of each of ``seqs``; ``n`` has how many tokens every sequence holds."""
    pos = []
    for seq in seqs:
        pos.append(n[seq])
        n[seq] += 1
    tokens = [(p * p + 7 * seq) % N_VOCAB for p, seq in zip(pos, seqs, strict=True)]
    return Op.decode(tokens, pos, [[seq] for seq in seqs])
