"""One player of random operations: a context with a probe, and a plain account of what its sequences hold.

Each operation is done on both. The account (tokens, positions, how far snapshots reach back) says exactly
which positions the cells of each sequence must hold, and :class:`Truth` works out of it what every decoded
token attends to and reads. Before each decode all rows without an owner are poisoned with huge values (not
NaN: without flash attention llama.cpp, too, multiplies masked rows by 0): what still read one would show it.
Operations that hazards name are left out: those are told in ``test_hazards.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from probe_contexts import MODELS, N_VOCAB, context
from readings import TOLERANCE, Readings

from kvsim.batch import Batch
from kvsim.caches.kv import KVCache
from kvsim.defrag import Defrag
from kvsim.errors import CacheUsageError
from kvsim.models.params import ModelParams, SwaType
from kvsim.testing.ink_cache import cells_of
from kvsim.window import masked

N_SEQ = 3
N_ROLLBACK = 2
MAX_TOKENS = 48
MAX_POS = 120
POISON, POISON_F16 = 1e9, 1e4

STATES = ("recurrent", "hybrid", "hybrid_iswa", "hybrid_idx", "dsv4")
"""Memories that go back by snapshots alone."""

PLAYED: dict[str, ModelParams] = {
    **MODELS,
    "msa-minimax-m3": replace(MODELS["msa-minimax-m3"], indexer_top_k=3),
    **{f"{name}-choosing all": replace(MODELS[name], indexer_top_k=MAX_TOKENS)
       for name in MODELS if name.startswith("dsa")},
    "dsa-hy_v4": replace(
        MODELS["dsa-deepseek32"], arch="hy_v4",
        layers=tuple(replace(la, indexer_full=il == 0) for il, la in enumerate(MODELS["dsa-deepseek32"].layers)),
    ),
}  # fmt: skip
"""The recorded models; MiniMax-M3 with so few blocks that some are left out. Where all is chosen it does not
matter that a shift turns index keys wrongly (hazard ``indexer-keys-turned-as-stored``)."""


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
    """A context and the account of its sequences; each operation is done on both.

    ``kind`` is the type of keys and values; ``tolerance`` that of values, relative to the largest one. Block-
    sparse attention needs ``flash``, quantised values too.
    """

    def __init__(
        self,
        name: str,
        kv_unified: bool,
        n_ubatch: int,
        kind: str = "f32",
        flash: bool = False,
        tolerance: float = TOLERANCE,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self.max_tokens = max_tokens
        self.name, self.unified, self.tolerance = name, kv_unified, tolerance
        self.has_states = name.split("-")[0] in STATES
        self.huge = POISON if kind == "f32" and not flash else POISON_F16
        self.asked: dict[str, Any] = {
            "kv_unified": kv_unified, "n_seq_max": N_SEQ, "n_ctx": 256 if kv_unified else 768,
            "n_ubatch": n_ubatch, "type_k": kind, "type_v": kind, "flash_attn": flash,
        }  # fmt: skip
        if self.has_states:
            self.asked["n_rs_seq"] = N_ROLLBACK
        self.left_out: dict[int, int] = {}
        self._open()
        self.held = [Account() for _ in range(N_SEQ)]
        self.shared: set[int] = set()
        self.rolled_back: set[int] = set()
        self.n_fed = 0
        self.n_done: dict[str, int] = {}

    def _open(self) -> None:
        self.ctx = context(PLAYED[self.name], **self.asked)
        self.readings = Readings(self.ctx, self.left_out)
        for leaf in self.caches():
            leaf.defrag = Defrag("minimal")

    def do(self, op: str, a: int, b: int) -> None:
        """Perform the operation unless it is none here, and look at the cells."""
        if getattr(self, op.replace(" ", "_"))(a, b) is not False:
            self.n_done[op] = self.n_done.get(op, 0) + 1
        self.assert_cells_are_those_of_the_account()

    # -- operations; False where there is nothing to do ----------------------------------------

    def decode(self, chosen: int, n: int) -> bool | None:
        """``n`` tokens for each of the sequences whose bits are set, in one batch."""
        seqs = [s for s in range(N_SEQ) if chosen >> s & 1 and self.has_room(s, n)]
        self._feed([[s] for s in seqs], n)
        return None if seqs else False

    def together(self, a: int, b: int) -> bool | None:
        """Two tokens that belong to both sequences, which must hold the same; into cells that both own."""
        alike = (self.held[a].tokens, self.held[a].pos) == (self.held[b].tokens, self.held[b].pos)
        if a == b or not alike or not self.unified or self.has_states or not self.has_room(a, 2):
            return False
        self._feed([[a, b]], 2)
        self.shared |= {a, b}
        return None

    def has_room(self, s: int, n: int) -> bool:
        return len(self.held[s].pos) + n <= self.max_tokens

    def _feed(self, owners: list[list[int]], n: int) -> None:
        """Decode ``n`` new tokens for each list of owners, and look at what they read."""
        batch: list[tuple[int, int, list[int]]] = []
        for seqs in owners:
            tokens = [(7 * i * i + 3 * i + 5) % N_VOCAB for i in range(self.n_fed, self.n_fed + n)]
            self.n_fed += n
            held = self.held[seqs[0]]
            start = held.pos[-1] + 1 if held.pos else 0
            batch += [(t, start + i, seqs) for i, t in enumerate(tokens)]
            for s in seqs:
                self.held[s] = Account(held.tokens + tokens, [*held.pos, *range(start, start + n)])
        if not batch:
            return
        self.ctx.update()
        self.poison()
        self.readings.found.clear()
        fed, pos, seq_ids = zip(*batch, strict=True)
        assert self.ctx.decode(Batch(tokens=fed, pos=pos, seq_ids=seq_ids, output=[1] * len(pos))) == 0
        reach = self.ctx.resolved.n_rs_seq if len(owners) == 1 and n <= self.ctx.resolved.n_ubatch else 0
        for s in (s for seqs in owners for s in seqs):
            held = self.held[s]
            self.readings.assert_true(s, held.tokens, held.pos, last=n, tolerance=self.tolerance)
            self.held[s] = replace(held, undo=min(n - 1, reach))
            self.rolled_back -= {s}

    def tail(self, s: int, n: int) -> bool | None:
        held = self.held[s]
        if len(held.pos) <= n or (self.has_states and n > held.undo):
            return False
        p0 = held.pos[-n]
        left = held.kept(lambda p: p < p0)
        if not self.window_is_whole(s, left.pos):
            return False
        assert self.ctx.memory.seq_rm(s, p0, -1)
        self.held[s] = left
        self.rolled_back |= {s} if self.has_states else set()
        return None

    def reject_drafts(self, s: int, n: int) -> bool | None:
        """Decode as many as snapshots reach back and one more, and take some of them back."""
        if self.has_states and not self.ctx.resolved.n_rs_seq:  # an architecture without snapshots
            return False
        if self.decode(1 << s, N_ROLLBACK + 1) is False:
            return False
        return self.tail(s, n)

    def gap(self, s: int, p0: int) -> bool | None:
        if self.has_states or len(self.held[s].pos) < 6 or self.held[s].pos[-1] < p0 + 6:
            return False
        assert self.ctx.memory.seq_rm(s, p0, p0 + 3)
        self.held[s] = self.held[s].kept(lambda p: not p0 <= p < p0 + 3)
        return None

    def context_shift(self, s: int, n: int) -> bool | None:
        """The first ``n`` positions go and the others move down; states forget nothing."""
        held = self.held[s]
        if self.has_states or not self.may_move(s) or held.pos[-1] < n:
            return False
        assert self.ctx.memory.seq_rm(s, 0, n)
        self.ctx.memory.seq_add(s, n, -1, -n)
        left = held.kept(lambda p: p >= n)
        self.held[s] = replace(left, pos=[p - n for p in left.pos])
        return None

    def move_up(self, s: int, n: int) -> bool | None:
        """All positions grow, those of states too."""
        held = self.held[s]
        if not self.may_move(s) or held.pos[-1] + n >= MAX_POS:
            return False
        self.ctx.memory.seq_add(s, -1, -1, n)
        self.held[s] = Account(held.tokens, [p + n for p in held.pos])
        return None

    def may_move(self, s: int) -> bool:
        """Not where others own the cells too (hazard ``shift-moves-other-owners``), nor while a rollback waits
        (``rollback-moves-other-owners``), nor index keys that a shift turns wrongly."""
        shares = s in self.shared and (self.unified or self.has_states)
        return self.can_move() and bool(self.held[s].pos) and not shares and s not in self.rolled_back

    def can_move(self) -> bool:
        """Whether positions of this memory can change, and its keys turn with them: index keys well enough for
        the same choice, which those rounded again do not."""
        wrongly = "lid" in self.ctx.memory.leaves() and PLAYED[self.name].indexer_top_k < MAX_TOKENS
        wrongly |= self.name.startswith("msa") and self.asked["type_k"] != "f32"
        return self.ctx.memory.can_shift and not wrongly and all(map(turns, self.caches()))

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

    def hand_over(self, src: int, dst: int) -> bool | None:
        """Saved, and restored as another sequence."""
        if src == dst or not self.held[src].pos or self.rolled_back & {src, dst}:
            return False
        self.ctx.update()
        saved = self.ctx.state_seq_get(src)
        self.empty(dst, 0)
        assert self.ctx.state_seq_set(saved, dst) == len(saved)
        self.held[dst] = replace(self.held[src], undo=0)
        self.shared -= {dst}
        return None

    def start_again(self, *_: int) -> bool | None:
        """All is saved, and restored into a new context."""
        if self.rolled_back:
            return False
        self.ctx.update()
        saved = self.ctx.state_get()
        self._open()
        assert self.ctx.state_set(saved) == len(saved)
        self.held = [replace(held, undo=0) for held in self.held]
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
                        huge = np.full((len(free), layer.n_embd_k), self.huge)
                        cache.store.encode_k(il, stream, free, huge)
                        if layer.v is not None:
                            cache.store.encode_v(il, stream, free, huge[:, :1].repeat(layer.n_embd_v_own, 1))

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


def turns(cache: KVCache) -> bool:
    """Whether a cache can turn its keys: one without layers cannot, nor can some of quantised keys."""
    if cache.store is None or not cache.spec.layers:
        return False
    try:
        cache.store.check_shift()
    except CacheUsageError:
        return False
    return True


def visible(cache: KVCache, pos: list[int]) -> set[int]:
    """Of ``pos``, what a next token would see."""
    if not pos or cache.spec.swa_type is SwaType.NONE:
        return set(pos)
    hidden = masked(cache.spec.swa_type, cache.spec.n_swa, np.array(pos, np.int32), pos[-1] + 1)
    return {p for p, h in zip(pos, hidden.tolist(), strict=True) if not h}
