"""What the blocks of a probe must read, worked out from a list of tokens and positions without any cache.

The definitions, in the order a textbook would give them: no cells, streams, slots, ubatches, rings, plans
or stored rows. A memory is transparent if :meth:`ProbeNetwork.readings` through it equals this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kvsim import window
from kvsim.memory import BoolArray, IntArray
from kvsim.models.cache_spec import CacheSpec, LayerSpec, MemorySpec
from kvsim.models.cache_types import CacheType
from kvsim.models.cached_rows import Floats
from kvsim.models.probe import HEADS_PER_GROUP, PLAIN, WINDOWED, ProbeNetwork
from kvsim.models.probe_dsv4 import COMPRESS_BASE, N_HEAD
from kvsim.models.probe_recurrent import DECAY, TAPS
from kvsim.models.probe_sparse import NORM_EPS
from kvsim.tensors.attention import attention
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.indexer import VARIANTS, index_vectors
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope


class Truth:
    """One sequence of a probe's memory: ``tokens`` at positions ``pos`` (ascending).

    ``history`` are all tokens that a recurrent state has seen, if they differ. Rows are rounded once to the
    type of their cache, and nothing else is: a cache that turned its keys rounded them again, and attention
    over anything but f32 rows rounds its operands.
    """

    def __init__(
        self,
        probe: ProbeNetwork,
        spec: MemorySpec,
        tokens: Sequence[int],
        pos: Sequence[int],
        history: Sequence[int] | None = None,
    ) -> None:
        self.probe, self.spec, self.model = probe, spec, probe.model
        self.ids = np.array(tokens) % probe.n_vocab
        self.pos = np.array(pos, np.int32)
        self.history = self.ids if history is None else np.array(history) % probe.n_vocab

    def readings(self) -> dict[str, Floats]:
        """What each token reads, ``[token, width]``, by the names of :meth:`ProbeNetwork.readings`."""
        if self.spec.kind == "dsv4":
            raw = self.spec.caches["raw.swa"]
            return {f"raw {il}": self._compressed(il, raw) for il in raw.map_layer_ids}
        found = {
            f"{name} {il}": self._attention(il, name, cache) for name, cache, il in self._attention_blocks()
        }
        if self.spec.recurrent is not None:
            for il, widths in enumerate(self.spec.recurrent.layers):
                for part, width in zip("rsp", widths, strict=True):
                    if width:
                        found[f"recurrent.{part} {il}"] = self._states(part, il, width)
        return found

    @cached_property
    def masks(self) -> dict[int, BoolArray]:
        """What each token attends to in each block, ``bool[token, key]`` or ``bool[head, token, key]``: keys
        are the tokens, in DeepSeek-V4 followed by the compressed rows of the block's kind."""
        if self.spec.kind == "dsv4":
            raw = self.spec.caches["raw.swa"]
            return {il: self._window_and_rows(il, raw) for il in raw.map_layer_ids}
        return {il: self._mask(il, name, cache) for name, cache, il in self._attention_blocks()}

    def _attention_blocks(self) -> Iterator[tuple[str, CacheSpec, int]]:
        for name, cache in self.spec.caches.items():
            if name in (*PLAIN, WINDOWED):
                yield from ((name, cache, il) for il in cache.map_layer_ids)

    def _vectors(self, name: str, *shape: int, ids: IntArray | None = None) -> Floats:
        table = self.probe.table(name, self.probe.n_vocab + 1, *shape)
        rows: Floats = table[self.ids if ids is None else ids]
        return rows

    def _turn(self, x: Floats, turn: Rope | None) -> Floats:
        if turn is None:
            return x
        sections = np.stack([self.pos, self.pos, self.pos, np.zeros_like(self.pos)])
        turned: Floats = rope(x, self.pos if turn.sections is None else sections, turn)
        return turned

    # -- recurrent -----------------------------------------------------------------------------

    def _states(self, part: str, il: int, width: int) -> Floats:
        """The sum of all tokens so far, each weighing less the older it is; or the newest ones in a row."""
        n_fed = width if part == "s" else -(-width // TAPS)
        fed = self._vectors(f"{part} {il}", n_fed, ids=self.history)
        n = len(fed)
        if part == "s":
            age = np.arange(n)[:, None] - np.arange(n)
            weighted: Floats = np.where(age >= 0, DECAY ** np.maximum(age, 0), 0.0) @ fed
            return weighted
        line = np.concatenate([np.zeros(width), fed.ravel()])
        return np.stack([line[width + (i + 1) * n_fed - width :][:width] for i in range(n)])

    # -- attention -----------------------------------------------------------------------------

    def _attention(self, il: int, name: str, cache: CacheSpec) -> Floats:
        layer = cache.layers[cache.map_layer_ids[il]]
        turn = self.probe.rotation(layer, cache)
        n_v = self.model.layers[il].n_embd_head_v
        q = self._turn(self._vectors(f"q {il}", HEADS_PER_GROUP * layer.n_head_kv, layer.n_embd_head_k), turn)
        k = self._turn(self._vectors(f"k {layer.il}", layer.n_head_kv, layer.n_embd_head_k), turn)
        k = stored(layer.k, k, cache.n_rot_k if layer.v is not None else 0)
        if layer.v is None:
            v = k[..., :n_v]
        else:
            v = stored(layer.v, self._vectors(f"v {layer.il}", layer.n_head_kv, n_v), cache.n_rot_v)
        out = attention(q, k, v, self.masks[il], scale=layer.n_embd_head_k**-0.5)
        return out.reshape(len(q), -1)

    def _mask(self, il: int, name: str, cache: CacheSpec) -> BoolArray:
        """What the block may look at, and of that what its indexer chooses."""
        mask = self._visible(cache)
        if "lid" in self.spec.caches and name != WINDOWED:
            return self._lightning(il, mask)
        if "idx" in self.spec.caches and il in self.spec.caches["idx"].map_layer_ids:
            return self._pools(il, mask) if self.spec.kind == "hybrid_idx" else self._blocks(il, mask)
        return mask

    def _visible(self, cache: CacheSpec) -> BoolArray:
        hidden = window.masked(cache.swa_type, cache.n_swa, self.pos, self.pos[:, None])
        seen: BoolArray = (self.pos <= self.pos[:, None]) & ~hidden
        return seen

    def _index_scores(self, il: int, q: Floats, k: Floats) -> Floats:
        """Sum over index heads of weight * max(q.k, 0), ``[token, key]``."""
        n_head, size = q.shape[1:]
        weights = np.abs(self._vectors(f"index w {il}", n_head)) / np.sqrt(size * n_head)
        scores: Floats = np.einsum("th,thk->tk", weights, np.maximum(q @ k.T, 0))
        return scores

    def _lightning(self, il: int, mask: BoolArray) -> BoolArray:
        cache = self.spec.caches["lid"]
        il = max(own for own in cache.map_layer_ids if own <= il)
        turn = self.probe.rotation(cache.layers[cache.map_layer_ids[il]], cache)
        assert turn is not None
        size, variant = self.model.indexer_head_size, VARIANTS[self.model.arch]
        q = index_vectors(
            self._vectors(f"index q {il}", self.model.indexer_n_head, size), self.pos, turn, variant
        )
        k = index_vectors(self._vectors(f"index k {il}", size), self.pos, turn, variant)
        k = stored(cache.layers[0].k, k)
        return _best(self._index_scores(il, q, k), mask, self.model.indexer_top_k)

    def _blocks(self, il: int, mask: BoolArray) -> BoolArray:
        """MiniMax-M3: the blocks of positions whose best key scores highest, the token's own first."""
        context, model, cache = self.probe.context, self.model, self.spec.caches["idx"]
        if not context.flash_attn or (context.kv_unified and context.n_seq_max > 1):
            return mask
        turn = self.probe.rotation(cache.layers[cache.map_layer_ids[il]], cache)
        size, n_group = model.indexer_head_size, model.indexer_n_head
        q = self._turn(self._vectors(f"index q {il}", n_group, size), turn)
        k = stored(cache.layers[0].k, self._turn(self._vectors(f"index k {il}", 1, size), turn))[:, 0]
        block_of = self.pos // model.indexer_block_size
        chosen = np.zeros((n_group, *mask.shape), np.bool_)
        for t, g in np.ndindex(len(q), n_group):
            best = {}
            for b in np.unique(block_of[mask[t]]):
                local = 0 <= block_of[t] - b < model.indexer_local_blocks
                best[b] = (local, (k[mask[t] & (block_of == b)] @ q[t, g]).max())
            kept = sorted(best, key=lambda b: best[b], reverse=True)[: model.indexer_top_k]
            chosen[g, t] = mask[t] & np.isin(block_of, kept)
        heads = HEADS_PER_GROUP * model.layers[il].n_head_kv // n_group
        return np.repeat(chosen, heads, axis=0)

    def _pools(self, il: int, mask: BoolArray) -> BoolArray:
        """Pools of keys, the best of which count with all their members; and what comes after the last."""
        model, size, n = self.model, self.model.indexer_head_size, self.model.indexer_kpool
        q = self._vectors(f"index q {il}", model.indexer_n_head, size)
        members = self._pool_members(n)
        pooled = np.stack([self._pool(il, at) for at in members]) if members else np.zeros((0, size))
        pooled = stored(self._index_type, pooled)
        scores = self._index_scores(il, q, pooled)
        chosen = np.zeros_like(mask)
        for t in range(len(q)):
            complete = [i for i, at in enumerate(members) if at[-1] <= t]
            best = sorted(complete, key=lambda i: scores[t, i], reverse=True)[: model.indexer_top_k // n]
            for i in best:
                chosen[t, members[i]] = True
            chosen[t] |= self._tail(t, n)
        return chosen & mask

    @property
    def _index_type(self) -> CacheType:
        return self.spec.caches["idx"].layers[0].k

    def _pool_members(self, n: int) -> list[IntArray]:
        """Indices of the tokens of each pool."""
        if self.model.indexer_kpool_by_order:
            return [np.arange(i, i + n, dtype=np.int32) for i in range(0, len(self.pos) - n + 1, n)]
        first = self.pos[0]
        starts = range(int(first), int(self.pos[-1]) + 1, n)
        runs = [np.flatnonzero((self.pos >= p) & (self.pos < p + n)).astype(np.int32) for p in starts]
        return [at for at in runs if len(at) == n]

    def _tail(self, t: int, n: int) -> BoolArray:
        """The tokens up to t that no complete pool before it can hold."""
        at = np.arange(len(self.pos))
        if self.model.indexer_kpool_by_order:
            return (at <= t) & (at > t - (t + 1) % n)
        back = (self.pos[t] - self.pos[0] + 1) % n
        tail: BoolArray = (self.pos <= self.pos[t]) & (self.pos > self.pos[t] - back)
        return tail

    def _pool(self, il: int, at: IntArray) -> Floats:
        size = self.model.indexer_head_size
        keys = stored(self._index_type, self._vectors(f"index k {il}", size)[at])
        if self.model.indexer_kpool_by_order:
            turn = Rope(size, sections=self.model.rope_sections, interleaved=True)  # type: ignore[arg-type]
            first = np.full((4, 1), self.pos[at[0]])
            mean: Floats = rope(rms_norm(keys.mean(axis=0), np.ones(size), NORM_EPS)[None], first, turn)[0]
            return mean
        gates = stored(self._index_type, self._vectors(f"index gate {il}", size)[at])
        return _blend(keys, gates + self.probe.table(f"index ape {il}", len(at), size))

    # -- DeepSeek-V4 ---------------------------------------------------------------------------

    def _compressed(self, il: int, raw: CacheSpec) -> Floats:
        """The window, and every complete block of the sequence as one row."""
        layer = raw.layers[raw.map_layer_ids[il]]
        width, kind = layer.n_embd_head_k, self._kind(il)
        turn = Rope(layer.n_rot, offset=width - layer.n_rot, base=COMPRESS_BASE if kind else layer.freq_base)
        q = rope(self._vectors(f"q {il}", N_HEAD, width), self.pos, turn)
        keys = stored(layer.k, rope(self._vectors(f"k {il}", 1, width), self.pos, turn), raw.n_rot_k)
        if kind is not None:
            rows, n_rot = self._rows(kind, il)[0], self.spec.caches[kind].n_rot_k
            keys = np.concatenate([keys, (hadamard(rows, n_rot) if n_rot else rows)[:, None]])
        out = attention(q, keys, keys, self.masks[il], scale=width**-0.5)
        return rope(out, -self.pos, turn).reshape(len(q), -1)

    def _kind(self, il: int) -> str | None:
        """Which compressor a block has beside its window."""
        kinds = (name for name in ("csa", "hca") if il in self.spec.caches[name].map_layer_ids)
        return next(kinds, None)

    def _window_and_rows(self, il: int, raw: CacheSpec) -> BoolArray:
        mask, kind = self._visible(raw), self._kind(il)
        if kind is None:
            return mask
        complete = self._rows(kind, il)[1]
        if kind == "csa":
            complete = self._chosen_rows(il, complete)
        return np.concatenate([mask, complete], axis=1)

    def _rows(self, name: str, il: int) -> tuple[Floats, BoolArray]:
        """Compressed rows of one kind as stored, and which of them each token sees: those complete at it."""
        cache, ring = self.spec.caches[name], self.spec.compressors[name]
        layer: LayerSpec = cache.layers[cache.map_layer_ids[il]]
        n, width = ring.ratio, layer.n_embd_k
        ape = self.probe.table(f"{name} ape {il}", n, ring.n_embd_state)
        kv = self._vectors(f"{name} kv {il}", ring.n_embd_state)
        score = self._vectors(f"{name} score {il}", ring.n_embd_state) + ape[self.pos % n]
        rows = []
        for start in range(0, int(self.pos[-1]) + 2 - n, n):
            own = (self.pos >= start) & (self.pos < start + n)
            values, scores = kv[own], score[own]
            if ring.n_embd_state > width:  # overlapping: first halves of the block before, second of this
                before = (self.pos >= start - n) & (self.pos < start)
                values = np.concatenate([kv[before, :width], values[:, width:]])
                scores = np.concatenate([score[before, :width], scores[:, width:]])
            row = rms_norm(_blend(values, scores), np.ones(width), NORM_EPS)[None]
            turn = Rope(layer.n_rot, offset=width - layer.n_rot, base=COMPRESS_BASE)
            row = rope(row, [start], turn)
            rows.append(hadamard(row, cache.n_rot_k)[0] if cache.n_rot_k else row[0])
        ends = n * np.arange(1, len(rows) + 1) - 1
        return stored(layer.k, np.array(rows).reshape(-1, width)), ends <= self.pos[:, None]

    def _chosen_rows(self, il: int, complete: BoolArray) -> BoolArray:
        size = self.model.indexer_head_size
        layer = self.spec.caches["lid"].layers[0]
        turn = replace(Rope(layer.n_rot), base=COMPRESS_BASE)
        q = self._vectors(f"index q {il}", self.model.indexer_n_head, size)
        q = index_vectors(q, self.pos, turn, VARIANTS["deepseek4"])
        keys, _ = self._rows("lid", il)
        return _best(self._index_scores(il, q, keys), complete, self.model.indexer_top_k)


def stored(kind: CacheType, rows: Floats, n_rot: int = 0) -> Floats:
    """``rows [token, ..., d]`` as they come back from a cache of a type, spread by a Hadamard rotation of size
    ``n_rot`` while they are in it."""
    if not len(rows):
        return rows
    spread = hadamard(rows, n_rot) if n_rot else rows
    held = decode(kind.name, encode(kind.name, spread.reshape(len(rows), -1)))
    back = held.reshape(rows.shape).astype(np.float64)
    return hadamard(back, n_rot) if n_rot else back


def _blend(values: Floats, scores: Floats) -> Floats:
    """Mean of ``values [row, d]`` weighted by the softmax of ``scores``, per channel."""
    weights = np.exp(scores - scores.max(axis=0))
    blended: Floats = (weights * values).sum(axis=0) / weights.sum(axis=0)
    return blended


def _best(scores: Floats, mask: BoolArray, k: int) -> BoolArray:
    """The ``k`` best of each row among those in ``mask``."""
    chosen = np.zeros_like(mask)
    for row, (score, seen) in enumerate(zip(scores, mask, strict=True)):
        visible = np.flatnonzero(seen)
        chosen[row, visible[np.argsort(-score[visible], kind="stable")[:k]]] = True
    return chosen
