"""A KV cache split over devices by KV head (``--split-mode tensor``).

Every device holds all cells, but of each row only the heads that are its own, and computes attention for the
query heads that read them; laid side by side, the results are those of one device::

    row        head 0 | head 1 | head 2 | head 3      3 devices
    device 0   head 0
    device 1   head 1
    device 2   head 2 | head 3

Positions and owners of cells are known to all. A quantised row is made of blocks, and a device can view its
part only if that begins and ends with a block: a split that breaks one is refused.

Upstream: ``src/llama-model.cpp: llama_meta_device_get_split_state``, ``ggml/src/ggml-backend-meta.cpp``. Left
out: recurrent states (split by state head), indexer caches, DeepSeek-V4 and latent rows, of which llama.cpp
gives every device a whole copy or refuses to split the model; transposed values, since a split needs flash
attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, IntArray
from kvsim.models.cache_spec import CacheSpec, LayerSpec
from kvsim.models.cache_types import CacheType
from kvsim.models.params import ModelParams
from kvsim.tensors.attention import attention
from kvsim.tensors.store import KVStore

Floats = NDArray[np.floating[Any]]

EFFICIENT_BLOCK = 128
"""Parts are made multiples of this many values as long as every device can still get some."""


def heads_per_part(n_gqa: int, head_size: int, n_devices: int, weight_block: int = 1) -> int:
    """How many KV heads are dealt out at a time (``get_split_granularity``).

    ``n_gqa`` query heads share a KV head of ``head_size`` key values. ``weight_block`` is the block size of
    the type in which the output projection is stored: its rows are split where the query heads are.
    """
    width = n_gqa * head_size
    block = weight_block
    while block < EFFICIENT_BLOCK and block * n_devices < width:
        block *= 2
    return lcm(width, block) // width


def split_heads(
    n_head_kv: int,
    n_devices: int,
    *,
    n_gqa: int = 1,
    head_size: int = 64,
    weight_block: int = 1,
    shares: Sequence[float] | None = None,
    rotation: int = 0,
) -> tuple[int, ...]:
    """KV heads of each device, by llama.cpp's rule: evenly or by ``shares``, rounded down to whole parts, the
    rest to the last one. Devices may get none.

    ``rotation`` says at which device the dealing begins; llama.cpp takes the number of earlier layers of the
    same kind, so that the rest does not always go to the same device.
    """
    if n_devices < 1 or (shares is not None and (len(shares) != n_devices or min(shares) < 0)):
        raise CacheUsageError(
            f"cannot split over {n_devices} devices with shares {shares}: give 1 or more devices, and one "
            "share of 0 or more for each, or none at all"
        )
    dealt = [(j + rotation) % n_devices for j in range(n_devices)]
    reach = np.cumsum([0 if shares is None else shares[device] for device in dealt], dtype=np.float32)
    part = heads_per_part(n_gqa, head_size, n_devices, weight_block)
    heads, low = [0] * n_devices, 0
    for j, device in enumerate(dealt):
        if j == n_devices - 1:
            high = n_head_kv
        elif reach[-1] == 0:
            high = n_head_kv * (j + 1) // n_devices // part * part
        else:
            n_values = np.float32(n_head_kv * head_size) * reach[j] / reach[-1]  # rounded as in C++
            high = int(n_values) // (part * head_size) * part
        heads[device], low = high - low, high
    return tuple(heads)


def split_cache(
    spec: CacheSpec,
    model: ModelParams,
    n_devices: int,
    *,
    n_gqa: int = 1,
    weight_block: int = 1,
    shares: Sequence[float] | None = None,
) -> dict[int, tuple[int, ...]]:
    """KV heads of each device in each layer of a cache; the arguments are those of :func:`split_heads`."""
    return {
        layer.il: split_heads(
            layer.n_head_kv,
            n_devices,
            n_gqa=n_gqa,
            head_size=layer.n_embd_head_k,
            weight_block=weight_block,
            shares=shares,
            rotation=_earlier_layers_alike(model, layer.il) % n_devices,
        )
        for layer in spec.layers
    }


def _earlier_layers_alike(model: ModelParams, il: int) -> int:
    kinds = [(layer.is_recr, layer.is_swa) for layer in model.layers]
    return kinds[:il].count(kinds[il])


@dataclass(frozen=True)
class LayerSplit:
    """One layer's rows over devices: ``heads[d]`` KV heads each, in the order of the devices.

    Raises CacheUsageError if the heads are not those of the layer, or a device's part of a row is no whole
    number of blocks.
    """

    layer: LayerSpec
    heads: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.heads, default=-1) < 0 or sum(self.heads) != self.layer.n_head_kv:
            raise CacheUsageError(
                f"layer {self.layer.il} has {self.layer.n_head_kv} KV heads; {self.heads} deals out others"
            )
        for what, kind, n_values in self._rows():
            for device, heads in enumerate(self.heads):
                self._check_blocks(what, kind, n_values // self.layer.n_head_kv, device, heads)

    def _rows(self) -> list[tuple[str, CacheType, int]]:
        rows = [("K", self.layer.k, self.layer.n_embd_k)]
        return rows if self.layer.v is None else [*rows, ("V", self.layer.v, self.layer.n_embd_v)]

    def _check_blocks(self, what: str, kind: CacheType, head_size: int, device: int, heads: int) -> None:
        over = heads * head_size % kind.block
        if over:
            raise CacheUsageError(
                f"layer {self.layer.il}: device {device} would get {heads} {what} heads of {head_size} "
                f"values, {over} more than whole blocks of {kind.name} ({kind.block} values), so that one "
                f"block would lie on two devices; llama.cpp aborts. Give it {_fitting(kind, head_size)} "
                f"heads, or use f16"
            )

    def first_head(self, device: int) -> int:
        return sum(self.heads[:device])

    def spec_of(self, device: int) -> LayerSpec:
        """The layer as one device stores it."""
        share, whole = self.heads[device], self.layer.n_head_kv
        layer = self.layer
        return replace(
            layer,
            n_head_kv=share,
            n_embd_k=layer.n_embd_k // whole * share,
            n_embd_v=layer.n_embd_v // whole * share,
            n_embd_v_own=layer.n_embd_v_own // whole * share,
        )

    def k_bytes(self, device: int) -> slice:
        """Where the device's part lies in a whole K row, in bytes."""
        return self._part(device, self.layer.row_k)

    def v_bytes(self, device: int) -> slice:
        """Where the device's part lies in a whole V row, in bytes."""
        return self._part(device, self.layer.row_v)

    def _part(self, device: int, row_bytes: int) -> slice:
        at, whole = self.first_head(device), self.layer.n_head_kv
        return slice(row_bytes * at // whole, row_bytes * (at + self.heads[device]) // whole)


def _fitting(kind: CacheType, head_size: int) -> str:
    """How many heads fill whole blocks."""
    return f"a multiple of {lcm(kind.block, head_size) // head_size}"


class SplitStore:
    """The rows of a cache on several devices: ``devices[d]`` is the store of device d, which lacks the layers
    of which it has no head."""

    def __init__(self, whole: KVStore, heads: Mapping[int, Sequence[int]]) -> None:
        """Split the rows of ``whole``; ``heads[il]`` are the KV heads of each device in layer ``il``.

        Raises CacheUsageError, before anything is copied, for transposed values and as :class:`LayerSplit`.
        """
        if whole.v_trans and whole.v:
            raise CacheUsageError(
                "values stored transposed cannot be split over devices; llama.cpp refuses a tensor split "
                "without flash attention. Turn that on"
            )
        self.splits = {il: LayerSplit(layer, tuple(heads[il])) for il, layer in whole.layers.items()}
        counts = {len(split.heads) for split in self.splits.values()}
        if len(counts) > 1:
            raise CacheUsageError(f"the layers are split over different numbers of devices: {sorted(counts)}")
        self.whole_shape = (whole.n_stream, whole.size, whole.v_trans)
        self.devices = [self._part_of(whole, device) for device in range(max(counts, default=0))]

    def _part_of(self, whole: KVStore, device: int) -> KVStore:
        mine = {il: split for il, split in self.splits.items() if split.heads[device]}
        shifts = {
            il: replace(whole.shifts[il], n_head=split.heads[device])
            for il, split in mine.items()
            if il in whole.shifts
        }
        specs = [split.spec_of(device) for split in mine.values()]
        part = KVStore(specs, whole.n_stream, whole.size, whole.v_trans, shifts)
        for il, split in mine.items():
            part.k[il][...] = whole.k[il][..., split.k_bytes(device)]
            if il in part.v:
                part.v[il][...] = whole.v[il][..., split.v_bytes(device)]
        return part

    @property
    def n_bytes(self) -> list[int]:
        """Bytes of rows on each device."""
        return [part.n_bytes for part in self.devices]

    def gather(self) -> KVStore:
        """The whole rows, put together from the devices."""
        n_stream, size, v_trans = self.whole_shape
        whole = KVStore([split.layer for split in self.splits.values()], n_stream, size, v_trans)
        for device, part in enumerate(self.devices):
            for il in part.k:
                whole.k[il][..., self.splits[il].k_bytes(device)] = part.k[il]
            for il in part.v:
                whole.v[il][..., self.splits[il].v_bytes(device)] = part.v[il]
        return whole

    def write(self, il: int, stream: int, cells: IntArray, k: Floats, v: Floats | None = None) -> None:
        """Store new rows, ``k [token, n_embd_k]`` and ``v [token, n_embd_v]``: each device its heads."""
        split = self.splits[il]
        for device, part in enumerate(self.devices):
            if il in part.k:
                part.encode_k(il, stream, cells, _heads_of(k, split, device))
            if il in part.v and v is not None:
                part.encode_v(il, stream, cells, _heads_of(v, split, device))

    def apply_shift(self, shift: IntArray) -> None:
        """Turn all keys, each device its own; arguments as for :meth:`KVStore.apply_shift`."""
        for part in self.devices:
            part.apply_shift(shift)

    def attend(self, il: int, stream: int, q: Floats, mask: BoolArray, *, scale: float) -> Floats:
        """What ``q [token, head, dim]`` reads of the first cells of a stream, as many as ``mask [token,
        cell]`` has columns: computed by device, laid side by side."""
        split, n_kv = self.splits[il], mask.shape[-1]
        n_gqa = q.shape[1] // split.layer.n_head_kv
        outs = []
        for device, part in enumerate(self.devices):
            n_heads, first = split.heads[device], split.first_head(device)
            if not n_heads:
                continue
            k = part.decode_k(il, stream, slice(0, n_kv)).reshape(n_kv, n_heads, -1)
            v = part.decode_v(il, stream, slice(0, n_kv)).reshape(n_kv, n_heads, -1)
            mine = q[:, first * n_gqa : (first + n_heads) * n_gqa]
            outs.append(attention(mine, k, v, mask, scale=scale))
        return np.concatenate(outs, axis=1)


def _heads_of(rows: Floats, split: LayerSplit, device: int) -> Floats:
    """The values of a device's heads out of whole rows."""
    size, first = rows.shape[1] // split.layer.n_head_kv, split.first_head(device)
    return rows[:, first * size : (first + split.heads[device]) * size]


def workspace_bytes(n_devices: int, n_embd: int, n_ubatch: int) -> int:
    """Bytes of the buffers in which each device adds up what the others computed.

    After the output projection every device has a part of the sum for all ``n_embd`` values of all tokens.
    The generic way to add them up takes ``ceil(log2(n))`` steps, each with a buffer for the largest such
    tensor in f32, on every device alike, whatever heads it has (``ggml_backend_meta_graph_compute``). They
    are made with the first full ubatch, and none for one device.
    """
    return ceil(log2(n_devices)) * n_embd * n_ubatch * 4 if n_devices > 1 else 0
