"""The graph-reuse decision: is the graph of this ubatch the one that ran last? (``src/llama-graph.h``)

llama.cpp keeps two built graphs, one for ubatches with outputs and one for those without, but only one
is *active*: alternating between the two rebuilds every time (decode.md section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvsim.batch import Ubatch
from kvsim.memory import View

ALWAYS_REBUILT = {
    "llama4": "its temperature-scaling input has no check",
    "mistral3": "its temperature-scaling input has no check",
    "mistral4": "its temperature-scaling input has no check",
    "graniteswitch": "its router input has no check",
    "t5": "its position-bucket input has no check",
}
"""Architectures with an input that llama.cpp cannot check, and so never reuses. The Mistral ones have it if
their file sets a temperature scale, which the published ones do."""


@dataclass(frozen=True)
class GraphDecision:
    """Whether the graph was reused, and if not, why: ``n_kv 256 -> 512``."""

    reused: bool
    reason: str

    def __str__(self) -> str:
        return "reused" if self.reused else f"rebuilt: {self.reason}"


class GraphCache:
    """The two graphs llama.cpp keeps, as the values that were baked into them."""

    def __init__(self, arch: str) -> None:
        self._arch = arch
        self._built: dict[bool, GraphKey] = {}
        self._active: bool | None = None
        self._dropped = "the first graph"

    def drop(self, reason: str) -> None:
        """Forget both graphs, as an update of the memory does."""
        self._built.clear()
        self._active = None
        self._dropped = reason

    def decide(
        self, ubatch: Ubatch, n_outputs: int, views: Mapping[str, View], causal_attn: bool = True
    ) -> GraphDecision:
        """Reuse the active graph, or remember what a new one is built from."""
        key = graph_key(ubatch, n_outputs, views, causal_attn)
        slot = n_outputs > 0
        reason = self._why_not(slot, key)
        self._built[slot] = key
        self._active = slot
        return GraphDecision(not reason, reason)

    def _why_not(self, slot: bool, key: GraphKey) -> str:
        if self._active is None:
            return self._dropped
        if slot != self._active:
            return "the last ubatch had " + ("no outputs" if slot else "outputs") + ", this one not so"
        if self._arch in ALWAYS_REBUILT:
            return ALWAYS_REBUILT[self._arch]
        if self._built[slot] == key:
            return ""
        old, new = self._built[slot].by_name(), key.by_name()
        name = next(name for name in {**new, **old} if old.get(name) != new.get(name))
        return f"{name} {_text(old.get(name))} -> {_text(new.get(name))}"


class GraphKey(NamedTuple):
    """Everything that must be equal for a graph to be used again: what it is bound to of the ubatch, and of each
    leaf."""

    ubatch: dict[str, Any]
    leaves: dict[str, dict[str, Any]]
    causal_attn: bool

    def by_name(self) -> dict[str, Any]:
        """All of it in one, a leaf's after its name unless it is alone."""
        alone = len(self.leaves) == 1
        of_leaves = {
            name if alone else f"{leaf} {name}": value
            for leaf, key in self.leaves.items()
            for name, value in key.items()
        }
        return {**self.ubatch, **of_leaves, "causal_attn": self.causal_attn}


def graph_key(ubatch: Ubatch, n_outputs: int, views: Mapping[str, View], causal_attn: bool) -> GraphKey:
    """What the graph of a placed ubatch is bound to."""
    key: dict[str, Any] = {
        "n_tokens": ubatch.n_tokens,
        "n_seq_tokens": ubatch.n_seq_tokens,
        "n_seqs": ubatch.n_seqs,
        "n_seqs_unq": ubatch.n_seqs_unq,
        "equal_seqs": ubatch.equal_seqs,
        "tokens": ubatch.tokens is not None,
        "embeddings": ubatch.has_embd,
        "n_outputs": n_outputs,
    }
    if ubatch.is_embd is not None:
        key["mixed, rows of tokens"] = int(np.count_nonzero(~ubatch.is_embd))
    if ubatch.equal_seqs:
        key["sequences"] = ubatch.seq_id_unq
    return GraphKey(key, {leaf: view.reuse_key() for leaf, view in views.items()}, causal_attn)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
