"""A block in which the host may not wait for the device but through the engine's one door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine import sync

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")
"""Operators whose result has a shape or a value that the host must know."""


class _NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert name not in WAITING, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            masks = [x for x in args[1] if x is not None and x.dtype == torch.bool]
            assert not masks, f"{name} with a mask waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def at_most_read_backs(allowed: int, device: str) -> Iterator[None]:
    """Fail if the block reads back more often, or past :func:`engine.sync.read_back`. On a GPU torch raises
    at everything else for which the host would wait."""
    names = ("tolist", "numpy", "__array__", *(["cpu"] if device == "cuda" else []))
    real = {name: getattr(torch.Tensor, name) for name in names}

    def guarded(name: str) -> Any:
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            assert sync.ReadBacks.inside, f"Tensor.{name} looks at values past engine.sync.read_back"
            with torch_lets_it_wait(device):
                return real[name](self, *args, **kwargs)

        return method

    for name in real:
        setattr(torch.Tensor, name, guarded(name))
    try:
        with torch_raises_at_waiting(device), sync.counting() as counted, _NoWaiting():
            yield
    finally:
        for name, method in real.items():
            setattr(torch.Tensor, name, method)
    assert counted[0] <= allowed, f"{counted[0]} read-backs, {allowed} allowed"


@contextmanager
def torch_raises_at_waiting(device: str) -> Iterator[None]:
    if device != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def torch_lets_it_wait(device: str) -> Iterator[None]:
    if device != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("error")
