"""Rules between two runs of one memory, which need no second implementation to be checked.

Where a memory lies, how a batch was cut up, and what happened to other sequences must not show in what a
sequence holds (:mod:`kvsim.testing.content`). Where llama.cpp breaks such a rule it does so by a hazard
(:mod:`kvsim.hazards`) that names the sequences concerned; those are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.context import FAULTS, OK, Fault
from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.content import NO_ROW, BrokenRuleError, Run, compare, compare_content, compare_reads
from kvsim.testing.parts import state_leaves

Chunk = list[tuple[int, int]]


@dataclass(frozen=True)
class Script:
    """Batches of (sequence, label), and after each of them an edit, or None."""

    steps: list[tuple[Chunk, Op | None]]

    @classmethod
    def drawn(cls, pick: generate.Picker, n_seq: int, room: int) -> Script:
        """A script that fits into ``room`` cells per stream (or together)."""
        steps: list[tuple[Chunk, Op | None]] = []
        label = 1
        while room > 0 and len(steps) < 6:
            seqs = sorted({pick.integer(0, n_seq - 1) for _ in range(pick.integer(1, 2))})
            n = min(pick.integer(1, 3), room // len(seqs))
            chunk = [(seq, label + k * n + i) for k, seq in enumerate(seqs) for i in range(n)]
            label += len(chunk)
            room -= len(chunk)
            edit = Op.seq_rm(pick.integer(0, n_seq - 1), pick.integer(0, 4), -1) if pick.chance(30) else None
            if chunk:
                steps.append((chunk, edit))
        return cls(steps)


Batcher = Callable[[Run, Chunk], None]


def together(run: Run, chunk: Chunk) -> None:
    """All tokens in one batch."""
    run.batch(chunk)


def apart(run: Run, chunk: Chunk) -> None:
    """Each sequence in a batch of its own."""
    for seq in sorted({seq for seq, _ in chunk}):
        run.batch([entry for entry in chunk if entry[0] == seq])


def perform(run: Run, script: Script, batcher: Batcher = together) -> Run:
    """Play a script."""
    for chunk, edit in script.steps:
        batcher(run, chunk)
        if edit is not None:
            run.do(edit)
    return run


def room_of(config: Config, unified: bool) -> int:
    """Tokens that surely fit, however they are laid out and however long a window keeps them."""
    smallest = min(config.sizes.values(), default=12)
    return max(smallest - 2, 2) if unified else smallest


def layout_does_not_matter(info: CacheInfo, config: Config, pick: generate.Picker) -> None:
    """Permuted cells, another n_ubatch, sequences decoded apart, saving and restoring: the same content."""
    plain = Run(info, config)
    script = Script.drawn(pick, len(plain.seqs), room_of(config, plain.checked.unified))
    perform(plain, script)
    compare_reads(
        "searching from elsewhere", plain, perform(Run(info, config), script, _from_elsewhere(pick))
    )
    n_ubatch = pick.choice([n for n in (1, 2, 3, 8) if n != config.params.n_ubatch])
    cut = replace(config, params=replace(config.params, n_ubatch=n_ubatch))
    if not config.params.n_rs_seq:  # else the tail of a sequence must fit one ubatch (batch.md S4)
        compare_reads(f"n_ubatch {n_ubatch}", plain, perform(Run(info, cut), script))
    compare_reads("sequences decoded apart", plain, perform(Run(info, config), script, apart))
    compare_reads(
        "saved and restored in between", plain, perform(Run(info, config), script, _saved_between())
    )


def _from_elsewhere(pick: generate.Picker) -> Batcher:
    def batch(run: Run, chunk: Chunk) -> None:
        for leaf in run.checked.memory.leaves().values():
            if isinstance(leaf, KVCache):
                head = pick.integer(0, leaf.size - 1)
                for cache in leaf.together:
                    cache.heads = [head] * len(cache.heads)
            elif isinstance(leaf, RecurrentMemory):
                leaf.cells.head = pick.integer(0, leaf.size - 1)
        run.batch(chunk)

    return batch


def _saved_between() -> Batcher:
    slot = 0

    def batch(run: Run, chunk: Chunk) -> None:
        nonlocal slot
        run.batch(chunk)
        run.save_and_restore(slot)
        slot += len(run.seqs)

    return batch


def refusal_leaves_no_trace(info: CacheInfo, config: Config, pick: generate.Picker) -> None:
    """An operation that is refused, or fails, changes nothing in any part."""
    run = Run(info, config)
    perform(run, Script.drawn(pick, len(run.seqs), room_of(config, run.checked.unified)))
    seq = pick.integer(0, len(run.seqs) - 1)
    run.do(Op.state_seq_get(seq, 0))
    before = run.content()
    end = run.end(seq)
    refused = pick.choice(
        [
            Op.decode([1], [end + 2], [[seq]]),  # a gap, but in an empty sequence and with M-RoPE
            Op.decode([1], [end], [[len(run.seqs)]]),
            Op.decode([1, 1], [end + 1, end], [[seq], [seq]]),
            Op.decode([1] * 60, range(end, end + 60), [[seq]] * 60),  # more than there is room for
            Op.seq_rm(-1, 1, 2),
            Op.seq_rm(seq, max(end - 1, 1), -1),
            Op.seq_add(300, 0, -1, 1),
            *(Op.decode([1, 2], [end, end + 1], [[seq]] * 2, fault=Fault(0, kind)) for kind in FAULTS),
            Op.state_seq_set(seq, 0, truncate=pick.integer(0, 60)),
        ]
    )
    ret = run.do(refused)
    done = {"decode": ret == OK, "seq_rm": ret == 1, "state_seq_set": bool(ret)}.get(refused.op, True)
    if run.checked.raised or not done:
        compare_content(f"{refused} did not happen", before, run.content(), run.excused, run.seqs)


def others_are_not_touched(info: CacheInfo, config: Config, pick: generate.Picker) -> None:
    """An operation on one sequence changes nothing that another one can see."""
    run = Run(info, config)
    perform(run, Script.drawn(pick, len(run.seqs), room_of(config, run.checked.unified)))
    edits = [generate.seq_rm, generate.seq_cp, generate.seq_add, generate.seq_div, _restore]
    run.do(Op.state_seq_get(pick.integer(0, len(run.seqs) - 1), 0))
    for _ in range(4):
        before = run.content()
        op = pick.choice(edits)(pick, run.checked) if pick.chance(60) else None
        if op is None:
            seq = pick.integer(0, len(run.seqs) - 1)
            run.batch([(seq, 900)])
            touched = {seq}
        else:
            run.do(op)
            touched = {op.args.get(key, -1) for key in ("seq", "dst") if key in op.args}
        if -1 not in touched:
            others = [seq for seq in run.seqs if seq not in touched]
            compare_content(f"{op or 'a decode'} and others", before, run.content(), run.excused, others)


def _restore(pick: generate.Picker, world: generate.World) -> Op:
    return Op.state_seq_set(pick.integer(0, world.n_seq_max - 1), 0)


def rollback_equals_fresh(info: CacheInfo, config: Config, pick: generate.Picker) -> None:
    """Tokens that were taken back leave no trace in what is decoded after them."""
    n, back, more = pick.integer(1, 4), pick.integer(1, 2), pick.integer(1, 3)
    kept = [(0, label) for label in range(1, n + 1)]
    drafted = [(0, 500 + i) for i in range(back + 1)]
    rolled, fresh = Run(info, config), Run(info, config)
    for run in (rolled, fresh):
        run.batch(kept)
    rolled.batch(drafted)
    if not rolled.do(Op.seq_rm(0, n + 1, -1)):
        return  # it said no, which is an answer
    fresh.batch(drafted[:1])
    for run in (rolled, fresh):
        run.batch([(0, 800 + i) for i in range(more)])
    compare("rolled back", rolled, fresh)


def parts_hold_the_same(info: CacheInfo, config: Config, pick: generate.Picker) -> None:
    """Every part of a composite holds the tokens that the part without window holds, less what its own window
    has passed; a recurrent state has seen them all."""
    run = Run(info, config)
    perform(run, Script.drawn(pick, len(run.seqs), room_of(config, run.checked.unified)))
    content = run.content(masked=True)
    for seq in run.seqs:
        held = {
            name: content[name].get(seq, [])
            for name in state_leaves(run.checked.memory, 0)
            if name in content and (name, seq) not in run.excused
        }
        for (a, one), (b, two) in combinations(held.items(), 2):
            if not _same_tokens(one, two):
                raise BrokenRuleError(f"the parts differ: sequence {seq} holds {one} in {a}, {two} in {b}")


def _same_tokens(one: Any, two: Any) -> bool:
    """Whether two parts hold the same last tokens, as many as the shorter one has."""
    if not one or not two:
        return not one and not two
    if isinstance(one, tuple) or isinstance(two, tuple):  # a recurrent state: position, labels
        labels = [list(held[1]) if isinstance(held, tuple) else [e[2] for e in held] for held in (one, two)]
        n = min(map(len, labels))
        return NO_ROW in labels[0] + labels[1] or labels[0][-n:] == labels[1][-n:]
    n = min(len(one), len(two))
    return all(
        a[0] == b[0] and (a[2] == b[2] or NO_ROW in (a[2], b[2]))
        for a, b in zip(one[-n:], two[-n:], strict=True)
    )


Rule = Callable[[CacheInfo, Config, generate.Picker], None]

RULES: tuple[Rule, ...] = (
    layout_does_not_matter,
    refusal_leaves_no_trace,
    others_are_not_touched,
    rollback_equals_fresh,
    parts_hold_the_same,
)
"""Every rule. It plays what ``pick`` chooses on a configuration, and raises BrokenRuleError if broken."""
