"""A header made for a context of ours says enough to make the same context from it."""

from __future__ import annotations

import json

import pytest

from kvsim.context import Context
from kvsim.errors import TraceError
from kvsim.models.memory_spec import memory_spec
from kvsim.replay import context_of
from kvsim.testing.cache_info import CacheInfo, Config, configurations
from kvsim.trace.describe import header_of
from kvsim.trace.header import Header


@pytest.mark.parametrize(("info", "config"), configurations(), ids=str)
def test_a_context_made_from_its_header_is_the_same(info: CacheInfo, config: Config) -> None:
    header = header_of(config.model, config.params, sizes=config.sizes, name=config.name, seed=7)
    read = Header.from_json(json.loads(json.dumps(header.to_json())))
    assert read == header
    again, first = context_of(read), Context(config.model, config.params)
    assert again.resolved == first.resolved
    assert memory_spec(again.model, again.resolved) == memory_spec(config.model, first.resolved)
    sizes = {name: leaf.size for name, leaf in again.memory.leaves().items() if name in config.sizes}
    assert sizes == config.sizes


def test_a_size_that_is_not_declared_smaller_is_a_contradiction() -> None:
    _, config = configurations()[0]
    line = header_of(config.model, config.params, sizes=config.sizes).to_json()
    del line["config"]["made_smaller"]
    with pytest.raises(
        TraceError, match=r"config.caches.kv.size is 12, the model and the parameters give 768"
    ):
        context_of(Header.from_json(line))


def test_made_smaller_names_caches_that_are_there() -> None:
    _, config = configurations()[0]
    line = header_of(config.model, config.params).to_json()
    line["config"]["made_smaller"] = ["swa"]
    with pytest.raises(TraceError, match=r"an entry of config\.made_smaller is 'swa', must be one of 'kv'"):
        Header.from_json(line)
