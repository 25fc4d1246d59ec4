"""Whatever the bytes: a trace is read, or refused with a TraceError; no other error, no large allocation."""

import copy
import gzip
import itertools
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import DSV4, HYBRID, KV, SMALL, as_bytes, lines_of, refusal

from kvsim.trace import compare_step, read_trace

N_LINES = 6
SAMPLES = [lines_of(path)[:N_LINES] for path in (KV, HYBRID, DSV4)]
PLAIN = [as_bytes(lines) for lines in SAMPLES]
COMPRESSED = [gzip.compress(data, mtime=0) for data in PLAIN]
fuzz = settings(max_examples=150)

NUMBERS = [-1, 0, 3, 8, 300, 2**31, 2**63, 0.5, 1e40]
LISTS = [[], [[]], [None], [0, 0], [[0, 1]]]
ODD_VALUES = [None, True, False, *NUMBERS, *LISTS, {}, {"0": 0}, "", "0", "kv", "\x1b[0m", "\ud800"]


@fuzz
@given(
    st.sampled_from(PLAIN + COMPRESSED), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1)
)
def test_flipped_bytes(data, flips):
    damaged = bytearray(data)
    for place, mask in flips:
        damaged[int(place * (len(damaged) - 1))] ^= mask
    refusal(bytes(damaged))


@fuzz
@given(st.sampled_from(PLAIN + COMPRESSED), st.floats(0, 1))
def test_cut_anywhere(data, place):
    cut = data[: int(place * (len(data) - 1))]
    error = refusal(cut)
    whole_lines = cut.endswith(b"\n") or data[len(cut) : len(cut) + 1] == b"\n"
    if not (whole_lines and data in PLAIN):
        assert error is not None


@fuzz
@given(st.sampled_from(SAMPLES), st.integers(0, 2**32), st.integers(1, 3))
def test_replaced_fields(sample, seed, times):
    lines = copy.deepcopy(sample)
    rng = random.Random(seed)
    for _ in range(times):
        damage_somewhere(rng, rng.choice(lines))
    encoded = as_bytes(lines)
    tracemalloc.start()
    try:
        if refusal(encoded) is None:
            for step in read_trace(encoded):
                assert compare_step(step, step) == []
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(encoded) + (4 << 20)


def damage_somewhere(rng, value):
    """Walk down at random, then replace, remove or add something there."""
    while value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
            value = inner
            continue
        how, odd = rng.choice(["replace", "replace", "remove", "add"]), copy.deepcopy(rng.choice(ODD_VALUES))
        if how == "replace":
            value[key] = odd
        elif how == "remove":
            del value[key]
        elif isinstance(value, dict):
            value[rng.choice(["", "x", "0", "9", "slot", "seq", "recurrent"])] = odd
        else:
            value.insert(key, odd)
        return


@pytest.mark.parametrize("line", [b"[" * (1 << 20), b'{"a":' * (1 << 18), b'"' + b"\\u0000" * (1 << 18)])
def test_lines_made_to_hurt(line):
    header = as_bytes(lines_of(SMALL)[:1])
    assert refusal(header + line) is not None
    assert refusal(line) is not None


def test_the_samples_are_good():
    assert all(refusal(data) is None for data in itertools.chain(PLAIN, COMPRESSED))
