"""The recurrent memory alone against the recordings: its picture after every ubatch and every operation.

In the recordings of the hybrids the recurrent half is driven by itself. What it cannot know alone is taken
from the recording: where the other half refused a batch, and its own picture after a restored state.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_decodes import N_VOCAB, TRACES, RecordedPositions, batch_of, trace_lines

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.caches.recurrent_cells import StateCells
from kvsim.errors import StateError
from kvsim.state import load_all, load_sequence, save_all, save_sequence
from kvsim.tensors.recurrent_store import RecurrentStore

KINDS = ("recurrent", "hybrid", "hybrid_iswa", "hybrid_idx")
PATHS = [path for kind in KINDS for path in sorted((TRACES / kind).glob("*.jsonl.gz"))]


class Replay:
    """One recording, replayed on a recurrent memory."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        config = header["config"]
        recurrent = config["recurrent"]
        n_layer = config["hparams"]["n_layer"]
        self.cparams = config["cparams"]
        layers = [tuple(widths) for widths in recurrent["layers"][:n_layer]]
        size, n_rs_seq = recurrent["size"], recurrent["n_rs_seq"]
        store = RecurrentStore(size, n_rs_seq, layers)
        self.memory = RecurrentMemory(size, n_rs_seq, layers, self.cparams["n_seq_max"], store=store)
        self.alone = header["memory"] == "recurrent"
        self.blobs: dict[str, bytes] = {}

    def split(self, batch: BatchAllocator) -> list[Ubatch] | None:
        n = self.cparams["n_ubatch"]
        if self.cparams["embeddings"]:
            return batch.split_all(lambda: batch.split_seq(n))
        sequential = self.alone or not (self.cparams["kv_unified"] or self.cparams["n_seq_max"] == 1)
        return batch.split_all(lambda: batch.split_equal(n, sequential, self.memory.keep_tail))

    def decode(self, line: dict[str, Any], before: RecordedPositions) -> Iterator[tuple[Any, Any]]:
        """Place the ubatches that reached the graph; yields pairs (ours, recorded) of pictures."""
        if line["ret"] == -1:
            return
        n_pos = self.header["config"]["hparams"]["n_pos_per_embd"]
        batch = BatchAllocator(n_pos, self.cparams["n_seq_max"], N_VOCAB)
        batch.init(batch_of(line["args"]), before, self.cparams["embeddings"])
        ubatches = self.split(batch)
        slots = None if ubatches is None else self.memory.prepare(ubatches)
        if self.alone:
            assert (slots is None) == (line["ret"] == 1)
        if line["ret"] == 1:
            return
        assert slots is not None
        for slot, ubatch, recorded in zip(slots, ubatches, line["ubatches"], strict=line["ret"] == 0):
            view = self.memory.apply_ubatch(slot, ubatch)
            view.set_inputs()
            ours: dict[str, Any] = {}
            view.describe("recurrent", ours)
            yield ours["recurrent"], recorded["recurrent"]
            if not recorded["ok"]:
                self.roll_back(ubatch)

    def roll_back(self, ubatch: Ubatch) -> None:
        starts: dict[int, int] = {}
        for ids, pos in zip(ubatch.seq_ids, ubatch.pos0.tolist(), strict=True):
            starts[ids[0]] = min(starts.get(ids[0], pos), pos)
        for seq, start in sorted(starts.items()):
            self.memory.seq_rm(seq, start, -1)

    def state_op(self, line: dict[str, Any]) -> int:
        """Save or restore; returns the bytes, 0 if refused."""
        arch, args = self.header["arch"], line["args"]
        if line["op"].endswith("_get"):
            blob = self.blobs[args["slot"]] = save(self.memory, arch, line)
            check_blob(self, blob, line)
            return len(blob)
        blob = self.blobs[args["slot"]][: args.get("truncate")]
        if "xor0" in args:
            blob = bytes([blob[0] ^ args["xor0"]]) + blob[1:]
        try:
            return load(self.memory, blob, arch, line)
        except StateError:
            return 0

    def edit(self, line: dict[str, Any]) -> None:
        args = line["args"]
        calls: dict[str, Callable[..., Any]] = {
            name: getattr(self.memory, name)
            for name in ("seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "clear")
        }
        ret = calls[line["op"]](*args.values())
        if line["op"] == "seq_rm":
            assert int(ret) == line["ret"]

    def adopt(self, picture: dict[str, Any]) -> None:
        """Take over a recorded picture: a state that only the whole hybrid can restore."""
        memory = self.memory
        cells = memory.cells = StateCells(memory.size)
        for i, pos, src, src0, tail, ids in picture["cells"]:
            cells.pos[i], cells.src[i], cells.src0[i], cells.tail[i] = pos, src, src0, tail
            cells.owners[i] = sum(1 << seq for seq in ids)
        cells.head, cells.used = picture["head"], picture["used"]
        memory.n, memory.rs_z, memory.rs_idx = picture["n"], picture["rs_z"], list(picture["rs_idx"])


def check_blob(replay: Replay, ours: bytes, line: dict[str, Any]) -> None:
    """Where the bytes are recorded: ours restore the same cells, and theirs come back byte for byte."""
    if "blob" not in line:
        return
    recorded = base64.b64decode(line["blob"])
    trial = Replay(replay.header).memory
    restored = []
    for blob in (ours, recorded):
        trial.clear(True)
        assert load(trial, blob, replay.header["arch"], line) == len(recorded)
        restored.append(trial.record())
    assert restored[0] == restored[1]
    assert save(trial, replay.header["arch"], line) == recorded


def save(memory: RecurrentMemory, arch: str, line: dict[str, Any]) -> bytes:
    if line["op"] == "state_get":
        return save_all(memory, arch)
    return save_sequence(memory, line["args"]["seq"], line["args"]["flags"])


def load(memory: RecurrentMemory, blob: bytes, arch: str, line: dict[str, Any]) -> int:
    if line["op"] in ("state_get", "state_set"):
        return load_all(memory, blob, arch)
    return load_sequence(memory, blob, line["args"]["seq"], line["args"]["flags"])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_recurrent_pictures_equal_the_recorded_ones(path: Path) -> None:
    lines = trace_lines(path)
    replay = Replay(next(lines))
    after: dict[str, Any] = {}
    before = RecordedPositions({})
    for line in lines:
        after = line["after"] or after
        where = f"operation {line['i']} {line['op']} {line['args']}"
        if line["op"] == "decode":
            for ours, recorded in replay.decode(line, before):
                assert ours == recorded, where
        elif line["op"].startswith("state_"):
            if replay.alone:
                assert replay.state_op(line) == line["ret"], where
            elif line["op"].endswith("_set"):
                replay.adopt(after["recurrent"])
        elif line["op"] not in ("init", "rows"):
            replay.edit(line)
        assert replay.memory.record() == after["recurrent"], where
        if replay.alone:
            assert replay.memory.snapshot().to_json() == after, where
        replay.memory.check_integrity()
        before = RecordedPositions(after["pos"])
