"""Which requests are served: those of a trace, or made-up ones with its pace and lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kvsim.workload.read import Workload
from kvsim.workload.request import Request
from kvsim.workload.synthetic import fit


def choose(
    workload: Path, requests: int = 0, fitted: int = 0, turns: float = 1.0, system: int = 0, seed: int = 0
) -> tuple[Iterable[Request], int, float]:
    """The requests, how many they are, and over how many seconds they come. Reads the file once.

    ``requests`` 0: all of the file. ``fitted``: so many made-up ones, of conversations with ``turns`` on average
    and a shared ``system`` prompt of so many tokens. Raises WorkloadError with its line for a file that cannot
    be used.
    """
    read = Workload(workload, requests or None)
    if fitted:
        made = replace(fit(read, fitted, seed), turns=turns, system=system)
        return made, fitted, fitted / made.rate
    summary = read.summary()
    return read, summary.n_requests, summary.seconds
