"""The smallest configuration that serves a workload within limits, and which limit binds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvsim.errors import CacheUsageError
from kvsim.workload.account import Account
from kvsim.workload.request import Request
from kvsim.workload.setup import Setup
from kvsim.workload.simulate import simulate


@dataclass(frozen=True)
class Limits:
    """At most so many ``failed_decodes``; so large a part of all prompt tokens ``reprocessed``; so large a
    part of all requests ``unserved`` (rejected, aborted or cut short); so many seconds to the
    ``first_token``, for 99 of 100; so many ``bytes`` of memory. None: no limit."""

    failed_decodes: int | None = 0
    reprocessed: float | None = None
    unserved: float | None = 0.0
    first_token: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit >= 0:
                raise CacheUsageError(f"{name} = {limit} is no limit: give 0 or more")

    def broken(self, account: Account, complete: bool = True) -> list[str]:
        """The limits that an account breaks; before the end, those that it is sure to have broken then."""
        totals = account.totals
        broken = []
        if self.failed_decodes is not None and totals.failed_decodes > self.failed_decodes:
            broken.append("failed_decodes")
        if not complete:
            return broken
        if self.reprocessed is not None and totals.reprocessed > self.reprocessed * totals.prompt:
            broken.append("reprocessed")
        unserved = totals.rejected + totals.aborted + totals.truncated
        if self.unserved is not None and unserved > self.unserved * totals.requests:
            broken.append("unserved")
        if self.first_token is not None and account.first_token.quantile(0.99) > self.first_token:
            broken.append("first_token")
        return broken


@dataclass(frozen=True)
class Tried:
    """A configuration that was looked at: its bytes, and the limits it broke. An account that was broken off
    has ``complete`` False."""

    setup: Setup
    bytes: int
    broken: tuple[str, ...]
    account: Account
    complete: bool


@dataclass(frozen=True)
class Plan:
    """``best`` is the smallest configuration within the limits, None if there is none.

    ``binding``: the limits that keep it from being smaller, which are those that the next smaller ones broke;
    without a best one, those that stand in the way. ``tried`` are all that were simulated, smallest first.
    """

    best: Tried | None
    binding: tuple[str, ...]
    tried: tuple[Tried, ...]


class _TooMuchError(Exception):
    """A limit is broken for good, so the simulation need not go on."""


Choices = Sequence[Sequence[Mapping[str, Any]]]
"""What to vary: for each thing its alternatives, each of them some settings by name."""


def candidates(base: Setup, choices: Choices) -> list[tuple[int, Setup]]:
    """All combinations of the choices that llama.cpp would accept, with their bytes, smallest first.

    Raises CacheUsageError if there is none, with the reason of the first.
    """
    found: list[tuple[int, Setup]] = []
    refused: CacheUsageError | None = None
    for alternatives in product(*choices):
        setup = base.with_(**{name: value for each in alternatives for name, value in each.items()})
        try:
            setup.config()
            found.append((setup.memory_bytes(), setup))
        except CacheUsageError as error:
            refused = refused or error
    if not found:
        raise refused or CacheUsageError("there is nothing to choose from")
    return sorted(found, key=lambda pair: (pair[0], repr(pair[1])))


def plan(
    requests: Callable[[], Iterable[Request]],
    base: Setup,
    choices: Choices,
    limits: Limits,
    report: Callable[[Tried], object] = lambda tried: None,
    whole: bool = False,
) -> Plan:
    """Simulate from the smallest configuration on until one is within the limits.

    ``whole``: simulate every configuration, each to its end, so that what they cost and what they do can be
    seen side by side. The best one is the same; ``binding`` then has all limits that are broken, not only the
    one at which a simulation was ended.

    ``requests`` gives the workload anew for each. Bytes are those of the caches. A configuration that is too
    large is tried as well, so that a plan without result can say whether memory is what stands in the way.
    """
    tried: list[Tried] = []
    decided = 0  # how many it took to know
    for each in _tries(requests, candidates(base, choices), limits, whole):
        tried.append(each)
        report(each)
        if not decided and each.broken in ((), ("bytes",)):
            decided = len(tried)
        if decided and not whole:
            break
    looked_at = tried[:decided] or tried
    best = looked_at[-1] if not looked_at[-1].broken else None
    return Plan(best, _binding(looked_at), tuple(tried))


def _tries(
    requests: Callable[[], Iterable[Request]],
    setups: Iterable[tuple[int, Setup]],
    limits: Limits,
    whole: bool,
) -> Iterator[Tried]:
    for n_bytes, setup in setups:
        server = setup.server(sample_every=60.0)
        account = server.account

        def look(clock: float, account: Account = account) -> None:
            if not whole and limits.broken(account, complete=False):
                raise _TooMuchError

        complete = True
        try:
            simulate(requests(), server, look=look)
        except _TooMuchError:
            complete = False
        broken = limits.broken(account, complete)
        if limits.bytes is not None and n_bytes > limits.bytes:
            broken.append("bytes")
        yield Tried(setup, n_bytes, tuple(broken), account, complete)


def _binding(tried: Sequence[Tried]) -> tuple[str, ...]:
    """The limits that the largest of the smaller configurations broke; all that were, if nothing fits."""
    last = tried[-1]
    if last.broken == ("bytes",):
        return ("bytes",)
    smaller = [each for each in tried if each.broken and (last.broken or each.bytes < last.bytes)]
    if not smaller:
        return ()
    most = max(each.bytes for each in smaller)
    nearest = smaller if last.broken else [each for each in smaller if each.bytes == most]
    return tuple(sorted({name for each in nearest for name in each.broken}))
