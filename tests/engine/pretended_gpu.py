"""A CUDA device that is not there: tensors that say they are on ``cuda:0``, whose values lie in host memory.

Everything the engine does on a GPU is done, with right values, and refused where a GPU or torch would refuse
it: host and device tensors in one operator, numbers that CUDA has no kernel for, values looked at from the
host. What makes the host wait is allowed inside :mod:`engine.sync` alone. A captured graph is a list of
operators that a replay performs again: what a capture must not do raises, and what the host knew at capture
stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cuda_kernels import without_kernel
from pretended_tensor import (
    CUDA,
    HOST,
    OnDevice,
    PretendedError,
    as_cuda_computes,
    from_ours,
    is_cuda,
    kept,
    tensors_of,
    waits,
)
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

WAITS = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "is_nonzero", "bincount",
         "histc", "nonzero_static"}  # fmt: skip
"""Operators whose result has a shape or a value that the host must know."""

FILLING = {"masked_fill", "masked_fill_", "index_fill", "index_fill_"}
"""Operators that ask a tensor for the number to fill with."""

TAKES_HOST_NUMBER = {*FILLING, "fill_", "index_put", "index_put_"}
"""Operators beside those on single elements that take a 0-d tensor of the host as a number."""

PINNING = {"is_pinned", "_pin_memory", "pin_memory"}
INDEXING = {"index", "index_put", "index_put_"}
MASKS = {torch.bool, torch.uint8}


class Pretending(TorchDispatchMode):
    """Performs operators; ``tape`` is the list of those captured while a graph is."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[Callable[[], None]] | None = None
        self._pinned: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name, to = func.overloadpacket.__name__, kwargs.get("device")
        tensors = [*tensors_of(args), *tensors_of(kwargs.values())]
        on = [t for t in tensors if isinstance(t, OnDevice)]
        host = [t for t in tensors if not isinstance(t, OnDevice)]
        if name in PINNING:
            return self._pin(name, args[0])
        if not on and not is_cuda(to):
            return func(*args, **kwargs)
        if name == "_to_copy" and to is not None and is_cuda(to) != bool(on):
            return self._transfer(args[0], kwargs)
        if name == "copy_" and host:
            self.check_transfer(args[1], non_blocking=args[2:3] == (True,))
            kept(args[0]).copy_(kept(args[1]))
            return args[0]
        if name == "_local_scalar_dense":
            waits(name)
            return func(kept(args[0]))
        self._check(func, name, args, kwargs, host)
        if to is not None:
            kwargs["device"] = HOST
        return self.perform(func, name, args, kwargs, on)

    def _check(self, func: Any, name: str, args: Any, kwargs: Any, host: list[Tensor]) -> None:
        if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            waits(name)
        if name in INDEXING and any(x is not None and x.dtype in MASKS for x in args[1]):
            waits(f"{name} with a mask")
        if name in FILLING and isinstance(args[-1], OnDevice):
            waits(f"{name} with a number of the device")
        if lacking := without_kernel(name, (x.dtype for x in tensors_of([*args, *kwargs.values()]))):
            raise PretendedError(lacking)
        numbers = torch.Tag.pointwise in func.tags or name in TAKES_HOST_NUMBER
        for t in host:
            if not numbers or t.dim() > 0:
                raise PretendedError(f"{func}: tensors on two devices, one of the host has {tuple(t.shape)}")
            if name == "where":  # it brings the number to the device
                self.check_transfer(t, non_blocking=False)
            if self.tape is not None:
                raise PretendedError(f"{func} takes a tensor of the host in a captured step")

    # -- from and to the host ------------------------------------------------------------------

    def _pin(self, name: str, x: Tensor) -> Any:
        if name == "is_pinned":
            return x is self._pinned
        if self.tape is not None:
            raise PretendedError("memory is pinned in a captured step")
        self._pinned = x.clone()
        return self._pinned

    def _transfer(self, x: Tensor, kwargs: dict[str, Any]) -> Tensor:
        self.check_transfer(x, bool(kwargs.get("non_blocking")))
        dtype = kwargs.get("dtype")
        copy = torch.ops.aten._to_copy.default(kept(x), dtype=dtype)
        return copy if isinstance(x, OnDevice) else OnDevice(copy)

    def check_transfer(self, source: Tensor, non_blocking: bool) -> None:
        if self.tape is not None:
            raise PretendedError("host and device exchange values in a captured step")
        if isinstance(source, OnDevice):
            waits("a copy to the host")
        elif not (non_blocking and source is self._pinned):
            from_ours("a copy from memory that is not pinned")

    # -- performing ----------------------------------------------------------------------------

    def perform(self, func: Any, name: str, args: Any, kwargs: Any, on: list[OnDevice]) -> Any:
        """Run on the values; results that are arguments are those arguments again."""
        run = as_cuda_computes(func, name, kept(args), kept(kwargs))
        if self.tape is not None and func._schema.is_mutable:
            self.tape.append(run)
            return kwargs.get("out", args[0])
        out = run()
        if self.tape is not None:
            self.tape.append(again(run, out))
        same = {id(t.kept): t for t in on} if func._schema.is_mutable else {}
        return tree_map_only(Tensor, lambda t: same[id(t)] if id(t) in same else OnDevice(t), out)

    def record(self, function: Callable[..., Any], *args: Any, writes: bool = False) -> Any:
        """Read or write a part of a tensor; ``args`` are values."""
        run = partial(function, *args)
        if self.tape is not None and writes:
            self.tape.append(run)
            return None
        out = run()
        if self.tape is not None:
            self.tape.append(again(run, out))
        return out if out is None else OnDevice(out)


def again(run: Callable[[], Any], out: Any) -> Callable[[], None]:
    """Perform an operator once more and put its results where they were."""
    into = [t for t in tree_leaves(out) if isinstance(t, Tensor)]

    def replay() -> None:
        for target, fresh in zip(into, [t for t in tree_leaves(run()) if isinstance(t, Tensor)], strict=True):
            if target.data_ptr() != fresh.data_ptr():
                target.copy_(fresh)

    return replay


# -- what torch begins in C++ -----------------------------------------------------------------------


LOOKS = (Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__)


GUARDED: dict[Any, Callable[..., Any]] = {
    Tensor.__invert__: torch.bitwise_not,
    Tensor.contiguous: lambda x: x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format),
    Tensor.copy_: torch.ops.aten.copy_.default,
    Tensor.nonzero: torch.ops.aten.nonzero.default,
}
"""Methods that want the device's library before they are operators."""


class Beginnings(TorchFunctionMode):
    """Subscripts of tensors on the device, and tensors made there of numbers of the host."""

    def __init__(self, pretending: Pretending) -> None:
        super().__init__()
        self.pretending = pretending

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[0], OnDevice):
            self._check_index(args[1])
            return self.pretending.record(Tensor.__getitem__, *kept(args))
        if func is Tensor.__setitem__ and isinstance(args[0], OnDevice):
            self._check_index(args[1])
            self._check_value(args[2])
            return self.pretending.record(Tensor.__setitem__, *kept(args), writes=True)
        kwargs = dict(kwargs or {})
        if func is Tensor.to:  # which asks the missing library for the index of a device without one
            args = tuple(CUDA if isinstance(x, str | torch.device) and is_cuda(x) else x for x in args)
        if func in LOOKS and isinstance(args[0], OnDevice):
            return func(args[0].cpu())
        if func in GUARDED and isinstance(args[0], OnDevice):
            return GUARDED[func](*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and is_cuda(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": HOST}).to(CUDA)
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(CUDA)
        return func(*args, **kwargs)

    def _check_index(self, index: Any) -> None:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, OnDevice):
                if part.dtype in MASKS:
                    waits("a mask as an index")
                elif part.dim() == 0:
                    waits("a number of the device as an index")
            elif isinstance(part, Tensor | list | np.ndarray):
                self.pretending.check_transfer(torch.as_tensor(part), non_blocking=False)

    def _check_value(self, value: Any) -> None:
        if isinstance(value, Tensor):
            if not isinstance(value, OnDevice) and value.dim():
                self.pretending.check_transfer(value, non_blocking=False)
        elif not isinstance(value, int | float | bool):
            self.pretending.check_transfer(torch.as_tensor(value), non_blocking=False)


# -- graphs and the block --------------------------------------------------------------------------


class Event:
    """In place of ``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


class Graph:
    """In place of ``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self.tape: list[Callable[[], object]] = []

    def replay(self) -> None:
        for run in self.tape:
            run()


@contextmanager
def pretended_gpu() -> Iterator[Pretending]:
    """Within the block ``device="cuda:0"`` works."""
    pretending = Pretending()

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        pretending.tape = graph.tape
        try:
            yield
        finally:
            pretending.tape = None

    def nothing(*args: Any) -> None:
        return None

    only_lifted = torch._C._only_lift_cpu_tensors()
    with pytest.MonkeyPatch.context() as patch, Beginnings(pretending), pretending:
        patch.setattr(torch.cuda, "_lazy_init", nothing)
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "graph", capture)
        patch.setattr(torch.cuda, "device", nullcontext)
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            yield pretending
        finally:
            torch._C._set_only_lift_cpu_tensors(only_lifted)
