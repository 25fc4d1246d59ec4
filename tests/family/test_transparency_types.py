"""Transparency of caches that round: what tokens attend to is exact, what they read is true within a tolerance.

The truth rounds each row to its type once. What is left are the roundings of queries, weights and sums, and
those of keys that were turned again and again. Measured over all models: f16 0.0006 of the largest value,
with flash attention 0.0022, q8_0 0.010, q4_0 0.009, or 0.15 after two shifts, which quantise all keys again
(hazard ``shift-requantizes-all``). A row of another token would be off by 1 and more.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from play import Play
from test_transparency import EVERY_OPERATION, OPERATIONS, few_random_ones, perform

MEMBERS = (
    "kv-llama", "iswa-gemma3-swa20", "hybrid-falcon-h1", "hybrid_iswa-lfm2-l4", "hybrid_idx-glm5-next",
    "hybrid_idx-qwen4exp", "dsa-deepseek32", "dsa-deepseek32-choosing all", "dsa_iswa-dots3note",
    "dsv4-deepseek4", "msa-minimax-m3",
)  # fmt: skip
"""A model of each memory that keeps keys; recurrent states are float32 always."""

TYPES = [("f16", False, 1e-3), ("f16", True, 4e-3), ("q8_0", True, 0.02), ("q4_0", True, 0.25)]
"""Type of keys and values, whether with flash attention, and the tolerance."""

each_type = pytest.mark.parametrize(
    ("kind", "flash", "tolerance"), TYPES, ids=["f16", "f16-flash", "q8_0", "q4_0"]
)


@each_type
@pytest.mark.parametrize("name", MEMBERS)
def test_every_operation_is_transparent(name: str, kind: str, flash: bool, tolerance: float) -> None:
    play = Play(name, False, 8, kind, flash, tolerance)
    perform(play, EVERY_OPERATION)
    assert ("move up" in play.n_done) is play.can_move()


@each_type
@pytest.mark.parametrize("name", MEMBERS)
@settings(few_random_ones, max_examples=2)
@given(ops=OPERATIONS, kv_unified=st.booleans())
def test_any_operations_are_transparent(
    name: str, kind: str, flash: bool, tolerance: float, ops: list[tuple[str, int, int]], kv_unified: bool
) -> None:
    perform(Play(name, kv_unified, 8, kind, flash, tolerance), ops)
