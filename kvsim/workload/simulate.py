"""The simulation: requests come, a policy serves them, a clock goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from kvsim.workload.account import Account, Sample
from kvsim.workload.request import Request


class Policy(Protocol):
    """What serves requests. It counts into an account of its own."""

    name: str
    account: Account

    def offer(self, request: Request) -> None:
        """A request has come."""

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""

    def advance(self, clock: float, until: float) -> float:
        """Do some of it, from ``clock`` on, and return the time then. The next request comes at ``until``."""

    def sample(self, clock: float) -> Sample:
        """How things are."""


def simulate(
    requests: Iterable[Request],
    policy: Policy,
    report: Callable[[int], object] = lambda n: None,
    look: Callable[[float], object] = lambda clock: None,
) -> Account:
    """Serve all requests and return the policy's account. Before each round ``report`` is told how many have
    come so far, and ``look`` what time it is.

    Memory does not grow with the number of requests, but for those that wait. Raises IntegrityError if
    a token is unaccounted for.
    """
    coming = iter(requests)
    following = next(coming, None)
    clock, n = 0.0, 0
    account = policy.account
    while following is not None or policy.busy:
        if not policy.busy and following is not None:
            clock = max(clock, following.arrival)
        while following is not None and following.arrival <= clock:
            policy.offer(following)
            n += 1
            following = next(coming, None)
        report(n)
        look(clock)
        clock = policy.advance(clock, inf if following is None else following.arrival)
        if account.due(clock):
            account.sample(policy.sample(clock))
    account.sample(policy.sample(clock))
    account.totals.check()
    return account
