"""Small simulated servers: requests by hand, tiny caches, a clock that counts passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.models.context_params import ContextParams
from kvsim.models.known import known_model
from kvsim.workload.account import Account
from kvsim.workload.config import ServerConfig
from kvsim.workload.cost import CostModel, Device, Weights
from kvsim.workload.paged import PagedServer
from kvsim.workload.request import FIRST_ANSWER, Request
from kvsim.workload.slot_server import SlotServer

# one second per pass, whatever is in it
CLOCKWORK = Device(bandwidth=1e30, rate=1e30, overhead=1.0)


def request(i: int, at: float, prompt: range | tuple[range, ...], n_answer: int) -> Request:
    parts = prompt if isinstance(prompt, tuple) else (prompt,)
    first = FIRST_ANSWER + 1000 * i
    return Request(i, at, parts, range(first, first + n_answer))


def config_of(arch: str = "llama3-8b", n_swa: int = 0, **settings: Any) -> ServerConfig:
    """A server; context parameters and its own settings by name."""
    model = known_model(arch)
    if n_swa:
        model = replace(model, n_swa=n_swa)
    own = {name: settings.pop(name) for name in list(settings) if name in ServerConfig.__dataclass_fields__}
    params = ContextParams(**{"n_ctx": 256, "n_ubatch": 32, "swa_full": False, **settings})
    return ServerConfig(model, params, **own)


def server_of(config: ServerConfig, device: Device = CLOCKWORK, bulk: bool = True) -> SlotServer:
    cost = CostModel(config.model, config.params, Weights(1e9, 1e9), device)
    return SlotServer(config, cost, Account(every=5.0), bulk)


def paged_of(config: ServerConfig, device: Device = CLOCKWORK, block_size: int = 16) -> PagedServer:
    cost = CostModel(config.model, config.params, Weights(1e9, 1e9), device)
    return PagedServer(config, cost, Account(every=5.0), block_size)


def random_requests(seed: int, n: int, longest: int = 120) -> list[Request]:
    """Requests in bursts; some prompts begin with the same tokens, some are empty or too long."""
    random = np.random.default_rng(seed)
    out, at = [], 0.0
    for i in range(n):
        at += float(random.choice([0.0, 0.0, 3.0, 40.0]))
        shared = range(int(random.choice([0, 0, 20, 60])))
        own = range(10_000 + 1000 * i, 10_000 + 1000 * i + int(random.integers(0, longest)))
        parts = tuple(part for part in (shared, own) if part)
        out.append(request(i, at, parts, int(random.choice([0, 1, 2, 30, 70]))))
    return out
