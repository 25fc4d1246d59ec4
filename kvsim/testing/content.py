"""A memory that is played on, and what it then holds, told so that two runs can be compared.

What is compared is *content*: for each sequence, the tokens that its next token would attend to, with the
position each key is turned for, and the tokens its recurrent state has seen. Sequences that a hazard names
are excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import KvsimError
from kvsim.ledger import AttentionPart
from kvsim.ops import Op
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.checked import Checked
from kvsim.testing.excuses import concerns
from kvsim.testing.ink import states_of
from kvsim.testing.ink_cache import cells_of

NO_ROW = -1
"""Stands for the token of a cell without a row behind it."""

Content = dict[str, dict[int, Any]]
"""Per part and sequence what is held; a sequence that holds nothing has no entry."""


class BrokenRuleError(KvsimError):
    """A metamorphic rule does not hold, and no hazard says so."""


class Run:
    """A memory that is played on, and the hazards it meets.

    ``batch(entries)`` decodes (sequence, label) entries, each at its sequence's next position. Labels are the
    caller's names for tokens; content is told in them, so that runs compare that decode in another order.
    ``read`` has per part and sequence what each of its tokens attended to when it was decoded.
    """

    def __init__(self, info: CacheInfo, config: Config) -> None:
        self.checked = Checked(info, config)
        self.labels: dict[int, int] = {}
        self.excused: set[tuple[str, int]] = set()
        self.read: dict[tuple[str, int], list[Any]] = {}

    @property
    def seqs(self) -> range:
        return range(self.checked.n_seq_max)

    def end(self, seq: int) -> int:
        """The position after the last one of a sequence."""
        return self.checked.span(seq)[1] + 1

    def batch(self, entries: Sequence[tuple[int, int]]) -> int | None:
        """Decode tokens; returns the code."""
        first = self.checked.network.first
        ends = {seq: self.end(seq) for seq, _ in entries}
        pos = []
        for i, (seq, label) in enumerate(entries):
            self.labels[first + i] = label
            pos.append(ends[seq])
            ends[seq] += 1
        tokens = [label % 100 for _, label in entries]
        return self.do(Op.decode(tokens, pos, [[seq] for seq, _ in entries]))

    def do(self, op: Op) -> int | None:
        """Perform an operation; returns its answer. Sequences that a hazard names are excused from now on."""
        self.checked.network.ran = []
        ret = self.checked.perform(op)
        for event in self.checked.events:
            for part in self.checked.ledger.parts:
                self.excused |= {(part, seq) for seq in self.seqs if concerns(event, part, seq)}
        for read in (read for ran in self.checked.network.ran for read in ran.reads):
            seen = sorted((self.labels.get(instance, NO_ROW), turned) for instance, turned in read.seen)
            self.read.setdefault((read.part, read.seq), []).append((read.pos, seen))
        return ret

    def save_and_restore(self, slot: int) -> None:
        """Save every sequence and restore it where it was."""
        for seq in self.seqs:
            self.do(Op.state_seq_get(seq, slot + seq))
            self.do(Op.state_seq_set(seq, slot + seq))

    def content(self, masked: bool = False) -> Content:
        """What the sequences hold; with ``masked`` also what windows have passed and nobody has taken."""
        found: Content = {}
        for name, leaf in self.checked.memory.leaves().items():
            part = self.checked.ledger.parts.get(name)
            if isinstance(leaf, KVCache) and isinstance(part, AttentionPart):
                found[name] = self._held(leaf, part, masked)
            elif isinstance(leaf, RecurrentMemory):
                tokens = self.checked.histories.tokens
                found[name] = {
                    seq: (state.pos, [self.labels.get(i, NO_ROW) for i in tokens(state.history)])
                    for seq, state in states_of(leaf).items()
                    if state.pos >= 0 or state.history
                }
        return found

    def _held(self, leaf: KVCache, part: AttentionPart, masked: bool) -> dict[int, Any]:
        held = {}
        for seq, entries in cells_of(leaf).items():
            start = part.window_start(max(e.pos for e in entries) + 1)
            held[seq] = sorted(
                (e.pos, e.turned + e.pending if part.rotates else 0, self.labels.get(e.instance, NO_ROW))
                for e in entries
                if masked or e.pos >= start
            )
        return held


def compare(rule: str, one: Run, other: Run) -> None:
    """Raise BrokenRuleError unless both runs hold the same, hazards aside."""
    compare_content(rule, one.content(), other.content(), one.excused | other.excused, one.seqs)


def compare_reads(rule: str, one: Run, other: Run) -> None:
    """As :func:`compare`; each token must have attended to the same besides."""
    compare(rule, one, other)
    for part, seq in one.read.keys() - one.excused - other.excused:
        a, b = one.read[part, seq], other.read.get((part, seq))
        if a != b:
            raise BrokenRuleError(
                f"{rule}: {part}, the tokens of sequence {seq} attended to {a}, and otherwise to {b} "
                "(position, seen: token and position its key is turned for)"
            )


def compare_content(
    rule: str, a: Content, b: Content, excused: set[tuple[str, int]], seqs: Iterable[int]
) -> None:
    """Raise BrokenRuleError unless the content of these sequences is the same, excused ones aside."""
    for seq in seqs:
        for part in a:
            if (part, seq) not in excused and a[part].get(seq) != b[part].get(seq):
                raise BrokenRuleError(
                    f"{rule}: {part}, sequence {seq} holds {a[part].get(seq)}, and otherwise "
                    f"{b[part].get(seq)} (position, key turned for, token)"
                )
