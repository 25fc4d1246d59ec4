"""Transparency: after any sequence of operations, on any memory of the family, a token reads what it would
read without a cache.

A plain account of each sequence (tokens, positions, what a recurrent state has seen) is kept beside the
memory. It says exactly which positions the cells of each sequence must hold, and :class:`Truth` works out of
it what every decoded token reads. Before each decode all rows without an owner are poisoned with huge values
(not NaN: without flash attention llama.cpp, too, multiplies masked rows by 0): what still read one would
show it. Operations that hazards name are left out: those are told in ``test_hazards.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from probe_contexts import MODELS, N_VOCAB, context
from test_probe_truth import Readings

from kvsim.batch import Batch
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.defrag import Defrag
from kvsim.memory import BoolArray
from kvsim.models.params import SwaType
from kvsim.tensors.store import KVStore
from kvsim.testing.ink_cache import cells_of
from kvsim.window import masked

N_SEQ = 3
N_ROLLBACK = 2
MAX_TOKENS = 48
POISON = 1e9
STATES = ("recurrent", "hybrid", "hybrid_iswa", "hybrid_idx", "dsv4")
"""Memories that go back by snapshots alone."""
TURNS = ("kv-llama", "kv-llama-h32", "msa-minimax-m3")
"""Models whose keys can be turned to other positions (dsa.md: shifted index keys are wrong)."""

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("decode"), st.integers(1, 2**N_SEQ - 1), st.integers(1, 9)),
        st.tuples(st.just("tail"), st.integers(0, N_SEQ - 1), st.integers(1, 5)),
        st.tuples(st.just("reject drafts"), st.integers(0, N_SEQ - 1), st.integers(1, N_ROLLBACK)),
        st.tuples(st.just("gap"), st.integers(0, N_SEQ - 1), st.integers(0, 12)),
        st.tuples(st.just("context shift"), st.integers(0, N_SEQ - 1), st.integers(1, 6)),
        st.tuples(
            st.sampled_from(["empty", "keep", "restore", "defragment"]), st.integers(0, N_SEQ - 1), st.just(0)
        ),
        st.tuples(st.just("copy"), st.integers(0, N_SEQ - 1), st.integers(0, N_SEQ - 1)),
    ),
    min_size=6,
    max_size=16,
)


@dataclass(frozen=True)
class Account:
    """What a sequence holds. ``undo``: how many of its last tokens snapshots reach."""

    tokens: list[int] = field(default_factory=list)
    pos: list[int] = field(default_factory=list)
    undo: int = 0

    def kept(self, keep: Callable[[int], bool]) -> Account:
        left = [(t, p) for t, p in zip(self.tokens, self.pos, strict=True) if keep(p)]
        return Account([t for t, _ in left], [p for _, p in left])


class Play:
    """A context and the account of its sequences; each operation is done on both."""

    def __init__(self, name: str, kv_unified: bool, n_ubatch: int) -> None:
        self.name, self.unified = name, kv_unified
        asked: dict[str, Any] = {"n_rs_seq": N_ROLLBACK} if name.split("-")[0] in STATES else {}
        self.ctx = context(
            MODELS[name], kv_unified=kv_unified, n_seq_max=N_SEQ, n_ctx=256 if kv_unified else 768,
            n_ubatch=n_ubatch, **asked,
        )  # fmt: skip
        self.readings = Readings(self.ctx)
        for leaf in self.caches():
            leaf.defrag = Defrag("minimal")
        self.held = [Account() for _ in range(N_SEQ)]
        self.shared: set[int] = set()
        self.rolled_back: set[int] = set()
        self.n_fed = 0
        self.n_done: dict[str, int] = {}

    def do(self, op: str, a: int, b: int) -> None:
        """Perform the operation unless it is none here, and look at the cells."""
        if getattr(self, op.replace(" ", "_"))(a, b) is not False:
            self.n_done[op] = self.n_done.get(op, 0) + 1
            self.assert_cells_are_those_of_the_account()

    # -- operations; False where there is nothing to do ----------------------------------------

    def decode(self, chosen: int, n: int) -> bool | None:
        seqs = [s for s in range(N_SEQ) if chosen >> s & 1 and len(self.held[s].pos) + n <= MAX_TOKENS]
        if not seqs:
            return False
        batch: list[tuple[int, int, list[int]]] = []
        for s in seqs:
            held = self.held[s]
            start = held.pos[-1] + 1 if held.pos else 0
            tokens = [(7 * i * i + 3 * i + 5) % N_VOCAB for i in range(self.n_fed, self.n_fed + n)]
            self.n_fed += n
            batch += [(t, start + i, [s]) for i, t in enumerate(tokens)]
            self.held[s] = Account(held.tokens + tokens, [*held.pos, *range(start, start + n)])
        self.ctx.update()
        self.poison()
        self.readings.found.clear()
        fed, pos, seq_ids = zip(*batch, strict=True)
        assert self.ctx.decode(Batch(tokens=fed, pos=pos, seq_ids=seq_ids, output=[1] * len(pos))) == 0
        self.rolled_back -= set(seqs)
        for s in seqs:
            self.readings.assert_true(self.ctx, s, self.held[s].tokens, self.held[s].pos, last=n)
            one = len(seqs) == 1 and n <= self.ctx.resolved.n_ubatch
            reach = self.ctx.resolved.n_rs_seq
            self.held[s] = replace(self.held[s], undo=min(n - 1, reach) if one else 0)
        return None

    def tail(self, s: int, n: int) -> bool | None:
        held = self.held[s]
        states = self.name.split("-")[0] in STATES
        if len(held.pos) <= n or (states and n > held.undo):
            return False
        p0 = held.pos[-n]
        left = held.kept(lambda p: p < p0)
        if not self.window_is_whole(s, left.pos):
            return False
        assert self.ctx.memory.seq_rm(s, p0, -1)
        self.held[s] = left
        self.rolled_back |= {s} if states else set()
        return None

    def reject_drafts(self, s: int, n: int) -> bool | None:
        """Decode as many as snapshots reach back and one more, and take some of them back."""
        if self.decode(1 << s, N_ROLLBACK + 1) is False:
            return False
        self.tail(s, n)
        return None

    def gap(self, s: int, p0: int) -> bool | None:
        if self.name.split("-")[0] in STATES or len(self.held[s].pos) < 6 or self.held[s].pos[-1] < p0 + 6:
            return False
        assert self.ctx.memory.seq_rm(s, p0, p0 + 3)
        self.held[s] = self.held[s].kept(lambda p: not p0 <= p < p0 + 3)
        return None

    def context_shift(self, s: int, n: int) -> bool | None:
        """The first ``n`` positions go and the others move down; not where others own the cells too."""
        held = self.held[s]
        if self.name not in TURNS or (self.unified and s in self.shared) or not held.pos or held.pos[-1] < n:
            return False
        assert self.ctx.memory.seq_rm(s, 0, n)
        self.ctx.memory.seq_add(s, n, -1, -n)
        left = held.kept(lambda p: p >= n)
        self.held[s] = replace(left, pos=[p - n for p in left.pos])
        return None

    def empty(self, s: int, _: int) -> bool | None:
        if s in self.rolled_back:  # hazard ``stale-rollback-used``
            return False
        assert self.ctx.memory.seq_rm(s, -1, -1)
        self.held[s] = Account()
        return None

    def keep(self, s: int, _: int) -> bool | None:
        """With a stream per sequence, attention caches look only at the stream of the one that is kept."""
        if not self.unified or self.rolled_back - {s}:  # hazard ``stale-rollback-used``
            return False
        self.ctx.memory.seq_keep(s)
        self.held = [replace(held, undo=0) if i == s else Account() for i, held in enumerate(self.held)]
        return None

    def copy(self, src: int, dst: int) -> bool | None:
        """Not of a sequence whose rollback waits for its next token (hazard ``copy-ignores-rollback``)."""
        if src == dst or not self.held[src].pos or self.rolled_back & {src, dst}:
            return False
        self.empty(dst, 0)
        self.ctx.update()  # a row queued for copying must not be emptied under the copy: see the hazards
        self.ctx.memory.seq_cp(src, dst, -1, -1)
        self.held[src] = self.held[dst] = replace(self.held[src], undo=0)
        self.shared |= {src, dst}
        self.ctx.update()
        return None

    def restore(self, s: int, _: int) -> bool | None:
        """Saved, and restored over itself."""
        if not self.held[s].pos:
            return False
        self.ctx.update()  # rows are saved as they are, without the shift that waits
        saved = self.ctx.state_seq_get(s)
        assert self.ctx.state_seq_set(saved, s) == len(saved)
        self.held[s] = replace(self.held[s], undo=0)
        return None

    def defragment(self, *_: int) -> None:
        self.ctx.update(optimize=True)

    # -- what must hold ------------------------------------------------------------------------

    def caches(self) -> list[KVCache]:
        """The leaves whose cells stand for tokens; compressed rows of DeepSeek-V4 stand for blocks."""
        leaves = self.ctx.memory.leaves()
        return [c for n, c in leaves.items() if isinstance(c, KVCache) and n not in ("csa", "hca")
                and not (n == "lid" and "csa" in leaves)]  # fmt: skip

    def poison(self) -> None:
        for cache in self.caches():
            if cache.store is not None:
                for stream, table in enumerate(cache.cells):
                    free = np.flatnonzero(table.pos < 0)
                    for il, layer in cache.store.layers.items():
                        cache.store.encode_k(il, stream, free, np.full((len(free), layer.n_embd_k), POISON))
                        if layer.v is not None:
                            poison = np.full((len(free), layer.n_embd_v), POISON)
                            cache.store.encode_v(il, stream, free, poison)

    def window_is_whole(self, s: int, pos: list[int]) -> bool:
        """Whether what the next token at the end of ``pos`` sees has not been overwritten."""
        return all(
            visible(cache, pos) <= {e.pos for e in cells_of(cache).get(s, [])} for cache in self.caches()
        )

    def assert_cells_are_those_of_the_account(self) -> None:
        """Exactly: every visible position once, and none that the sequence never had."""
        self.ctx.memory.check_integrity()
        for cache in self.caches():
            cells = cells_of(cache)
            for s, held in enumerate(self.held):
                found = [e.pos for e in cells.get(s, [])]
                assert len(found) == len(set(found))
                assert visible(cache, held.pos) <= set(found) <= set(held.pos)


def visible(cache: KVCache, pos: list[int]) -> set[int]:
    """Of ``pos``, what a next token would see."""
    if not pos or cache.spec.swa_type is SwaType.NONE:
        return set(pos)
    hidden = masked(cache.spec.swa_type, cache.spec.n_swa, np.array(pos, np.int32), pos[-1] + 1)
    return {p for p, h in zip(pos, hidden.tolist(), strict=True) if not h}


@pytest.mark.parametrize("name", MODELS)
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(ops=OPERATIONS, kv_unified=st.booleans(), n_ubatch=st.sampled_from([4, 8, 16]))
def test_any_operations_are_transparent(
    name: str, ops: list[tuple[str, int, int]], kv_unified: bool, n_ubatch: int
) -> None:
    play = Play(name, kv_unified, n_ubatch)
    for op in [("decode", 2**N_SEQ - 1, 7), *ops, ("decode", 2**N_SEQ - 1, 2)]:
        play.do(*op)


DECODED = [("decode", 7, 7), ("decode", 1, 9)]
FAULTS = [
    ("copy_stream", False, [*DECODED, ("copy", 0, 1), ("decode", 2, 1)]),
    ("apply_shift", True, [*DECODED, ("context shift", 0, 4), ("decode", 1, 1)]),
    ("move_cells", True, [*DECODED, ("empty", 1, 0), ("defragment", 0, 0), ("decode", 1, 1)]),
]


@pytest.mark.parametrize(("method", "kv_unified", "ops"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_data_left_behind_would_be_noticed(
    method: str, kv_unified: bool, ops: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> None:
        one = Play("kv-llama", kv_unified, 8)
        for op in ops:
            one.do(*op)

    play()
    monkeypatch.setattr(KVStore, method, lambda *args: None)
    with pytest.raises(AssertionError, match="kv 0"):
        play()


def test_a_row_without_an_owner_that_is_read_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that lets every token see one cell too many."""
    whole = KVView.mask

    def wider(view: KVView, causal: bool = True) -> BoolArray:
        mask = whole(view, causal)
        mask[:, -1] = True
        return mask

    monkeypatch.setattr(KVView, "mask", wider)
    with pytest.raises(AssertionError, match="kv 0"):
        Play("kv-llama", True, 8).do("decode", 1, 2)
