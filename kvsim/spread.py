"""Many independent jobs over processes of this machine, or over a Ray cluster.

A job is done by a function at the top level of a module, on an item that can be pickled. Results come as they
are ready. A worker that is killed costs its job only time: it is done again, up to :data:`MOST_ATTEMPTS`
times.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from kvsim.errors import KvsimError

T = TypeVar("T")
R = TypeVar("R")

MOST_ATTEMPTS = 4

IN_FLIGHT = 1000
"""Most jobs that a cluster is given at a time."""


class SpreadError(KvsimError):
    """A job could not be done, because its worker died again and again or there is no cluster."""


def _processes(work: Callable[..., object]) -> BaseContext:
    """Fresh processes; where there is a server to fork them, it has read the libraries already."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    return context


def _end_with_parent() -> None:
    """In a worker: do not outlive the process that hands out the work, should that be killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check_reachable(address: str) -> None:
    """Ray waits for minutes for a cluster that is not there: look for it first."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.rpartition("//")[2], int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:  # of a name or a port that cannot be
        raise SpreadError(f"no Ray cluster at {address!r:.200}: {error}") from None


def _died(item: object) -> SpreadError:
    return SpreadError(f"a worker died {MOST_ATTEMPTS} times at {item!r:.200}")


def over_processes(work: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[tuple[T, R]]:
    """Each item with its result, as they are ready. An exception of ``work`` is raised here."""
    attempts = [0] * len(items)
    left = set(range(len(items)))
    while left:
        with ProcessPoolExecutor(processes, _processes(work), _end_with_parent) as pool:
            started: dict[Future[R], int] = {}
            waiting = sorted(left)
            try:
                while waiting or started:
                    # not more than are being worked on: a killed worker fails all that were handed out
                    while waiting and len(started) < processes:
                        i = waiting.pop(0)
                        attempts[i] += 1
                        started[pool.submit(work, items[i])] = i
                    for future in wait(started, return_when=FIRST_COMPLETED).done:
                        i = started.pop(future)
                        if isinstance(future.exception(), BrokenProcessPool):
                            raise BrokenProcessPool
                        result = future.result()
                        left.discard(i)
                        yield items[i], result
            except BrokenProcessPool:
                worst = max(left, key=lambda i: attempts[i])
                if attempts[worst] >= MOST_ATTEMPTS:
                    raise _died(items[worst]) from None


def over_ray(work: Callable[[T], R], items: Sequence[T], address: str) -> Iterator[tuple[T, R]]:
    """As :func:`over_processes`, on the Ray cluster at ``address`` (``local``: one on this machine).

    Raises SpreadError without Ray, or if there is no cluster.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise SpreadError("Ray is not installed: pip install 'kvsim[cluster]'") from None
    ours = not ray.is_initialized()
    if ours:
        _check_reachable(address)
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SpreadError(f"no Ray cluster at {address!r}: {error}") from None
    started: dict[Any, T] = {}
    try:
        remote: Any = ray.remote(num_cpus=1, max_retries=MOST_ATTEMPTS - 1)(work)
        waiting = iter(items)
        while True:
            started |= {remote.remote(item): item for item in islice(waiting, IN_FLIGHT - len(started))}
            if not started:
                return
            (done,), _ = ray.wait(list(started), num_returns=1)
            item = started.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.WorkerCrashedError:
                raise _died(item) from None
            yield item, result
    finally:
        for unfinished in started:
            ray.cancel(unfinished)
        if ours:
            ray.shutdown()
