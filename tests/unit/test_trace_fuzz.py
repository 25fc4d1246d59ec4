"""Whatever the bytes: a trace is read, or refused with a TraceError; no other error, no large allocation."""

import gzip
import itertools
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import DSV4, HYBRID, KV, SMALL, as_bytes, lines_of, refusal

from kvsim.trace import compare_step, read_trace

N_LINES = 6
SAMPLES = [lines_of(path)[:N_LINES] for path in (KV, HYBRID, DSV4)]
PLAIN = [as_bytes(lines) for lines in SAMPLES]
COMPRESSED = [gzip.compress(data) for data in PLAIN]
fuzz = settings(max_examples=150, deadline=2000)

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [-1, 2**31, 2**63, 10**40, 0.5, "", "0", "\x1b[0m", "\ud800", [], {}, [[]], [None], {"0": 0}]
    ),
    st.integers(-3, 300),
    st.recursive(st.integers() | st.text(max_size=3), lambda x: st.lists(x, max_size=3), max_leaves=5),
)


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
@given(st.data(), st.sampled_from(SAMPLES))
def test_replaced_fields(data, sample):
    lines = json.loads(json.dumps(sample))
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(lines))
        replace_somewhere(data, line)
    encoded = b"\n".join(json.dumps(line).encode() for line in lines)
    tracemalloc.start()
    try:
        if refusal(encoded) is None:
            for step in read_trace(encoded):
                assert compare_step(step, step) == []
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(encoded) + (4 << 20)


def replace_somewhere(data, value):
    """Walk down at random, then replace, remove or rename what is there."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 3)):
            value = inner
            continue
        how = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if how == "replace":
            value[key] = data.draw(odd_values)
        elif how == "remove":
            del value[key]
        elif isinstance(value, dict):
            value[data.draw(st.text(max_size=5))] = data.draw(odd_values)
        else:
            value.insert(key, data.draw(odd_values))
        return


@pytest.mark.parametrize("line", [b"[" * (1 << 20), b'{"a":' * (1 << 18), b'"' + b"\\u0000" * (1 << 18)])
def test_lines_made_to_hurt(line):
    header = as_bytes(lines_of(SMALL)[:1])
    assert refusal(header + line) is not None
    assert refusal(line) is not None


def test_the_samples_are_good():
    assert all(refusal(data) is None for data in itertools.chain(PLAIN, COMPRESSED))
