"""The one vocabulary of operations: what traces, machines, campaigns and subjects speak.

An operation is a line of the trace format without its outcome (``fixtures/traces/README.md``), so what
was generated is written, replayed, shrunk and shown without translation:

>>> Op.seq_rm(0, 4, -1).to_json()
{'op': 'seq_rm', 'args': {'seq': 0, 'p0': 4, 'p1': -1}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.context import Fault
from kvsim.defrag import Strategy

STATES = frozenset({"state_seq_get", "state_seq_set", "state_get", "state_set"})
"""Operations that save and restore."""


@dataclass(frozen=True)
class Op:
    """One operation on a context: its name and its arguments by name."""

    op: str
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op, "args": self.args}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Op:
        """From a line of a trace, or of :meth:`to_json`."""
        return cls(line["op"], dict(line["args"]))

    # -- constructors --------------------------------------------------------------------------

    @classmethod
    def decode(
        cls,
        tokens: Sequence[int] | None,
        pos: Sequence[int],
        seq: Sequence[Sequence[int]],
        out: Sequence[int] | None = None,
        fault: Fault | None = None,
    ) -> Op:
        """Decode a batch (``tokens`` None: of embeddings). ``fault`` makes one of its ubatches fail."""
        args: dict[str, Any] = {
            "tokens": None if tokens is None else list(tokens),
            "pos": list(pos),
            "seq": [list(ids) for ids in seq],
            "out": [0] * (len(seq) - 1) + [1] if out is None else list(out),
        }
        return cls("decode", {**args, **fault_args(fault)})

    @classmethod
    def decode_run(
        cls, seq: int | Sequence[int], start: int, tokens: Sequence[int], fault: Fault | None = None
    ) -> Op:
        """Decode consecutive tokens of one sequence (or shared by several) from position ``start`` on."""
        ids = [seq] if isinstance(seq, int) else list(seq)
        return cls.decode(tokens, range(start, start + len(tokens)), [ids] * len(tokens), fault=fault)

    @classmethod
    def seq_rm(cls, seq: int, p0: int = -1, p1: int = -1) -> Op:
        return cls("seq_rm", {"seq": seq, "p0": p0, "p1": p1})

    @classmethod
    def seq_cp(cls, src: int, dst: int, p0: int = -1, p1: int = -1) -> Op:
        return cls("seq_cp", {"src": src, "dst": dst, "p0": p0, "p1": p1})

    @classmethod
    def seq_keep(cls, seq: int) -> Op:
        return cls("seq_keep", {"seq": seq})

    @classmethod
    def seq_add(cls, seq: int, p0: int, p1: int, delta: int) -> Op:
        return cls("seq_add", {"seq": seq, "p0": p0, "p1": p1, "delta": delta})

    @classmethod
    def seq_div(cls, seq: int, p0: int, p1: int, d: int) -> Op:
        return cls("seq_div", {"seq": seq, "p0": p0, "p1": p1, "d": d})

    @classmethod
    def clear(cls, data: bool = True) -> Op:
        return cls("clear", {"data": data})

    @classmethod
    def defrag(cls, strategy: Strategy = "classic") -> Op:
        """Move the last cells into the holes, which llama.cpp did until August 2025."""
        return cls("defrag", {"strategy": strategy})

    @classmethod
    def state_seq_get(cls, seq: int, slot: int, flags: int = 0) -> Op:
        return cls("state_seq_get", {"seq": seq, "flags": flags, "slot": slot})

    @classmethod
    def state_seq_set(cls, seq: int, slot: int, flags: int = 0, **damage: int) -> Op:
        """Restore a saved sequence; ``truncate`` and ``xor0`` damage its bytes first."""
        return cls("state_seq_set", {"seq": seq, "flags": flags, "slot": slot, **damage})

    @classmethod
    def state_get(cls, slot: int) -> Op:
        return cls("state_get", {"slot": slot})

    @classmethod
    def state_set(cls, slot: int) -> Op:
        return cls("state_set", {"slot": slot})


def fault_args(fault: Fault | None) -> dict[str, Any]:
    """A fault as arguments of ``decode``: an abort as the recordings have it, others under ``fault``."""
    if fault is None:
        return {}
    if fault.kind == "abort":
        return {"abort_at_ubatch": fault.ubatch}
    return {"fault": {"kind": fault.kind, "ubatch": fault.ubatch}}


def fault_of(args: Mapping[str, Any]) -> Fault | None:
    """The fault that the arguments of a ``decode`` inject, if any."""
    if "fault" in args:
        return Fault(args["fault"]["ubatch"], args["fault"]["kind"])
    if "abort_at_ubatch" in args:
        return Fault(args["abort_at_ubatch"])
    return None
