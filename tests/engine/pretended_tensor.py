"""Tensors of the GPU that is not there, what differs in its kernels, and who may look at values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
DOORS = str(ROOT / "engine" / "sync.py")
OURS = str(ROOT / "engine"), str(ROOT / "kvsim")
TESTER = str(ROOT / "kvsim" / "testing")
BETWEEN = (
    str(Path(torch.__file__).parent), str(ROOT / "tests/engine/pretended_"), str(ROOT / "tests/engine/no_waiting"),
)  # fmt: skip
"""Files through which a call of torch may pass on its way here."""

CUDA = torch.device("cuda", 0)
HOST = torch.device("cpu")


class PretendedError(AssertionError):
    """What a GPU would refuse, or would wait for."""


class OnDevice(Tensor):
    """A tensor on the pretended device; ``kept`` holds its values."""

    kept: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, kept: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls, kept.size(), strides=kept.stride(), storage_offset=kept.storage_offset(), dtype=kept.dtype,
            device=CUDA,
        )  # fmt: skip
        made.kept = kept
        return made

    def __repr__(self) -> str:
        return f"OnDevice({self.kept})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        return OnDevice(self.kept.clone())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise PretendedError(f"{func} outside of a block of the pretended device")


def kept(values: Any) -> Any:
    """The same arguments with the values in place of tensors on the device."""
    if isinstance(values, OnDevice):
        return values.kept
    if isinstance(values, list | tuple):
        return type(values)(map(kept, values))
    return {key: kept(x) for key, x in values.items()} if isinstance(values, dict) else values


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from tensors_of(x)


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


# -- who may look ----------------------------------------------------------------------------------


def caller() -> str:
    """The file of the code that has called torch."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def waits(what: str) -> None:
    from_ours(f"{what}, for which the host waits,")


def from_ours(what: str) -> None:
    """Only tests and the tester may do this anywhere; the engine and what works with it have two doors."""
    file = caller()
    if file.startswith(OURS) and not file.startswith(TESTER) and file != DOORS:
        raise PretendedError(f"{what} in {Path(file).relative_to(ROOT)}, past engine.sync")


# -- kernels ---------------------------------------------------------------------------------------


def as_cuda_computes(func: Any, name: str, args: Any, kwargs: Any) -> Callable[[], Any]:
    """CUDA's kernels divide floats by a number of the host by way of its inverse, and some of those for attention
    give NaN where nothing may be seen. Of equal values any may be among the largest, of values written to one
    row any may stay: others here than on a CPU."""
    x = args[0] if args else None
    if name in ("div", "div_") and not kwargs and x.is_floating_point() and not isinstance(args[1], Tensor):
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        inverse = (torch.ones((), dtype=wide) / args[1]).item()
        return partial(x.mul if name == "div" else x.mul_, inverse)
    if name == "_safe_softmax":
        return partial(torch.softmax, *args, **kwargs)
    if name == "topk":
        return partial(last_of_equal, *args, **kwargs)
    if name == "index_copy_":
        return partial(first_stays, *args)
    return partial(func, *args, **kwargs)


def last_of_equal(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, at = x.flip(dim).topk(k, dim, largest, sorted)
    return values, x.shape[dim] - 1 - at


def first_stays(into: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return into.index_copy_(dim, index.flip(0), source.flip(dim))
