"""The operation log as the player takes it: small, sent once, decoded in the browser.

A recording tells the whole picture after every operation; the player gets what changed. Cells are packed
as *runs*: neighbouring cells of one owner set with consecutive positions and one shift,

    [first cell, cells, first position, owners, shift, tokens, xs, ys]

where ``owners`` indexes ``payload["owners"]`` (0 is empty), ``tokens`` is a list or null ("as before"),
and ``xs``/``ys`` (only for models with 2-D positions) are lists or missing. Everything is plain JSON, and
everything the player shows as text comes from here or from its own labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.changes import OWNERS, POS, SHIFT, TOK, Cells, Lane, Picture, PictureReader, X, Y, changed_cells
from kvsim.narrate import Narration, Placement, narrate, placements
from kvsim.narrate.logs import quoted
from kvsim.trace import Header, Step

FORMAT = 1

Run = list[Any]


def pack(header: Header, steps: Iterable[Step], name: str = "") -> dict[str, Any]:
    """The payload of one recording, or of a replay: its header and its steps."""
    packer = Packer(header, name)
    for step in steps:
        packer.add(step)
    return packer.payload()


class Packer:
    """Packs a recording line by line, so that a damaged one can be played up to its last whole line."""

    def __init__(self, header: Header, name: str = "") -> None:
        self.header = header
        self.name = name
        self.reader = PictureReader(header)
        self.steps: list[dict[str, Any]] = []
        self.two_d = header.config["hparams"].get("n_pos_per_embd", 1) > 1
        self._last: Picture | None = None
        self._last_record: dict[str, Any] | None = None
        self._lane_index = {(s.cache, s.stream): k for k, s in enumerate(self.reader.specs)}

    def add(self, step: Step) -> None:
        """Pack one operation."""
        same = step.after is self._last_record
        self._last_record = step.after
        after = self._last if same and self._last else self.reader.read(step.after)
        self.add_picture(step, after)

    def add_picture(self, step: Step, after: Picture) -> None:
        """Pack one operation whose picture has been read already."""
        before = self._last
        placed = placements(step, self.reader.owners) if step.op == "decode" else []
        words = narrate(step, before, after, self.reader.owners, self.header, placed)
        self.steps.append(self._step(step, words, placed, before, after))
        self._last = after

    def payload(self) -> dict[str, Any]:
        """What was packed so far."""
        config = self.header.config
        recurrent, dsv4 = config.get("recurrent"), config.get("dsv4")
        return {
            "format": FORMAT,
            "name": self.name,
            "source": self.header.source,
            "memory": self.header.memory,
            "arch": self.header.arch,
            "n_seq": config["cparams"]["n_seq_max"],
            "two_d": self.two_d,
            "lanes": [
                {
                    "cache": s.cache,
                    "stream": s.stream,
                    "n_stream": s.n_stream,
                    "size": s.size,
                    "n_swa": s.n_swa,
                    "swa_type": s.swa_type,
                }
                for s in self.reader.specs
            ],
            "owners": [list(owners) for owners in self.reader.owners.sets],
            "recurrent": recurrent and {"size": recurrent["size"], "n_rs_seq": recurrent["n_rs_seq"]},
            "dsv4": dsv4
            and {
                k: {"ratio": v["ratio"], "state_size": v["state_size"], "n_stream": v["n_stream"]}
                for k, v in dsv4.items()
            },
            "steps": self.steps,
        }

    def _step(
        self,
        step: Step,
        words: Narration,
        placed: list[Placement],
        before: Picture | None,
        after: Picture,
    ) -> dict[str, Any]:
        packed: dict[str, Any] = {
            "i": step.i,
            "call": words.call,
            "short": words.short,
            "ret": words.verdict,
            "bad": words.failed,
            "kind": words.kind,
            "mark": words.mark,
            "say": words.sentence,
        }
        if words.meaning:  # it stands beside the message, part by part
            packed["say"], packed["means"] = quoted(step), words.meaning
        changes = self._changes(before, after)
        if changes:
            packed["d"] = changes
        if before is None or after.pos is not before.pos:
            old = before.pos if before else {}
            packed["pos"] = [[int(s), *p] for s, p in after.pos.items() if p != old.get(s)]
        if after.recurrent is not None and (before is None or after.recurrent != before.recurrent):
            packed["rec"] = after.recurrent
        if after.extra and (before is None or after.extra != before.extra):
            packed["extra"] = after.extra
        elif before is not None and before.extra and not after.extra:
            packed["extra"] = {}
        if words.shortage:
            packed["why"] = words.shortage.to_json()
        if placed:
            packed["say_u"] = words.ubatches
            packed["u"] = [self._ubatch(p, raw) for p, raw in zip(placed, step.ubatches or [], strict=True)]
        if step.op == "decode":
            packed["n"] = len(step.args.get("seq") or [])
            packed["seqs"] = sorted({s for row in step.args.get("seq") or [] for s in row})
        elif "seq" in step.args:
            packed["seqs"] = [step.args["seq"]]
        if step.extra.get("moves"):
            packed["moves"] = [
                [self._lane_index[name, stream], src, dst, n]
                for name, moves in step.extra["moves"].items()
                for stream, src, dst, n in moves
            ]
        if step.op in ("state_seq_set", "state_set") and not words.failed:
            packed["written"] = self._restored(step, before, after)
        return packed

    def _changes(self, before: Picture | None, after: Picture) -> list[list[Any]]:
        """Per lane that changed: [lane, head, used, has shift, runs]."""
        result = []
        for k, lane in enumerate(after.lanes):
            old = before.lanes[k] if before else None
            cells = changed_cells(old, lane) if old else np.flatnonzero(lane.owners)
            same = old and (old.head, old.used, old.has_shift) == (lane.head, lane.used, lane.has_shift)
            if cells.size or not same:
                packed = self._runs(cells, lane.cells[cells], old.cells[cells] if old else None)
                result.append([k, lane.head, lane.used, int(lane.has_shift), packed])
        return result

    def _runs(self, index: NDArray[np.intp], cells: Cells, old: Cells | None) -> list[Run]:
        """The rows ``cells`` that stand at ``index`` as runs. Tokens are left out where they stay."""
        return list(self._iter_runs(index, cells, old))

    def _iter_runs(self, index: NDArray[np.intp], cells: Cells, old: Cells | None) -> Iterator[Run]:
        if not index.size:
            return
        held = cells[:, OWNERS] != 0
        step = np.diff(index) == 1
        step &= (np.diff(cells[:, OWNERS]) == 0) & (np.diff(cells[:, SHIFT]) == 0)
        step &= (np.diff(cells[:, POS]) == 1) | ~held[1:]
        kept = (
            (old[:, OWNERS] != 0) & (old[:, TOK] == cells[:, TOK]) if old is not None else cells[:, TOK] == -1
        )
        if self.two_d and old is not None:
            kept &= (old[:, X] == cells[:, X]) & (old[:, Y] == cells[:, Y])
        step &= np.diff(kept.astype(np.int8)) == 0
        edges = [0, *(np.flatnonzero(~step) + 1).tolist(), index.size]
        for a, b in pairwise(edges):
            owner = int(cells[a, OWNERS])
            run: Run = [int(index[a]), b - a, int(cells[a, POS]), owner, int(cells[a, SHIFT])]
            if owner and not kept[a]:
                run.append(cells[a:b, TOK].tolist())
                if self.two_d:
                    run += [cells[a:b, X].tolist(), cells[a:b, Y].tolist()]
            yield run

    def _ubatch(self, p: Placement, raw: dict[str, Any]) -> dict[str, Any]:
        """One ubatch: per lane the runs of its rows in row order, and what was recorded around it."""
        lanes = []
        for key, (rows, cells) in p.cells.items():
            if key not in self._lane_index:
                continue
            packed = np.zeros((rows.size, 6), np.int32)
            packed[:, OWNERS], packed[:, POS], packed[:, TOK] = p.owners[rows], p.pos[rows], p.tok[rows]
            two_d, self.two_d = self.two_d, False
            lanes.append([self._lane_index[key], self._runs(cells, packed, None)])
            self.two_d = two_d
        u: dict[str, Any] = {"n": p.n_tokens, "w": lanes, "split": "equal" if raw.get("equal") else "simple"}
        u["rows"] = _row_runs(p)
        if p.n_kv:
            u["n_kv"] = p.n_kv
        if not p.ok:
            u["ok"] = False
        if raw.get("plan"):
            u["rows_written"] = {part: self._pooled(part, plan) for part, plan in raw["plan"].items()}
        return u

    def _pooled(self, part: str, plan: dict[str, Any]) -> list[list[int]]:
        """The pooled rows that a ubatch completed, as [stream, row].

        Dummy blocks only keep the graph's shape: they write the last row for position 0 and are left out.
        """
        ratio = self.header.config["dsv4"][part]["ratio"]
        size = self.header.caches[part]["size"]
        pairs = zip(plan["state_write_idxs"], plan["state_write_pos"], strict=True)
        return [[i // size, i % size] for i, pos in pairs if i % size == pos // ratio]

    def _restored(self, step: Step, before: Picture | None, after: Picture) -> list[list[Any]]:
        """Per lane, the cells a restore wrote: those of its sequence, or all that are held."""
        seq = step.args.get("seq")
        result = []
        for k, lane in enumerate(after.lanes):
            mask = lane.owners != 0 if seq is None or seq < 0 else self._holding(lane, seq)
            if before is not None and before.lanes[k].cells is lane.cells:
                continue
            cells = np.flatnonzero(mask)
            if cells.size:
                result.append([k, _spans(cells)])
        return result

    def _holding(self, lane: Lane, seq: int) -> Any:
        return self.reader.owners.holding(seq)[lane.owners]


def _row_runs(p: Placement) -> list[list[int]]:
    """The rows of a ubatch in batch order as [owners, tokens] pairs, for the batch rail."""
    cuts = np.flatnonzero(np.diff(p.owners)) + 1
    edges = [0, *cuts.tolist(), p.n_tokens]
    return [[int(p.owners[a]), b - a] for a, b in pairwise(edges)]


def _spans(cells: Any) -> list[list[int]]:
    cuts = np.flatnonzero(np.diff(cells) != 1) + 1
    edges = [0, *cuts.tolist(), cells.size]
    return [[int(cells[a]), b - a] for a, b in pairwise(edges)]
