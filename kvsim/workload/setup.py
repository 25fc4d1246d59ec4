"""One simulation as flat data: what the command line, a plan and a sweep all vary.

>>> Setup(arch="gemma3-4b", n_ctx=65536, parallel=16).config().params.n_seq_max
16
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from kvsim.errors import CacheUsageError
from kvsim.models.context_params import ContextParams
from kvsim.models.gguf_header import read_model
from kvsim.models.known import known_model
from kvsim.models.memory_bytes import memory_bytes
from kvsim.models.params import ModelParams
from kvsim.workload.account import Account
from kvsim.workload.config import ServerConfig
from kvsim.workload.cost import CostModel, Device, Weights
from kvsim.workload.paged import PagedServer
from kvsim.workload.request import Request
from kvsim.workload.simulate import Policy, simulate
from kvsim.workload.slot_server import SlotServer

POLICIES = ("slots", "paged")

LARGEST = 2**63 - 1
"""Of whole numbers, for tables of results hold no larger ones."""


@dataclass(frozen=True)
class Setup:
    """A model by name, a server, a device. Names are those of the command line's options.

    ``n_params`` and ``n_active`` 0: about as published. ``weight_bytes`` per parameter: 2 for 16-bit weights,
    about 0.56 for 4-bit ones. ``bandwidth`` bytes and ``rate`` operations a second, ``overhead`` seconds.
    """

    arch: str
    n_ctx: int = 0
    parallel: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    policy: str = "slots"
    similarity: float = 0.1
    ctx_shift: bool = False
    n_keep: int = 0
    cache_reuse: int = 0
    checkpoints: int = 32
    n_params: float = 0.0
    n_active: float = 0.0
    weight_bytes: float = 2.0
    bandwidth: float = Device.bandwidth
    rate: float = Device.rate
    overhead: float = Device.overhead

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise CacheUsageError(f"unknown policy {self.policy!r}: use one of {', '.join(POLICIES)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Setup:
        """From names and values, as a sweep's file has them. Raises CacheUsageError naming what is wrong."""
        kinds = {field.name: str(field.type) for field in fields(cls)}
        for name, value in values.items():
            if name not in kinds:
                raise CacheUsageError(f"unknown setting {name!r}: use some of {', '.join(kinds)}")
            good = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}[kinds[name]]
            if type(value) not in good:
                raise CacheUsageError(f"{name} = {value!r} is not of type {kinds[name]}")
            most = {"int": LARGEST, "float": sys.float_info.max}.get(kinds[name])
            if most is not None and not abs(value) <= most:
                raise CacheUsageError(f"{name} = {value!r:.40} is not a number that can be calculated with")
        if "arch" not in values:
            raise CacheUsageError("no model is given: set arch")
        return cls(**values)

    def model(self) -> ModelParams:
        return known_model(self.arch)

    def params(self) -> ContextParams:
        return ContextParams(
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            n_seq_max=self.parallel,
            kv_unified=self.unified,
            swa_full=self.swa_full,
            type_k=self.type_k,
            type_v=self.type_v,
        )

    def config(self) -> ServerConfig:
        return ServerConfig(
            self.model(),
            self.params(),
            slot_prompt_similarity=self.similarity,
            ctx_shift=self.ctx_shift,
            n_keep=self.n_keep,
            cache_reuse=self.cache_reuse,
            ctx_checkpoints=self.checkpoints,
        )

    def weights(self) -> Weights:
        if self.n_params:
            return Weights(self.n_params, self.n_active or self.n_params, self.weight_bytes)
        return Weights.of(self.arch, self.weight_bytes)

    def cost(self) -> CostModel:
        device = Device(self.bandwidth, self.rate, self.overhead)
        return CostModel(self.model(), self.params(), self.weights(), device)

    def server(self, sample_every: float = 1.0) -> Policy:
        """The policy, ready to serve; ``sample_every`` seconds between looks at its cells."""
        account = Account(every=sample_every)
        make = PagedServer if self.policy == "paged" else SlotServer
        return make(self.config(), self.cost(), account)

    def memory_bytes(self) -> int:
        """Bytes of the caches; weights, buffers and checkpoints not counted."""
        return memory_bytes(self.model(), self.params()).total

    def run(
        self,
        requests: Iterable[Request],
        sample_every: float = 1.0,
        report: Callable[[int], object] = lambda n: None,
    ) -> Account:
        """Simulate from beginning to end."""
        return simulate(requests, self.server(sample_every), report)

    def with_(self, **changes: Any) -> Setup:
        return replace(self, **changes)


@dataclass(frozen=True)
class FileSetup(Setup):
    """A setup of the model in the GGUF file ``gguf``, of which only the header is read; ``arch`` is what to
    call it. Without a file, of the model of that name. ``weight_bytes`` 0: as stored."""

    weight_bytes: float = 0.0
    gguf: str = ""

    def model(self) -> ModelParams:
        return _model_in(self.gguf) if self.gguf else super().model()

    def weights(self) -> Weights:
        stored = _weights_in(self.gguf) if self.gguf else Weights.of(self.arch)
        total = self.n_params or stored.total
        active = self.n_active or self.n_params or stored.active
        return Weights(total, active, self.weight_bytes or stored.bytes_each)


@lru_cache(maxsize=16)
def _model_in(path: str) -> ModelParams:
    return read_model(path)


@lru_cache(maxsize=16)
def _weights_in(path: str) -> Weights:
    return Weights.in_file(path)
