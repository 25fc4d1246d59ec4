"""Leaves with rows behind their cells, compared by the numbers in them, and by what attention makes of these.

Every token's rows are made from its id and position, so that rows that are swapped, lost, stale or turned
wrong differ by much more than rounding does. The formulas are those of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.attention_leaf import AttentionView
from kvsim.caches.dsv4 import RawView
from kvsim.caches.factory import LeafFactory
from kvsim.memory import View
from kvsim.models.cache_spec import LayerSpec
from kvsim.models.cached_rows import attend_rows, parts_of
from kvsim.models.params import ModelParams
from kvsim.replay import Replayer
from kvsim.tensors.codecs import decode, encode
from kvsim.testing.cache_info import Config
from kvsim.testing.subject import ContextSubject, Rows

F32 = NDArray[np.float32]


Attend = Callable[[AttentionView, LayerSpec, F32, int], F32]
"""What queries ``[token, head, dim]`` read of a layer's rows under the view's mask, ``[token, head, dim of v]``.
Of keys that are values too, so many numbers count."""


def attend(view: AttentionView, layer: LayerSpec, q: F32, n_latent: int) -> F32:
    """Attention as the reference computes it."""
    scale = layer.n_embd_head_k**-0.5
    return np.asarray(attend_rows(view, layer.il, q, view.mask(), scale=scale, n_latent=n_latent), np.float32)


def engine_attend(view: Any, layer: LayerSpec, q: F32, n_latent: int) -> F32:
    """Attention as the engine computes it."""
    from engine.attention import attend_numbers  # type: ignore[import-not-found,unused-ignore]

    read: F32 = attend_numbers(view, layer.il, q, scale=layer.n_embd_head_k**-0.5, n_latent=n_latent)
    return read


class RowNetwork:
    """Writes keys and values of each token, and states that take up its number. Its logits are what each token
    reads of every cache that it attends to, layer by layer, and the states it leaves."""

    def __init__(self, model: ModelParams, attend: Attend) -> None:
        self.model = model
        self.attend = attend

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> F32:
        tokens = np.zeros(ubatch.n_tokens, np.int32) if ubatch.tokens is None else ubatch.tokens
        number = np.asarray(tokens + 131 * ubatch.pos0, np.float32)
        readings = [np.zeros((ubatch.n_tokens, 1), np.float32)]
        for view in views.values():
            if isinstance(view, AttentionView) and view.cache.store is not None:
                self._write(view, number)
                if view.cache.has_mask and not isinstance(view, RawView):
                    readings += [self._read(view, layer, number) for layer in view.cache.spec.layers]
            elif hasattr(view, "s_copy"):
                readings += self._advance(view, ubatch, number)
        return np.concatenate(readings, axis=1)

    def _read(self, view: AttentionView, layer: LayerSpec, number: F32) -> F32:
        n, heads, width = len(number), layer.n_head_kv, layer.n_embd_head_k
        q = numbers(np.float32(0.5) * number, heads * width).reshape(n, heads, width)
        out = self.attend(view, layer, q, self.model.layers[layer.il].n_embd_head_v)
        return np.nan_to_num(out.reshape(n, -1))  # a token that may see nothing reads nothing

    def _write(self, view: AttentionView, number: F32) -> None:
        store, transposed = view.cache.store, view.cache.spec.v_trans
        for layer in view.cache.spec.layers:
            for stream, cells, rows in parts_of(view.slot):
                k = encode(layer.k.name, numbers(number[rows], layer.n_embd_k))
                store.write_k(layer.il, stream, cells, k.tobytes())
                if layer.v is not None:
                    width = layer.n_embd_v_own if transposed else layer.n_embd_v
                    values = numbers(-number[rows], width)
                    v = encode(layer.v.name, values.T if transposed else values)
                    store.write_v(layer.il, stream, cells, v.tobytes())

    def _advance(self, view: Any, ubatch: Ubatch, number: F32) -> list[F32]:
        """Each token halves the state and adds its number. Returns the states of every layer, by token."""
        left = []
        memory, n_seqs, length = view.memory, ubatch.n_seqs, ubatch.n_seq_tokens
        n_planes = min(length, memory.n_rs_seq + 1)
        for part, layers in memory.store.rows.items():
            for il in layers:
                start = memory.store.initial_states(part, il, view.head, view.rs_z, view.s_copy, n_seqs)
                state = np.asarray(start.cpu() if hasattr(start, "cpu") else start, np.float32)
                planes = np.zeros((n_planes, *state.shape), np.float32)
                by_token = np.zeros((n_seqs, length, *state.shape[1:]), np.float32)
                for t in range(length):
                    state = (state / 2 + number.reshape(n_seqs, length)[:, t, None]).astype(np.float32)
                    by_token[:, t] = state
                    if length - 1 - t < n_planes:
                        planes[length - 1 - t] = state
                left.append(by_token.reshape(n_seqs * length, -1))
                like = planes if isinstance(start, np.ndarray) else start.new_tensor(planes)
                memory.store.write_states(part, il, view.head, like)
        return left


def numbers(number: F32, width: int) -> F32:
    """Rows ``float32[n, width]`` that say which token they are of."""
    return np.sin(number[:, None] * 0.37 + np.arange(width) * 1.1).astype(np.float32)


class RowsSubject(ContextSubject):
    """Composites over leaves with rows. ``leaves`` makes them, with ``data`` on; ``attend`` reads them."""

    def __init__(self, name: str, leaves: Callable[[Config], LeafFactory], attend: Attend = attend) -> None:
        super().__init__(name, leaves)
        self._attend = attend

    def create(self, config: Config) -> None:
        super().create(config)
        network = RowNetwork(config.model, self._attend)
        self.context = config.context(self._leaves(config), network, recording=True)
        self._replayer = Replayer(self.context)

    def logits(self) -> F32 | None:
        return self.context.logits

    def ubatches(self) -> list[dict[str, Any]]:
        """What each ubatch of the last decode was: slots, masks, plans, as a trace has them."""
        return [record.json for record in self.context.records]

    def read_rows(self) -> Rows:
        """Keys and values of every used cell, and the states of every sequence."""
        picture = self.context.memory.snapshot()
        rows: dict[str, F32] = {}
        for name, leaf in self.context.memory.leaves().items():
            if name in picture.caches and leaf.store is not None:
                for stream, record in enumerate(picture.caches[name]):
                    cells = np.array([cell[0] for cell in record["cells"] if cell[1] >= 0], np.int32)
                    if len(cells):
                        rows |= _rows_of(f"{name}[{stream}]", leaf, stream, cells)
            elif picture.recurrent is not None and name == "recurrent":
                rows |= _states_of(leaf, picture.recurrent)
        return rows


def _rows_of(where: str, leaf: Any, stream: int, cells: NDArray[np.int32]) -> dict[str, F32]:
    rows: dict[str, F32] = {}
    for layer in leaf.spec.layers:
        raw = leaf.store.read_k(layer.il, stream, cells)
        rows[f"{where} keys of layer {layer.il}"] = _decoded(layer.k.name, raw, len(cells))
        if layer.v is not None:
            raw = leaf.store.read_v(layer.il, stream, cells)
            n = layer.n_embd_v_own if leaf.spec.v_trans else len(cells)
            rows[f"{where} values of layer {layer.il}"] = _decoded(layer.v.name, raw, n)
    return rows


def _decoded(type_name: str, raw: bytes, n: int) -> F32:
    return decode(type_name, np.frombuffer(raw, np.uint8).reshape(n, -1))


def _states_of(leaf: Any, record: dict[str, Any]) -> dict[str, F32]:
    """The row that the next token of each sequence would read."""
    rows: dict[str, F32] = {}
    for cell, _, source, _, _, owners in record["cells"]:
        for seq in owners if source >= 0 else ():
            at = record["rs_idx"][seq] * record["size"] + source
            for part, layers in leaf.store.rows.items():
                for il in layers:
                    data = np.frombuffer(leaf.store.read(part, il, [at]), "<f4")
                    rows[f"state {part} of sequence {seq} in layer {il} (cell {cell})"] = data
    return rows
