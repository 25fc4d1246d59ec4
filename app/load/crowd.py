"""Many users on one server: who waits how long, and what the server holds meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from app.load.session import Session
from app.load.users import KINDS, SHARES
from kvsim.bench.measure import Goal, Row
from kvsim.bench.served import Served, served
from kvsim.errors import KvsimError

LONGEST = 120.0
"""Seconds after which nobody begins another act."""
THINKS = (2.0, 6.0)
"""Seconds between two acts of a user."""
COMES_WITHIN = 5.0
"""Seconds within which all have come: a lecture begins."""


@dataclass(frozen=True)
class Wait:
    """How long a user waited: ``what`` is ``open`` or ``act``."""

    page: str
    what: str
    seconds: float


@dataclass
class Crowd:
    """What came of it. ``failed`` says of whom the answer was not theirs, or did not come."""

    waits: list[Wait] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    bytes_received: int = 0

    def add(self, other: Crowd) -> None:
        self.waits += other.waits
        self.failed += other.failed

    def seconds(self, what: str, page: str = "") -> list[float]:
        return [w.seconds for w in self.waits if w.what == what and page in ("", w.page)]


def crowd_table(users: int, tell: Callable[[str], object], acts: int = 8) -> Iterator[Row]:
    """So many users on one server, each page's acts beside those of one user alone on the same server.

    ``tell`` gets what is no row: processor time, memory, bytes. Raises KvsimError if somebody's answer was wrong
    or did not come.
    """
    kinds = mixed(users)
    with served() as server:
        alone = Crowd()
        for kind in dict.fromkeys(kinds):
            alone.add(come(server, [kind], 4, hurry=0.2))
        used, begun = server.processor(), time.monotonic()
        crowd = come(server, kinds, acts)
        passed, then = time.monotonic() - begun, server.processor()
    for what, name in (("open", "opening"), ("act", "an act")):
        for page in dict.fromkeys(kinds):
            waits, before = crowd.seconds(what, page), alone.seconds(what, page)
            if waits and before:
                yield Row(f"{users} users, {page}: {name}", median(waits), "one user alone", median(before))
    every = crowd.seconds("act")
    yield Row(f"{users} users: an act, median of {len(every):,}", median(every), goal=Goal("seconds", 0.5))
    yield Row(f"{users} users: an act, 95 of 100 wait less", percentile_95(every), goal=Goal("seconds", 1.0))
    if used and then:
        own, started = then[0] - used[0], then[1] - used[1]
        tell(
            f"processor time: {own:,.1f} s of the server, {1000 * own / len(crowd.waits):,.0f} ms an act; "
            f"{started:,.1f} s of its workers; in {passed:,.0f} s, so {(own + started) / passed:.2f} processors' worth"
        )
    if crowd.memory:
        first, most = crowd.memory[0] >> 20, max(crowd.memory) >> 20
        tell(f"memory of the server: {first:,} MiB before they came, {most:,} MiB at most")
    each, kib = sum(THINKS) / 2, crowd.bytes_received / len(every) / 1024
    tell(f"a user acts {each:g} s after an answer, and gets {kib:,.0f} KiB an act")
    if crowd.failed or alone.failed:
        raise KvsimError("; ".join([*alone.failed, *crowd.failed]))


def percentile_95(seconds: Sequence[float]) -> float:
    """The wait that 95 of 100 do not exceed, one that occurred."""
    return sorted(seconds)[-(-95 * len(seconds) // 100) - 1]


def come(server: Served, kinds: Iterable[str], acts: int, hurry: float = 1.0) -> Crowd:
    """Let one user of each kind come; ``acts`` each after opening its page, thoughts ``hurry`` times as long."""
    return asyncio.run(_all(server, list(kinds), acts, hurry))


def mixed(users: int) -> list[str]:
    """The kinds of so many users."""
    return [SHARES[n % len(SHARES)] for n in range(users)]


async def _all(server: Served, kinds: list[str], acts: int, hurry: float) -> Crowd:
    crowd = Crowd()
    watch = asyncio.create_task(_watch(server, crowd))
    await asyncio.gather(*(_user(server, crowd, n, kind, acts, hurry) for n, kind in enumerate(kinds)))
    watch.cancel()
    return crowd


async def _user(server: Served, crowd: Crowd, n: int, kind: str, acts: int, hurry: float) -> None:
    mood, end = random.Random(n), time.monotonic() + LONGEST
    await asyncio.sleep(mood.uniform(0, COMES_WITHIN) * hurry)
    try:
        async with Session(server.url) as session:
            async for what, wait in KINDS[kind](session, n, acts):
                begun = time.perf_counter()
                await wait()
                crowd.waits.append(Wait(kind, what, time.perf_counter() - begun))
                await session.think(mood.uniform(*THINKS) * hurry)
                if time.monotonic() > end:
                    break
            crowd.bytes_received += session.bytes_received
    except (KvsimError, KeyError, OSError) as error:
        crowd.failed.append(f"user {n}, {kind}: {error}")


async def _watch(server: Served, crowd: Crowd) -> None:
    while True:
        held = server.memory()
        if held is not None:
            crowd.memory.append(held)
        await asyncio.sleep(0.25)
