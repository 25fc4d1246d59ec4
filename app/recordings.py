"""The bundled recordings, and what can be read of any recording, whole or damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError
from kvsim.player.payload import Packer
from kvsim.trace import Header, Step, Trace, read_trace

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "traces"

EARLY = 32
"""The telling step is looked for among so many: what led there should be little."""


@dataclass(frozen=True)
class Opened:
    """A recording as far as it has been read: ``payload`` holds its whole operations.

    ``error`` is None, or says with file and line where the rest cannot be used. ``whole`` is False where there
    may be more to read. ``shows`` says what can be seen of a log. ``telling`` is the step to open at where none
    is asked for.
    """

    name: str
    header: Header
    payload: str
    n_steps: int
    error: str | None = None
    whole: bool = True
    shows: str = ""
    telling: int = 0


def bundled() -> list[str]:
    """Names of the bundled recordings, ``kv/llama-uni-c256-u16-s4-f16-03``, simplest memories first."""
    order = [
        "kv",
        "iswa",
        "recurrent",
        "hybrid",
        "hybrid_iswa",
        "hybrid_idx",
        "dsa",
        "dsa_iswa",
        "msa",
        "dsv4",
    ]
    names = [p.relative_to(FOLDER).as_posix().removesuffix(".jsonl.gz") for p in FOLDER.glob("*/*.jsonl.gz")]
    known = {memory: rank for rank, memory in enumerate(order)}
    return sorted(names, key=lambda name: (known.get(name.split("/")[0], len(order)), name))


def path_of(name: str) -> Path:
    """The file of a bundled recording. Raises KeyError if there is no such name."""
    if name not in bundled():
        raise KeyError(name)
    return FOLDER / f"{name}.jsonl.gz"


class Opening:
    """A recording being read and packed, step by step, so that what is done can be played before the end."""

    shows = ""

    def __init__(self, source: Path | bytes, name: str) -> None:
        self.trace = read_trace(source, name=name)
        self._begin(self.trace.header, self.trace, name)

    def _begin(self, header: Header, steps: Iterable[Step], name: str) -> None:
        self.name = name
        self.header = header
        self.packer = Packer(header, name)
        self.error: str | None = None
        self.done = False
        self.telling = 0
        self._most_held = 0
        self._steps = iter(steps)

    def advance(self) -> bool:
        """Read and pack one operation. False at the end, or where the rest cannot be used.

        Raises TraceError if not even one operation can be read.
        """
        try:
            step = next(self._steps, None)
        except TraceError as error:
            if not self.packer.steps:
                raise
            self.error, step = str(error), None
        if step is None:
            self.done = True
            return False
        self._look(step)
        self.packer.add(step)
        return True

    def _look(self, step: Step) -> None:
        """The telling step is the first of the early ones that leaves as many sequences as any of them does."""
        held = sum(last >= 0 for _, last in step.after["pos"].values())
        place = len(self.packer.steps)
        if held > self._most_held and place < EARLY:
            self.telling, self._most_held = place, held

    @property
    def share(self) -> float:
        """How much of the file has been read, 0 to 1."""
        return min(1.0, self.trace.bytes_read / max(1, self.trace.bytes_total))

    def opened(self) -> Opened:
        """What has been packed so far."""
        payload = json.dumps(self.packer.payload(), separators=(",", ":"))
        n_steps = len(self.packer.steps)
        return Opened(
            self.name, self.header, payload, n_steps, self.error, self.done, self.shows, self.telling
        )


def open_recording(source: Path | bytes, name: str) -> Opened:
    """Read and pack a whole recording. Damage after the header leaves what stands before it.

    Raises TraceError if not even the header and one operation can be read.
    """
    opening = Opening(source, name)
    while opening.advance():
        pass
    return opening.opened()


def trace_of(source: Path | bytes, name: str) -> Trace:
    """The recording itself, for replaying."""
    return read_trace(source, name=name)


def tags(header: Header) -> list[str]:
    """What kind of recording this is, in a few words each."""
    c = header.cparams
    sizes: dict[str, Any] = {}
    for cache in header.caches.values():
        sizes[f"{cache['size']:,}"] = None
    unified = "unified" if c["kv_unified"] else f"{c['n_seq_max']} streams"
    found = [header.arch, f"{_MEMORIES.get(header.memory, header.memory)}, {unified}"]
    recurrent = header.config["recurrent"]
    cells = " + ".join(sizes) + " cells" if sizes else ""
    states = f"{recurrent['size']} states" if recurrent else ""
    found.append(" + ".join(part for part in (cells, states) if part))
    windows = sorted({cache["n_swa"] for cache in header.caches.values() if cache["swa_type"]})
    found += [f"window {w}" for w in windows]
    found.append("1 sequence" if c["n_seq_max"] == 1 else f"{c['n_seq_max']} sequences")
    found.append(f"ubatch {c['n_ubatch']}")
    if c["n_rs_seq"]:
        found.append(f"{c['n_rs_seq']} snapshots")
    types = {layer["type_k"] for cache in header.caches.values() for layer in cache["layers"]}
    return found + sorted(types)


_MEMORIES = {"iswa": "iSWA", "hybrid_iswa": "hybrid iSWA", "hybrid_idx": "hybrid with indexer"}
