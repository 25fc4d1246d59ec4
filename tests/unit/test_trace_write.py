"""Writing traces: what was read comes out as the same lines."""

import gzip
import itertools
from dataclasses import replace

import pytest
from trace_samples import DSV4, HYBRID, ISWA, KV

from kvsim.trace import TraceWriter, read_trace


def write(path, header, steps):
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.write(step)
    return path


@pytest.mark.parametrize("path", [KV, ISWA, HYBRID, DSV4], ids=lambda p: p.parent.name)
def test_read_then_written_gives_the_same_lines(path, tmp_path):
    trace = read_trace(path)
    written = write(tmp_path / "t.jsonl", trace.header, trace)
    assert written.read_bytes() == gzip.decompress(path.read_bytes())


def test_name_decides_compression_and_equal_steps_give_equal_bytes(tmp_path):
    trace = read_trace(KV)
    steps = list(itertools.islice(trace, 5))
    one = write(tmp_path / "one.jsonl.gz", trace.header, steps)
    two = write(tmp_path / "two.jsonl.gz", trace.header, steps)
    assert one.read_bytes() == two.read_bytes()
    assert list(read_trace(one)) == steps


def test_equal_picture_is_left_out_even_if_it_is_another_object(tmp_path):
    trace = read_trace(KV)
    init = next(iter(trace))
    again = replace(init, i=1, op="clear", args={"data": False}, after=dict(init.after))
    path = write(tmp_path / "t.jsonl", trace.header, [init, again])
    assert path.read_text().splitlines()[2] == (
        '{"i":1,"op":"clear","args":{"data":false},"ret":null,"after":null}'
    )
    assert list(read_trace(path)) == [init, again]


def test_a_value_that_is_not_json_is_refused(tmp_path):
    trace = read_trace(KV)
    init = next(iter(trace))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path / "t.jsonl", trace.header, [replace(init, extra={"k": float("nan")})])
