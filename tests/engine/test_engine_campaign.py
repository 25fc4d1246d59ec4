"""The tester's random operations with rows, on every device: the engine beside the reference and the ledger."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from engine_recordings import KINDS

from engine import EngineFactory
from kvsim.caches.factory import LeafFactory
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.generate import SeededPicker
from kvsim.testing.match import Match
from kvsim.testing.profiles import PROFILES, operations
from kvsim.testing.rows import RowsSubject, engine_attend
from kvsim.testing.subject import LedgerSubject

N_OPS = 25


def reference_leaves(config: Config) -> LeafFactory:
    return LeafFactory(data=True, sizes=config.sizes)


def engine_leaves(device: str, config: Config) -> EngineFactory:
    return EngineFactory(data=True, sizes=config.sizes, device=device)


@pytest.mark.parametrize("profile", ["usual", "nasty"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_operations_end_alike(kind: str, profile: str, device: str) -> None:
    how, info = PROFILES[profile], CACHES[kind]
    n_done = 0
    for k, config in enumerate(how.configs(info)[:2]):
        subjects = [
            LedgerSubject(),
            RowsSubject("reference with rows", reference_leaves),
            RowsSubject("engine", partial(engine_leaves, device), engine_attend),
        ]
        match = Match(info, config, subjects)
        for _, op in zip(range(N_OPS), operations(match, SeededPicker(k), how), strict=False):
            match.perform(op)
            n_done += 1
    assert n_done >= N_OPS


@pytest.mark.parametrize("kind", KINDS)
def test_what_torch_makes_tensors_of_by_default_does_not_matter(kind: str) -> None:
    """Inference scripts set a device and a type for whatever names none; here a device that holds no values."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            test_random_operations_end_alike(kind, "usual", "cpu")
    finally:
        torch.set_default_dtype(before)
