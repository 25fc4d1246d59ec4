"""Reading traces: what comes out of a good one, and one clear line for each kind of damage."""

import gzip
import itertools
import json
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
from trace_samples import DSV4, HYBRID, ISWA, KV, SMALL, Lines, as_bytes, first, lines_of, refusal

from kvsim.errors import TraceError
from kvsim.trace import read_trace


def test_header_is_read_at_once_and_steps_one_by_one():
    trace = read_trace(KV)
    assert (trace.header.memory, trace.header.arch, trace.header.n_seq_max) == ("kv", "llama", 8)
    assert trace.header.caches["kv"]["size"] == 256
    steps = list(itertools.islice(trace, 2))
    assert [step.op for step in steps] == ["init", "decode"]
    assert steps[0].ubatches is None
    assert steps[0].after["pos"]["7"] == [-1, -1]


def test_after_is_the_whole_picture_where_the_file_says_null():
    lines = lines_of(KV)
    k = next(k for k in range(2, len(lines)) if lines[k]["after"] is None)
    before, step = list(itertools.islice(read_trace(KV), k))[-2:]
    assert step.after == before.after
    assert step.after["caches"]["kv"][0].keys() == {"head", "used", "has_shift", "cells"}


def test_saved_states_carry_size_and_digest():
    step = next(step for step in read_trace(KV) if step.op == "state_seq_get")
    assert step.extra["size"] == step.ret
    assert len(step.extra["sha256"]) == 64


def test_a_trace_can_be_read_twice_and_plain_or_compressed():
    plain = gzip.decompress(SMALL.read_bytes())
    trace = read_trace(plain)
    assert list(trace) == list(trace) == list(read_trace(SMALL)) == list(read_trace(SMALL.read_bytes()))


def test_memory_does_not_grow_with_the_trace(tmp_path):
    lines = lines_of(SMALL)
    head, decode = as_bytes(lines[:2]), first(lines, "decode")

    def peak(n: int) -> int:
        path = tmp_path / f"{n}.jsonl"
        with path.open("wb") as file:
            file.write(head)
            file.writelines(as_bytes([{**decode, "i": i}]) for i in range(1, n + 1))
        tracemalloc.start()
        for _ in read_trace(path):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert peak(1000) < 1.5 * peak(20)


def test_progress_is_told_in_bytes_of_the_file():
    trace = read_trace(SMALL)
    steps = iter(trace)
    next(steps)
    assert 0 < trace.bytes_read <= trace.bytes_total == SMALL.stat().st_size
    for _ in steps:
        pass
    assert trace.bytes_read == trace.bytes_total


# -- the file ---------------------------------------------------------------------------------

PLAIN = gzip.decompress(SMALL.read_bytes())
HEADER, INIT, REST = PLAIN.split(b"\n", 2)
N_LINES = PLAIN.count(b"\n")

FILES = {
    "empty": (b"", 1, "the file is empty"),
    "header only": (HEADER + b"\n", 2, "no operations: the file ends after its header"),
    "half a line": (PLAIN[:-10], N_LINES, "the last line is cut off"),
    "half a header": (HEADER[:100], 1, "the last line is cut off"),
    "empty line": (HEADER + b"\n\n" + INIT + b"\n" + REST, 2, "the line is empty"),
    "not JSON": (HEADER + b"\n{'i': 0}\n", 2, "not JSON: Expecting property name"),
    "two values": (HEADER + b"\n{}{}\n", 2, "not JSON: Extra data at column 3"),
    "not UTF-8": (HEADER + b'\n{"op": "\xff"}\n', 2, "byte 9 of the line is not UTF-8"),
    "NaN": (HEADER + b'\n{"i": NaN}\n', 2, "not JSON: NaN is not a number"),
    "minus infinity": (HEADER + b'\n{"i": -Infinity}\n', 2, "not JSON: -Infinity is not a number"),
    "infinite float": (
        HEADER + b'\n{"i": 1e999}\n',
        2,
        "1e999 is not a whole number; operations hold no others",
    ),
    "infinite float in the header": (b'{"kvtrace": 1e999}\n', 1, "the number 1e999 is too large"),
    "endless integer": (HEADER + b'\n{"i": ' + b"9" * 5000 + b"}\n", 2, "not JSON: Exceeds the limit"),
    "nested brackets": (HEADER + b"\n" + b"[" * 100_000 + b"\n", 2, "brackets are nested too deeply"),
    "nested objects": (b'{"kvtrace":' * 100_000, 1, "brackets are nested too deeply"),
    "not an object": (HEADER + b"\n[1]\n", 2, "the operation is [1], must be an object"),
    "no header": (INIT + b"\n" + REST, 1, 'the first line must be a header, an object with "kvtrace"'),
    "something else": (b"\x89PNG\r\n\x1a\n", 1, "byte 1 of the line is not UTF-8"),
    "text": (b"hello\n", 1, "not JSON: Expecting value at column 1"),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_with_line_and_reason(name):
    data, line, reason = FILES[name]
    error = refusal(data)
    assert error is not None
    assert (error.path, error.line) == ("t.jsonl", line)
    assert reason in error.reason
    assert str(error) == f"t.jsonl:{line}: {error.reason}"
    assert len(str(error)) < 400
    assert "\n" not in str(error)


def test_line_longer_than_the_limit_is_refused_without_reading_it_all(monkeypatch):
    monkeypatch.setattr("kvsim.trace.lines.MAX_LINE", 1 << 20)
    bomb = gzip.compress(b" " * (200 << 20), compresslevel=1)
    tracemalloc.start()
    error = refusal(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error is not None
    assert error.reason == "the line is longer than 1 MiB"
    assert peak < 16 << 20


def test_truncated_gzip():
    data = SMALL.read_bytes()
    error = refusal(data[: len(data) // 2])
    assert error is not None
    assert error.reason == "the gzip stream ends early: the file is cut off"
    assert error.line > 1


def test_gzip_cut_before_its_checksum():
    error = refusal(SMALL.read_bytes()[:-4])
    assert error is not None
    assert error.reason == "the gzip stream ends early: the file is cut off"


def test_damaged_gzip_fails_its_checksum_or_its_decoding():
    data = bytearray(SMALL.read_bytes())
    data[-6] ^= 0xFF
    error = refusal(bytes(data))
    assert error is not None
    assert error.reason.startswith("the gzip stream is damaged: CRC check failed")


def test_name_says_gzip_but_content_does_not():
    error = refusal(PLAIN, "x.jsonl.gz")
    assert error is not None
    assert str(error) == "x.jsonl.gz: not a gzip file, though its name says so"


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match=r"nothing\.jsonl: cannot be opened: No such file"):
        read_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(TraceError, match="cannot be opened: Is a directory"):
        read_trace(tmp_path)


# -- the lines --------------------------------------------------------------------------------

Change = Callable[[Lines], object]


def set_in(path: str, value: object) -> Change:
    """Set ``a.b.c`` of the header."""

    def change(lines: Lines) -> None:
        *parents, key = path.split(".")
        target = lines[0]
        for name in parents:
            target = target[int(name)] if isinstance(target, list) else target[name]
        target[int(key) if isinstance(target, list) else key] = value

    return change


def huge_rows(lines: Lines) -> None:
    """A size and widths that are possible each, but not together."""
    config = lines[0]["config"]
    config["cparams"].update(n_ctx_seq=1 << 16, n_ctx=1 << 19)
    config["caches"]["kv"]["size"] = 1 << 16
    for layer in config["caches"]["kv"]["layers"]:
        layer.update(n_embd_k=1 << 24, n_embd_v=1 << 24)


def huge_caches(lines: Lines) -> None:
    """Two caches that are possible each, but not together."""
    config = lines[0]["config"]
    config["cparams"].update(n_ctx_seq=1 << 24, n_ctx=1 << 24)
    for cache in config["caches"].values():
        cache["size"] = 1 << 24


def of(op: str, edit: Callable[[dict], object]) -> Change:
    """Edit the first line of an operation."""
    return lambda lines: edit(first(lines, op))


def cells(edit: Callable[[list], object]) -> Change:
    """Edit the cells of a stream that has some, in the picture of the first decode."""
    return of(
        "decode", lambda x: edit(next(s["cells"] for s in x["after"]["caches"]["kv"] if len(s["cells"]) > 1))
    )


def ubatch(edit: Callable[[dict], object]) -> Change:
    return of("decode", lambda x: edit(x["ubatches"][0]))


HEADERS = {
    "version": (set_in("kvtrace", 2), "header.kvtrace is 2, must be one of 1"),
    "memory": (set_in("memory", "paged"), "header.memory is 'paged', must be one of 'kv', 'iswa'"),
    "unprintable": (set_in("model", "\x1b[31m"), "header.model is '\\x1b[31m', must be printable text"),
    "long text": (set_in("arch", "a" * 1000), "must be printable text of at most 200 characters"),
    "seed": (set_in("seed", True), "header.seed is True, must be an integer"),
    "extra": (set_in("more", 1), "header has 'kvtrace'"),
    "no caches": (lambda lines: lines[0]["config"].pop("caches"), "config has no 'caches'"),
    "n_seq_max": (
        set_in("config.cparams.n_seq_max", 257),
        "n_seq_max is 257, must be an integer from 1 to 256",
    ),
    "negative": (
        set_in("config.cparams.n_ctx_seq", -1),
        "config.cparams.n_ctx_seq is -1, must be an integer",
    ),
    "n_ctx": (
        set_in("config.cparams.n_ctx", 512),
        "n_ctx is 512, must be n_ctx_seq 256 for each of 8 streams",
    ),
    "other memory": (
        set_in("memory", "iswa"),
        "config.caches of a 'iswa' memory has 'kv', must have base, swa",
    ),
    "recurrent": (
        set_in("config.recurrent", {"size": 8, "n_rs_seq": 0, "layers": []}),
        "config has a recurrent part, a 'kv' memory must not be so",
    ),
    "dsv4": (set_in("config.dsv4", {}), "config.dsv4 describes the compressors of a 'dsv4' memory"),
    "streams": (set_in("config.caches.kv.n_stream", 1), "config.caches.kv.n_stream is 1, must be 8"),
    "cache sequences": (set_in("config.caches.kv.n_seq_max", 4), "n_seq_max is 4, config.cparams says 8"),
    "cache size": (
        set_in("config.caches.kv.size", 512),
        "config.caches.kv.size is 512, more than n_ctx_seq 256",
    ),
    "absurd size": (set_in("config.caches.kv.size", 10**30), "config.caches.kv.size is 1000000"),
    "type": (
        set_in("config.caches.kv.layers.0.type_k", "q9"),
        "layers[0].type_k is 'q9', must be one of 'f32'",
    ),
    "odd row": (
        lambda lines: lines[0]["config"]["caches"]["kv"]["layers"][0].update(type_k="q8_0", n_embd_k=40),
        "config.caches.kv.layers[0] has rows of 40 values, q8_0 stores blocks of 32",
    ),
    "absurd rows": (huge_rows, "bytes together, at most 1099511627776 are believed"),
    "rows without a type": (
        set_in("config.caches.kv.layers.0.type_v", None),
        "config.caches.kv.layers[0] has V rows of 128 values but no type_v",
    ),
    "layer": (set_in("config.caches.kv.layers.0.il", 7), "layers[0].il is 7, the model has 2 layers"),
    "layer twice": (set_in("config.caches.kv.layers.1.il", 0), "layers names a block twice: [0, 0]"),
    "map": (
        set_in("config.caches.kv.map_layer_ids.1", 5),
        "map_layer_ids[1] is 5, must be an integer from 0 to 1",
    ),
    "map block": (set_in("config.caches.kv.map_layer_ids.x", 0), "map_layer_ids has 'x'"),
    "n_layer_all": (set_in("config.hparams.n_layer_all", 3), "config.hparams.n_layer_all"),
    "rope": (set_in("config.rope_layers", []), "config.rope_layers has 0 entries for 2 layers"),
    "rope type": (set_in("config.hparams.rope_type", 77), "config.hparams.rope_type = 77 is unknown"),
    "failure": (set_in("config.failure", {"subject": "mine"}), "config.failure has no 'verdict'"),
    "failure over two lines": (
        set_in(
            "config.failure", {"subject": "mine", "verdict": "differs", "operation": "init", "what": "a\nb"}
        ),
        "config.failure.what is 'a\\nb', must be printable text of at most 10000 characters",
    ),
    "made smaller": (set_in("config.made_smaller", 5), "config.made_smaller is 5, must be a list"),
    "a stranger made smaller": (
        set_in("config.made_smaller", ["swa"]),
        "made_smaller is 'swa', must be one of 'kv'",
    ),
    "factors": (
        set_in("config.rope_layers.0", {"freq_base": 1, "freq_scale": 1, "factors": 3}),
        "factors is 3",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_that_contradicts_itself(name):
    change, reason = HEADERS[name]
    lines = lines_of(KV)
    change(lines)
    error = refusal(as_bytes(lines))
    assert error is not None
    assert error.line == 1
    assert reason in error.reason


OPERATIONS = {
    "unknown operation": (
        of("seq_rm", lambda x: x.update(op="seq_mv")),
        "is 'seq_mv', must be an operation: init",
    ),
    "operation not text": (of("seq_rm", lambda x: x.update(op=[])), "the operation.op is [], must be"),
    "missing argument": (of("seq_rm", lambda x: x["args"].pop("p1")), "seq_rm args has no 'p1'"),
    "unknown argument": (
        of("seq_rm", lambda x: x["args"].update(p2=0)),
        "seq_rm args has an unknown key 'p2'",
    ),
    "argument as text": (
        of("seq_rm", lambda x: x["args"].update(p0="0")),
        "seq_rm args.p0 is '0', must be an int",
    ),
    "argument as truth": (of("seq_rm", lambda x: x["args"].update(p0=True)), "seq_rm args.p0 is True"),
    "argument as float": (
        of("seq_rm", lambda x: x["args"].update(p0=1.0)),
        "1.0 is not a whole number; operations hold no others",
    ),
    "too large": (of("seq_rm", lambda x: x["args"].update(p0=2**31)), "seq_rm args.p0 is 2147483648"),
    "return value": (of("seq_rm", lambda x: x.update(ret=2)), "seq_rm.ret is 2, must be one of 0, 1"),
    "null returned": (of("seq_cp", lambda x: x.update(ret=0)), "seq_cp.ret is 0, must be one of None"),
    "no return value": (of("seq_cp", lambda x: x.pop("ret")), "seq_cp has no 'ret'"),
    "unknown key": (of("seq_cp", lambda x: x.update(extra=1)), "seq_cp has an unknown key 'extra'"),
    "ubatches elsewhere": (
        of("seq_cp", lambda x: x.update(ubatches=[])),
        "seq_cp has an unknown key 'ubatches'",
    ),
    "no ubatches": (of("decode", lambda x: x.pop("ubatches")), "ubatches is None, must be a list"),
    "tokens": (of("decode", lambda x: x["args"]["tokens"].append(1)), "decode args.tokens has"),
    "positions": (of("decode", lambda x: x["args"]["pos"].pop()), "decode args.pos has"),
    "outputs": (of("decode", lambda x: x["args"]["out"].__setitem__(0, 2)), "decode args.out is [2"),
    "sequence": (of("decode", lambda x: x["args"]["seq"].__setitem__(0, [8])), "a sequence outside 0..7"),
    "sequence list": (of("decode", lambda x: x["args"]["seq"].__setitem__(0, 3)), "must be a list of lists"),
    "skipped": (lambda lines: lines.pop(5), "operation 5 follows operation 3: lines are missing or doubled"),
    "no init": (
        lambda lines: lines[1].update(op="clear", args={"data": True}),
        "operation 0, and only it, must be",
    ),
    "no first picture": (
        lambda lines: lines[1].update(after=None),
        "operation 0 has no picture to start from",
    ),
    "slot": (of("state_seq_set", lambda x: x["args"].update(slot=999)), "args.slot 999 was never saved"),
    "slot again": (
        lambda lines: [x for x in lines[1:] if x["op"] == "state_seq_get"][1]["args"].update(slot=0),
        "state_seq_get args.slot 0 was saved before, each slot is used once",
    ),
    "crowd": (
        of("decode", lambda x: x["args"]["seq"].__setitem__(0, [0] * 257)),
        "a token of more than 256 seq",
    ),
    "size": (of("state_seq_get", lambda x: x.update(size=1)), "state_seq_get.size is 1, ret is"),
    "digest": (
        of("state_seq_get", lambda x: x.update(sha256="0")),
        "sha256 is '0', must be 64 hexadecimal digits",
    ),
    "fault": (
        of("decode", lambda x: x["args"].update(fault={"kind": "abort", "ubatch": 0})),
        "decode args.fault is",
    ),
    "blob": (
        of("state_seq_get", lambda x: x.update(blob="????")),
        "state_seq_get.blob is not base64: Only base64 data is allowed",
    ),
    "blob length": (
        of("state_seq_get", lambda x: x.update(blob="AAAA")),
        "state_seq_get.blob holds 3 bytes, must",
    ),
    "note": (
        of("decode", lambda x: x["args"].update(note="a\nb")),
        "decode args.note is 'a\\nb', must be printable",
    ),
    # the picture
    "no such cache": (
        of("decode", lambda x: x["after"]["caches"].update(swa=[])),
        "after.caches has 'kv', 'swa'",
    ),
    "streams": (of("decode", lambda x: x["after"]["caches"]["kv"].pop()), "has 7 streams, the header says 8"),
    "head": (
        of("decode", lambda x: x["after"]["caches"]["kv"][0].update(head=257)),
        "after.caches.kv[0].head is 257, must be an integer from 0 to 256",
    ),
    "cell index": (cells(lambda c: c[-1].__setitem__(0, 256)), "cells has a cell index outside 0..255"),
    "cell order": (cells(lambda c: c[1].__setitem__(0, 0)), "cells: cell 0 comes twice or out of order"),
    "cell length": (cells(lambda c: c[0].pop()), "], must be lists of 7 values"),
    "cell position": (
        cells(lambda c: c[0].__setitem__(1, None)),
        "cells has a pos that is not a 32-bit integer",
    ),
    "cell owner": (
        cells(lambda c: c[0].__setitem__(2, [8])),
        "cells has a cell with a sequence outside 0..7",
    ),
    "cell owners": (cells(lambda c: c[0].__setitem__(2, [1, 1])), "sequences [1, 1] are not ascending"),
    "cell owner text": (cells(lambda c: c[0].__setitem__(2, "1")), "a cell whose sequences are not a list"),
    "range of a stranger": (
        of("decode", lambda x: x["after"]["pos"].update({"8": [0, 0]})),
        "after.pos has '0', '1', '2', '3', '4', '5', '6', '7', '8', must have 0, 1",
    ),
    "range": (
        of("decode", lambda x: x["after"]["pos"].update({"0": [0]})),
        "after.pos[0] must be a list of 2",
    ),
    "picture key": (of("decode", lambda x: x["after"].update(more=0)), "after has an unknown key 'more'"),
    "recurrent": (
        of("decode", lambda x: x["after"].update(recurrent={})),
        "after.recurrent is there or missing",
    ),
    "pending copy": (
        of("decode", lambda x: x["after"].update(pending_copies={"kv": [[0, 8]]})),
        "after.pending_copies.kv[0][1] is 8, must be an integer from 0 to 7",
    ),
    "copy of a stranger": (
        of("decode", lambda x: x["after"].update(pending_copies={"swa": []})),
        "after.pending_copies.swa: the header has no such cache",
    ),
    # the ubatches
    "ubatch token": (
        ubatch(lambda u: u["idx"].__setitem__(0, 9999)),
        "ubatches[0].idx points outside the batch",
    ),
    "ubatch length": (ubatch(lambda u: u["idx"].append(0)), "ubatches[0].idx has"),
    "ubatch sequence": (
        ubatch(lambda u: u.update(seq_unq=[8])),
        "ubatches[0].seq_unq is [8], must be a list",
    ),
    "ubatch key": (ubatch(lambda u: u.update(more=0)), "ubatches[0] has an unknown key 'more'"),
    "slot cache": (
        ubatch(lambda u: u["slots"].update(swa={"strm": [], "idxs": []})),
        "ubatches[0].slots.swa: the header has no such cache",
    ),
    "slot stream": (
        ubatch(lambda u: u["slots"]["kv"].update(strm=[8])),
        "slots.kv.strm is [8], must be a list",
    ),
    "slot cell": (ubatch(lambda u: u["slots"]["kv"]["idxs"][0].__setitem__(0, -1)), "slots.kv.idxs is [[-1"),
    "slot parts": (
        ubatch(lambda u: u["slots"]["kv"]["idxs"].append([])),
        "has cells for 2 streams, strm has 1",
    ),
    "slot cells": (ubatch(lambda u: u["slots"]["kv"]["idxs"][0].pop()), "cells, the ubatch has"),
    "n_kv": (ubatch(lambda u: u["slots"]["kv"].update(n_kv=512)), "slots.kv.n_kv is 512, must be an integer"),
    "mask rows": (ubatch(lambda u: u["mask"]["kv"].pop()), "ubatches[0].mask.kv has"),
    "mask bounds": (
        ubatch(lambda u: u["mask"]["kv"].__setitem__(0, [3, 1])),
        "must be pairs of ascending bounds",
    ),
    "half a range": (
        ubatch(lambda u: u["mask"]["kv"].__setitem__(0, [1])),
        "must be pairs of ascending bounds",
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_that_cannot_be(name):
    change, reason = OPERATIONS[name]
    lines = lines_of(KV)
    before = [json.dumps(line) for line in lines]
    change(lines)
    wrong = next(k for k, line in enumerate(lines) if json.dumps(line) != before[k])
    error = refusal(as_bytes(lines))
    assert error is not None
    assert reason in error.reason
    assert error.line == wrong + 1
    assert len(error.reason) < 400


LATER_CELLS = {
    "after the equal ones": (lambda c: c[-1].__setitem__(1, "0"), "has a pos that is not a 32-bit integer"),
    "in the middle": (lambda c: c[len(c) // 2].__setitem__(2, [9]), "a sequence outside 0..7"),
    "first": (lambda c: c[0].__setitem__(0, -1), "has a cell index outside 0..255"),
    "last one again": (lambda c: c.append(c[-1]), "comes twice or out of order"),
    "out of order": (lambda c: c.append([0, *c[-1][1:]]), "cell 0 comes twice or out of order"),
}


@pytest.mark.parametrize("name", LATER_CELLS)
def test_cells_of_a_picture_that_resembles_the_one_before_are_checked(name):
    change, reason = LATER_CELLS[name]
    lines = lines_of(KV)
    pictures = [x["after"]["caches"]["kv"] for x in lines[1:] if x["after"]]
    change(
        next(new[s]["cells"] for old, new in pairwise(pictures) for s in range(8) if resemble(old[s], new[s]))
    )
    error = refusal(as_bytes(lines))
    assert error is not None
    assert reason in error.reason


def resemble(old, new):
    """Whether a stream only got more cells."""
    n = len(old["cells"])
    return 2 < n < len(new["cells"]) and old["cells"] == new["cells"][:n]


OTHER_MEMORIES = {
    "too many cells": (
        ISWA,
        huge_caches,
        "the caches have 33554432 cells together, at most 16777216 are read",
    ),
    "recurrent cells": (
        HYBRID,
        of("decode", lambda x: x["after"]["recurrent"]["cells"].pop()),
        "after.recurrent has 3 cells and size 4, the header says 4",
    ),
    "recurrent order": (
        HYBRID,
        of("decode", lambda x: x["after"]["recurrent"]["cells"].reverse()),
        "after.recurrent.cells must list every cell in order",
    ),
    "recurrent widths": (
        HYBRID,
        set_in("config.recurrent.layers.0", [1]),
        "config.recurrent.layers[0] must be three widths",
    ),
    "recurrent missing": (
        HYBRID,
        of("decode", lambda x: x["after"].update(recurrent=None)),
        "after.recurrent is there or missing against what config.recurrent says",
    ),
    "plan": (
        DSV4,
        ubatch(lambda u: u["plan"].pop("hca")),
        "ubatches[0].plan has 'csa', 'lid', must have csa, hca",
    ),
    "plan value": (
        DSV4,
        ubatch(lambda u: u["plan"]["csa"].update(n_kv=[])),
        "ubatches[0].plan.csa.n_kv is []",
    ),
    "plan part": (
        DSV4,
        ubatch(lambda u: u["plan"]["csa"].pop("state_write_pos")),
        "ubatches[0].plan.csa has no 'state_write_pos'",
    ),
    "plan rows": (
        DSV4,
        ubatch(lambda u: u["plan"]["lid"].update(state_write_idxs=[3, 7], state_write_pos=[12])),
        "ubatches[0].plan.lid writes 2 rows for 1 positions",
    ),
    "compressors": (
        DSV4,
        set_in("config.dsv4.csa.ratio", 0),
        "config.dsv4.csa.ratio is 0, must be an integer",
    ),
    "rows cache": (
        ISWA,
        lambda lines: lines.append(rows_line(lines, cache="kv")),
        "rows args.cache is 'kv', the caches are base, swa",
    ),
    "rows cells": (
        ISWA,
        lambda lines: lines.append(rows_line(lines, cells=[512])),
        "rows args.cells has a cell outside 0..511",
    ),
    "rows values": (
        ISWA,
        lambda lines: lines.append(rows_line(lines, k={"n": 2, "f32": "AAAA"})),
        "rows.k.f32 holds 3 bytes, must hold 8",
    ),
}


def rows_line(lines: Lines, k: object = None, **args: object) -> dict:
    given = {"cache": "swa", "stream": 0, "layer": 0, "cells": [0], "tag": "copy_src", **args}
    return {"i": len(lines) - 1, "op": "rows", "args": given, "ret": 0, "k": k, "v": None, "after": None}


@pytest.mark.parametrize("name", OTHER_MEMORIES)
def test_parts_that_other_memories_have(name):
    path, change, reason = OTHER_MEMORIES[name]
    lines = lines_of(path)
    change(lines)
    error = refusal(as_bytes(lines))
    assert error is not None
    assert reason in error.reason


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000])
def test_names_that_no_file_can_have(name):
    with pytest.raises(TraceError, match="cannot be opened: "):
        read_trace(name)
