"""What every section needs to know of the state it is part of, and the checks all of them make."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import StateError
from kvsim.state import StateReader
from kvsim.state_versions import Layout


@dataclass(frozen=True)
class Form:
    """``whole``: of all sequences, not of one. ``on_device``: the rows are elsewhere, only what describes
    them is here."""

    layout: Layout
    whole: bool
    partial: bool = False
    on_device: bool = False

    def rows(self, io: StateReader, n_bytes: int, what: str) -> memoryview:
        """Row bytes, of which a state kept on the device has none."""
        return io.view(0 if self.on_device else n_bytes, what)


def count(io: StateReader, what: str, n_bytes: int) -> int:
    """A number of things of at least ``n_bytes`` each, which must fit into what is left."""
    n = io.u32(what)
    if n * n_bytes > io.left:
        raise StateError(
            f"at byte {io.at - 4}: {what} is {n}, which need at least {n * n_bytes} bytes; {io.left} are left"
        )
    return n


def expect(io: StateReader, found: int, wanted: int, what: str, n_bytes: int = 4) -> None:
    """Check the number just read."""
    if found != wanted:
        raise StateError(f"at byte {io.at - n_bytes}: {what} is {found}, must be {wanted}")


def expect_u32(io: StateReader, wanted: int, what: str) -> None:
    expect(io, io.u32(what), wanted, what)


def expect_i32(io: StateReader, wanted: int, what: str) -> None:
    expect(io, io.i32(what), wanted, what)


def expect_u64(io: StateReader, wanted: int, what: str) -> None:
    expect(io, io.u64(what), wanted, what, 8)
