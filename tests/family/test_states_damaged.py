"""Restores that fail: what llama.cpp leaves, said by a hazard where it is not clean; nothing with ``strict``.

docs/spec/state.md 2 (Rd5, clean-up), 3 (composites), 4 (Rc4, Rc5), dsv4.md 7, hybrid.md X3.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from state_contexts import KINDS, context, decode, everything, hazards, positions, spec_of, twin

from kvsim.context import Context
from kvsim.errors import CacheUsageError, StateError
from kvsim.events import Recorder
from kvsim.memory import Memory
from kvsim.state import PARTIAL_ONLY, DeviceStates, StateWriter, load_all, load_sequence
from kvsim.state_format import SavedState, parse_state

TARGET = 1
"""The sequence that is restored into; it holds three positions before."""


def context_with_history(kind: str, unified: bool = True) -> Context:
    ctx = context(kind, unified)
    decode(ctx, 0, 6)
    decode(ctx, TARGET, 3)
    return ctx


def saved(kind: str, flags: int = 0, unified: bool = True) -> bytes:
    ctx = context(kind, unified, seed=1)
    decode(ctx, 0, 5)
    return ctx.state_seq_get(0, flags)


def try_to_load(memory: Memory, data: bytes, flags: int = 0, strict: bool = False) -> int:
    """Bytes read, 0 if refused."""
    try:
        return load_sequence(memory, data, TARGET, flags, strict=strict)
    except StateError:
        return 0


# -- what is left, part by part ------------------------------------------------------------------

BEFORE, EMPTY, RESTORED = "before", "empty", "restored"

LEFT: dict[tuple[str, int], dict[str, dict[str, str]]] = {
    ("kv", 0): {"kv": {"kv": EMPTY}},
    ("iswa", 0): {"base": {"base": EMPTY, "swa": BEFORE}, "swa": {"base": RESTORED, "swa": EMPTY}},
    ("iswa", 1): {"swa": {"base": BEFORE, "swa": EMPTY}},
    ("recurrent", 0): {"recurrent": {"recurrent": EMPTY}},
    ("hybrid", 0): {
        "attn": {"attn": EMPTY, "recurrent": BEFORE},
        "recurrent": {"attn": EMPTY, "recurrent": EMPTY},
    },
    ("hybrid", 1): {"recurrent": {"attn": BEFORE, "recurrent": EMPTY}},
    ("hybrid_iswa", 0): {
        "base": {"base": EMPTY, "swa": BEFORE, "recurrent": BEFORE},
        "swa": {"base": RESTORED, "swa": EMPTY, "recurrent": BEFORE},
        "recurrent": {"base": RESTORED, "swa": RESTORED, "recurrent": EMPTY},
    },
    ("hybrid_iswa", 1): {
        "swa": {"base": BEFORE, "swa": EMPTY, "recurrent": BEFORE},
        "recurrent": {"base": BEFORE, "swa": RESTORED, "recurrent": EMPTY},
    },
    ("hybrid_idx", 0): {
        part: {"attn": EMPTY, "recurrent": EMPTY, "idx": EMPTY} for part in ("attn", "recurrent", "idx")
    },
    ("hybrid_idx", 1): {"recurrent": {"attn": EMPTY, "recurrent": EMPTY, "idx": EMPTY}},
    ("dsa", 0): {"mla": {"mla": EMPTY, "lid": BEFORE}, "lid": {"mla": EMPTY, "lid": EMPTY}},
    ("dsa_iswa", 0): {
        "mla": {"mla": EMPTY, "lid": BEFORE, "swa": BEFORE},
        "lid": {"mla": EMPTY, "lid": EMPTY, "swa": BEFORE},
        "swa": {"mla": RESTORED, "lid": RESTORED, "swa": EMPTY},
    },
    ("dsa_iswa", 1): {"swa": {"mla": BEFORE, "lid": BEFORE, "swa": EMPTY}},
    ("msa", 0): {"base": {"base": EMPTY, "idx": BEFORE}, "idx": {"base": RESTORED, "idx": EMPTY}},
    ("dsv4", 0): {
        "raw.base": {"raw.base": EMPTY, "raw.swa": BEFORE},
        "raw.swa": {"raw.base": RESTORED, "raw.swa": EMPTY},
        "csa": {"raw.base": RESTORED, "raw.swa": RESTORED},
        "lid.ring": {"raw.base": RESTORED, "raw.swa": RESTORED},
    },
    ("dsv4", 1): {
        "raw.swa": {"raw.base": BEFORE, "raw.swa": EMPTY},
        "csa.ring": {"raw.base": BEFORE, "raw.swa": RESTORED},
    },
}
"""(memory, flags) -> section that is cut -> what each leaf then holds of the target."""

RESTORED_POSITIONS = {"swa": [1, 2, 3, 4], "raw.swa": [1, 2, 3, 4], "recurrent": [4]}
"""Where not all of 0 to 4: a window of 4 and a single state."""

CUTS = [(kind, flags, part) for (kind, flags), parts in LEFT.items() for part in parts]


def spans(state: SavedState) -> dict[str, tuple[int, int]]:
    """First byte of each section, and of the one after it."""
    at, found = 8, {}
    for name, section in state.sections.items():
        io = StateWriter()
        section.write(io)
        found[name] = at, at + len(io.getvalue())
        at += len(io.getvalue())
    return found


@pytest.mark.parametrize("end", ["cells", "rows"])
@pytest.mark.parametrize(("kind", "flags", "part"), CUTS)
def test_what_a_truncated_section_leaves(kind: str, flags: int, part: str, end: str) -> None:
    ctx = context_with_history(kind)
    blob = saved(kind, flags)
    first, after = spans(parse_state(blob, spec_of(ctx), bool(flags)))[part]
    if part.startswith("raw."):
        after -= 4 * 2  # behind the rows come the counts of two empty streams
    before = positions(ctx.memory, TARGET)
    others = positions(ctx.memory, 0)
    recorder = Recorder()
    ctx.observe(recorder)
    cut = blob[: first + 12 if end == "cells" else after - 1]
    assert ctx.state_seq_set(cut, TARGET, flags) == 0
    assert "truncated at byte" in str(ctx.last_failure)
    now = positions(ctx.memory, TARGET)
    for name, left in LEFT[kind, flags][part].items():
        restored = RESTORED_POSITIONS.get(name, [0, 1, 2, 3, 4])
        assert now[name] == {BEFORE: before[name], EMPTY: [], RESTORED: restored}[left], name
    assert positions(ctx.memory, 0) == others
    assert hazards(recorder) & SAYS_SO, "nobody says that the memory is not as before"
    ctx.memory.check_integrity()


SAYS_SO = {"half-restored", "failed-restore-loses-sequence", "partial-failure-drops-all"}
"""Hazards that tell of a failed restore that shows."""


def test_the_table_names_every_memory_and_section() -> None:
    assert {kind for kind, _ in LEFT} == set(KINDS)
    for (kind, flags), parts in LEFT.items():
        state = parse_state(saved(kind, flags), spec_of(context(kind)), bool(flags))
        assert set(parts) <= set(state.sections)
        if kind != "dsv4":
            assert set(parts) == set(state.sections)


def test_a_deepseek4_state_cut_behind_the_raw_part_has_lost_the_compressed_rows() -> None:
    """dsv4.md 7: they are zeroed before the new ones are read, the rollback is forgotten; a partial restore
    keeps both."""
    for flags, lost in ((0, True), (PARTIAL_ONLY, False)):
        ctx = context("dsv4", n_rs_seq=2)
        decode(ctx, TARGET, 6)
        ctx.memory.seq_rm(TARGET, 5, -1)
        assert ctx.memory.rs_idx[TARGET] == 1
        source = context("dsv4", n_rs_seq=2, seed=1)
        decode(source, 0, 5)
        assert ctx.state_seq_set(source.state_seq_get(0, flags)[:-1], TARGET, flags) == 0
        csa = ctx.memory.leaves()["csa"].store
        assert ctx.memory.rs_idx[TARGET] == (0 if lost else 1)
        for rows in csa.k.values():
            assert bool(rows[TARGET].any()) != lost
            assert rows[0].any()


# -- cut at every byte, and bits flipped ---------------------------------------------------------


def lengths(kind: str, data: bytes) -> Iterator[int]:
    """Every length; of a DeepSeek-V4 state, whose rings are long, all in the first 400 bytes and one in
    41 of the others."""
    return (n for n in range(len(data)) if kind != "dsv4" or n < 400 or n % 41 == 0)


LAYOUTS = [(kind, unified) for kind in KINDS for unified in (True, False) if not (kind == "dsv4" and unified)]
"""DeepSeek-V4 keeps streams either way."""


@pytest.mark.parametrize("flags", [0, PARTIAL_ONLY])
@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_cut_at_every_length(kind: str, unified: bool, flags: int) -> None:
    blob = saved(kind, flags, unified)
    ctx = context_with_history(kind, unified)
    before, intact = everything(ctx.memory), positions(ctx.memory, TARGET)
    for n in lengths(kind, blob):
        with pytest.raises(StateError, match="byte"):
            load_sequence(ctx.memory, blob[:n], TARGET, flags, strict=True)
        assert everything(ctx.memory) == before
        left = twin(ctx.memory)
        recorder = Recorder()
        left.observe(recorder)
        assert try_to_load(left, blob[:n], flags) == 0
        left.check_integrity()
        assert positions(left, 0) == positions(ctx.memory, 0)
        if positions(left, TARGET) != intact:
            assert hazards(recorder) & SAYS_SO, n


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_state_cut_at_every_length(kind: str) -> None:
    source = context(kind, seed=1, n_seq_max=1)
    decode(source, 0, 3)
    blob, arch = source.state_get(), source.model.arch
    ctx = context(kind, n_seq_max=1)
    decode(ctx, 0, 4)
    before = everything(ctx.memory)
    for n in range(0, len(blob), 1 if len(blob) < 1000 else 23):
        with pytest.raises(StateError):
            load_all(ctx.memory, blob[:n], arch, strict=True)
        assert everything(ctx.memory) == before
        left = twin(ctx.memory)
        with pytest.raises(StateError):
            load_all(left, blob[:n], arch)
        left.check_integrity()


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_the_description_flipped(kind: str) -> None:
    """A flipped position or row is another state; a flipped count, type or size is refused."""
    blob = saved(kind)
    ctx = context_with_history(kind)
    before = everything(ctx.memory)
    outcomes: Counter[bool] = Counter()
    for at in range(min(len(blob), 260)):
        for bit in (at * 5 % 8, 7 - at % 8):
            flipped = bytearray(blob)
            flipped[at] ^= 1 << bit
            memory = twin(ctx.memory)
            done = try_to_load_or_end(memory, bytes(flipped), strict=True)
            outcomes[done > 0] += 1
            if not done:
                assert everything(memory) == before, (at, bit)
            memory.check_integrity()
    assert outcomes[True] > 10
    assert outcomes[False] > 10


def try_to_load_or_end(memory: Memory, data: bytes, flags: int = 0, strict: bool = False) -> int:
    """As :func:`try_to_load`; 0 too if llama.cpp would end, and then nothing may have changed."""
    before = everything(memory)
    try:
        return try_to_load(memory, data, flags, strict)
    except CacheUsageError:
        assert everything(memory) == before
        return 0


# -- ten thousand damaged states -----------------------------------------------------------------

N_DAMAGED = 10_000


@dataclass
class Source:
    """A context and what can be made of it: states of every sort, to be damaged."""

    ctx: Context
    blobs: list[tuple[bytes, int]]
    """Of sequences: (bytes, flags)."""
    whole: bytes
    device: DeviceStates


def sources() -> dict[str, Source]:
    found = {}
    for kind in KINDS:
        ctx = context_with_history(kind, unified=True)
        other = context(kind, seed=1)
        decode(other, 0, 5)
        decode(other, 1, 3)
        other.memory.seq_cp(1, 2, -1, -1)
        blobs = [(other.state_seq_get(seq, flags), flags) for seq in (0, 1) for flags in range(4)]
        found[kind] = Source(ctx, blobs, other.state_get(), other.device_states)
    return found


def cut(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(min(len(changed), rng.choice((64, 1 << 20))))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def count_out_of_range(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = 4 * rng.randrange(min(len(data) // 4, rng.choice((16, 1 << 20))))
    wild = rng.choice((0, 1, 2, 3, 255, 256, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1))
    return data[:at] + struct.pack("<I", wild) + data[at + 4 :]


def of_another_memory(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return rng.choice(others)


def random_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return data[: rng.choice((0, 4, 8, 12))] + rng.randbytes(rng.randrange(200))


def splice(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def lengthen(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 4, 8))) + data[at:]


DAMAGES: list[Callable[[random.Random, bytes, list[bytes]], bytes]] = [
    cut, flip, flip, count_out_of_range, count_out_of_range, of_another_memory, random_bytes, splice,
    lengthen,
]  # fmt: skip


def test_ten_thousand_damaged_states() -> None:
    """Refused with a message, or another valid state; never another exception, never a change that strict
    should have kept away. 10,000 states of all memories, half of them restored with ``strict``."""
    rng = random.Random(20_26)
    made = sources()
    everyone = [blob for source in made.values() for blob, _ in source.blobs]
    before = {kind: everything(source.ctx.memory) for kind, source in made.items()}
    outcomes: Counter[str] = Counter()
    said: set[str] = set()
    slowest = 0.0
    for i in range(N_DAMAGED):
        kind = KINDS[i % len(KINDS)]
        source, strict = made[kind], bool(i // len(KINDS) % 2)
        whole = rng.random() < 0.25
        data, flags = (source.whole, 0) if whole else rng.choice(source.blobs)
        damaged = rng.choice(DAMAGES)(rng, data, everyone)
        memory = source.ctx.memory if strict else twin(source.ctx.memory)
        started = time.process_time()
        try:
            if whole:
                done = load_all(memory, damaged, source.ctx.model.arch, strict)
            else:
                done = load_sequence(memory, damaged, TARGET, flags, source.device, strict)
            outcomes["restored"] += 1
            assert 0 < done <= len(damaged)
            if strict:  # go on with the memory as it was
                source.ctx = context_with_history(kind)
                assert everything(source.ctx.memory) == before[kind]
        except StateError as error:
            outcomes["refused"] += 1
            said.add(str(error))
            if strict:
                assert everything(memory) == before[kind], (i, kind)
        except CacheUsageError as error:
            outcomes["ends"] += 1
            said.add(str(error))
            assert everything(memory) == before[kind], (i, kind)
        slowest = max(slowest, time.process_time() - started)
        memory.check_integrity()
    assert sum(outcomes.values()) == N_DAMAGED
    assert outcomes["refused"] > 5000
    assert outcomes["restored"] > 500
    assert outcomes["ends"] > 100
    assert "" not in said
    assert slowest < 1


def test_counts_out_of_range_allocate_nothing_in_proportion() -> None:
    """A count of 2**32 - 1 anywhere in the description: memory stays within a few times the state."""
    for kind in KINDS:
        ctx = context_with_history(kind)
        for data, whole in ((saved(kind), False), (ctx.state_get(), True)):
            memory, worst = twin(ctx.memory), 0
            for at in range(0, min(len(data) - 4, 200), 4):
                for wild in (1 << 24, (1 << 32) - 1):
                    damaged = data[:at] + struct.pack("<I", wild) + data[at + 4 :]
                    worst = max(worst, peak(memory, damaged, ctx.model.arch if whole else ""))
            assert worst < 200_000 + 8 * len(data), (kind, whole, worst)


def peak(memory: Memory, data: bytes, arch: str) -> int:
    """Most bytes allocated at a time while a state is restored (of everything, if ``arch`` is given)."""
    tracemalloc.start()
    try:
        load_all(memory, data, arch) if arch else load_sequence(memory, data, TARGET)
    except (StateError, CacheUsageError):
        pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most
