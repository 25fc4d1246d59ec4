"""The GPU that is not there refuses what a real one would, and replays what was captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_recordings import PRETENDED
from pretended_gpu import Graph, PretendedError, pretended_gpu

from engine import sync

ENGINE = Path(sync.__file__).parent


@pytest.mark.parametrize(
    "mixed",
    [
        lambda on, host: on + host,
        lambda on, host: torch.cat([on, host]),
        lambda on, host: on.index_select(0, host),
        lambda on, host: torch.where(on > 1, on, host),
        lambda on, host: torch.stack([on, host]).amax(),
        lambda on, host: on.gather(0, host),
        lambda on, host: on.index_copy_(0, on, host),
    ],
)
def test_tensors_of_two_devices_do_not_meet(mixed: Callable[..., object]) -> None:
    with pretended_gpu():
        on, host = torch.arange(4, device=PRETENDED), torch.arange(4)
        assert on.device == torch.device("cuda", 0)
        with pytest.raises(PretendedError, match="two devices"):
            mixed(on, host)


def test_numbers_of_the_host_are_taken() -> None:
    with pretended_gpu():
        on = torch.arange(4, device=PRETENDED)
        on[1] = 7
        on[2:] += torch.tensor(1)
        assert torch.where(on > 1, on, 0).cpu().tolist() == [0, 7, 3, 4]


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("mm", lambda x: x.reshape(2, 2) @ x.reshape(2, 2)),
        ("sort", lambda x: x.to(torch.complex64).sort()),
        ("bitwise_and", lambda x: x.to(torch.float32) & x),
        ("cummax", lambda x: x.to(torch.uint16).cummax(0)),
    ],
)
def test_operators_without_a_kernel_are_refused(name: str, lacking: Callable[..., object]) -> None:
    """A CPU multiplies matrices of integers, for one."""
    with pretended_gpu(), pytest.raises(PretendedError, match=f"{name} has no kernel on CUDA for torch"):
        lacking(torch.arange(4, device=PRETENDED))


def test_numpy_does_not_take_tensors_of_the_device() -> None:
    with pretended_gpu(), pytest.raises((RuntimeError, TypeError)):
        torch.arange(4, device=PRETENDED).numpy()


@pytest.mark.parametrize(
    "look",
    [
        "x.cpu()",
        "x.tolist()",
        "int(x[1])",
        "bool((x > 1).any())",
        "x[x > 1]",
        "x[x[1]]",
        "x[[1, 2]]",
        "x[:2] = torch.tensor([1, 2])",
        "x.nonzero()",
        "torch.masked_select(x, x > 1)",
        "torch.where(x > 1, x, torch.tensor(5))",
        "x.masked_fill(x > 1, x.sum())",
        "x.index_fill(0, x, x.sum())",
        "torch.unique(x)",
        "torch.repeat_interleave(x)",
        "torch.tensor([1, 2], device=x.device)",
        "torch.arange(2).to(x.device)",
        "torch.arange(2).to(x.device, non_blocking=True)",
    ],
)
def test_the_engine_waits_in_one_module_alone(look: str) -> None:
    with pretended_gpu():
        names = {"torch": torch, "x": torch.arange(4, device=PRETENDED)}
        exec(compile(look, str(ENGINE / "sync.py"), "exec"), names)
        with pytest.raises(PretendedError, match=r"in engine/cells\.py, past engine\.sync"):
            exec(compile(look, str(ENGINE / "cells.py"), "exec"), names)


def test_a_replay_performs_what_was_captured_on_what_is_there_now() -> None:
    with pretended_gpu():
        x, total = torch.arange(4, device=PRETENDED), torch.zeros((), device=PRETENDED)
        factor = 10
        graph = Graph()
        with torch.cuda.graph(graph):
            total += x[1:].sum()
            out = (x * factor).flip(0)
        assert float(total) == 0  # a capture performs nothing
        factor = 20
        for n in (1, 2):
            x.copy_(torch.arange(n, n + 4, device=PRETENDED))
            graph.replay()
            assert out.tolist() == [10 * (n + i) for i in (3, 2, 1, 0)]  # of the factor as it was
        assert float(total) == (2 + 3 + 4) + (3 + 4 + 5)


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: sync.read_back(x),
        lambda x: sync.upload([1, 2], x.device),
        lambda x: x + torch.tensor(1),
        lambda x: x[torch.tensor([1])],
    ],
)
def test_a_capture_leaves_the_host_alone(forbidden: Callable[..., object]) -> None:
    with pretended_gpu():
        x = torch.arange(4, device=PRETENDED)
        with pytest.raises(PretendedError, match="captured step"), torch.cuda.graph(Graph()):
            forbidden(x)


def test_a_division_by_a_number_is_a_last_bit_off_as_on_a_gpu() -> None:
    with pretended_gpu():
        x, right = torch.full((), 9.0, device=PRETENDED), float(np.float32(9) / np.float32(127))
        assert float(x / 127) != right
        assert float(x / x.new_full((), 127)) == right
