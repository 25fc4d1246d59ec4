"""Long recordings for the tests: chats on a cache of any size, as pictures, without JSON in between.

What is placed where follows a simple rule of its own (the first empty cells from the head); nothing here
checks kvsim. It gives the player as much to draw as a long recording would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np

from kvsim.changes import OWNERS, POS, TOK, Lane, OwnerTable, Picture, empty_cells, lane_specs
from kvsim.player.payload import Packer
from kvsim.trace import Header, Step, read_trace

KV = "fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz"


def resized(n_cells: int, n_seq: int) -> Header:
    """The header of a bundled unified kv recording, for a cache of another size."""
    line = json.loads(json.dumps(read_trace(KV).header.to_json()))
    config = line["config"]
    for params in (config["params"], config["cparams"]):
        params.update(n_ctx=n_cells, n_seq_max=n_seq, n_ubatch=512)
    config["cparams"].update(n_ctx_seq=n_cells, n_batch=n_cells)
    config["caches"]["kv"].update(size=n_cells, n_seq_max=n_seq)
    return Header.from_json(line)


def chats(n_cells: int, n_steps: int, n_seq: int = 12, seed: int = 7) -> str:
    """The payload of ``n_steps`` operations of chats that share a prompt, grow and end, as JSON text."""
    header = resized(n_cells, n_seq)
    packer = Packer(header, f"chats-{n_cells}")
    work = _Chats(header, n_seq, packer.reader.owners, random.Random(seed))
    for step, picture in work.steps(n_steps):
        packer.add_picture(step, picture)
    return json.dumps(packer.payload(), separators=(",", ":"))


class _Chats:
    def __init__(self, header: Header, n_seq: int, owners: OwnerTable, rng: random.Random) -> None:
        (self.spec,) = lane_specs(header)
        self.cells = empty_cells(self.spec.size)
        self.head = 0
        self.n_seq, self.owners, self.rng = n_seq, owners, rng
        self.last = [-1] * n_seq

    def steps(self, n: int) -> Iterator[tuple[Step, Picture]]:
        yield self._step(0, "init", {}, None)
        yield self._decode(1, [(0, self.spec.size // 16)])
        for i in range(2, n):
            yield self._one(i)

    def _one(self, i: int) -> tuple[Step, Picture]:
        rng, size = self.rng, self.spec.size
        live = [s for s in range(self.n_seq) if self.last[s] >= 0]
        empty = [s for s in range(1, self.n_seq) if self.last[s] < 0]
        free = int((self.cells[:, OWNERS] == 0).sum())
        if free < size // 12:
            seq = max(live[1:], key=lambda s: self.last[s])
            return self._remove(i, seq, 0)
        if empty and rng.random() < 0.3:
            return self._share(i, empty[0])
        seq = rng.choice(live)
        if rng.random() < 0.06:
            return self._remove(i, seq, max(size // 16, self.last[seq] - 60))
        if rng.random() < 0.4:
            return self._decode(i, [(seq, rng.randint(8, max(9, min(free // 2, size // 40, 1500))))])
        return self._decode(i, [(s, 1) for s in live])

    def _decode(self, i: int, wanted: list[tuple[int, int]]) -> tuple[Step, Picture]:
        self.cells = self.cells.copy()
        rows = [(s, self.last[s] + 1 + j) for s, n in wanted for j in range(n)]
        empty = np.flatnonzero(self.cells[:, OWNERS] == 0)
        order = np.concatenate([empty[empty >= self.head], empty[empty < self.head]])[: len(rows)]
        tokens = [self.rng.randrange(128) for _ in rows]
        self.cells[order, OWNERS] = [self.owners.id_of([s]) for s, _ in rows]
        self.cells[order, POS] = [p for _, p in rows]
        self.cells[order, TOK] = tokens
        for s, p in rows:
            self.last[s] = p
        self.head = int(order[-1]) + 1
        args = {"tokens": tokens, "pos": [p for _, p in rows], "seq": [[s] for s, _ in rows], "out": []}
        ubatches = [
            {
                "n_tokens": len(idx),
                "idx": idx,
                "equal": False,
                "slots": {"kv": {"strm": [0], "idxs": [order[idx].tolist()], "n_kv": self.spec.size}},
                "ok": True,
            }
            for a in range(0, len(rows), 512)
            for idx in [list(range(a, min(a + 512, len(rows))))]
        ]
        return self._step(i, "decode", args, 0, ubatches)

    def _share(self, i: int, dst: int) -> tuple[Step, Picture]:
        self.cells = self.cells.copy()
        mine = self.owners.holding(0)[self.cells[:, OWNERS]] & (self.cells[:, POS] < self.spec.size // 16)
        for owner in np.unique(self.cells[mine, OWNERS]):
            joined = self.owners.id_of({*self.owners.sets[owner], dst})
            self.cells[mine & (self.cells[:, OWNERS] == owner), OWNERS] = joined
        self.last[dst] = int(self.cells[mine, POS].max())
        return self._step(i, "seq_cp", {"src": 0, "dst": dst, "p0": -1, "p1": -1}, None)

    def _remove(self, i: int, seq: int, p0: int) -> tuple[Step, Picture]:
        self.cells = self.cells.copy()
        mine = self.owners.holding(seq)[self.cells[:, OWNERS]] & (self.cells[:, POS] >= p0)
        for owner in np.unique(self.cells[mine, OWNERS]):
            left = set(self.owners.sets[owner]) - {seq}
            here = mine & (self.cells[:, OWNERS] == owner)
            if left:
                self.cells[here, OWNERS] = self.owners.id_of(left)
            else:
                self.cells[here] = empty_cells(int(here.sum()))
        freed = np.flatnonzero(mine & (self.cells[:, OWNERS] == 0))
        self.head = min(self.head, int(freed[0])) if freed.size else self.head
        self.last[seq] = p0 - 1
        return self._step(i, "seq_rm", {"seq": seq, "p0": p0, "p1": -1}, 1)

    def _step(
        self, i: int, op: str, args: dict, ret: int | None, ubatches: list | None = None
    ) -> tuple[Step, Picture]:
        used = int((self.cells[:, OWNERS] != 0).sum())
        lane = Lane(self.spec, self.head, used, False, self.cells)
        pos = {str(s): [0 if self.last[s] >= 0 else -1, self.last[s]] for s in range(self.n_seq)}
        return Step(i, op, args, ret, ubatches, {}), Picture([lane], None, pos)
