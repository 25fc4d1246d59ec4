"""Goldens of recurrent states: one prefix ``s<k>.l<layer>.`` per decode and recurrent layer.

Everything is rebuilt from the rows before: the rows after must be equal in every plane and every cell,
those included that the ubatch had nothing to do with. The scans run in float64 from float32 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.tensors import scan
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact

STATE = 9.6e-7
SCAN_OUT = 1.8e-6
DELTA_STATE = 2.4e-7
DELTA_OUT = 1.7e-8


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks: list[ArrayCheck] = []
    for name, args, *_ in meta["ops"]:
        if name == "decode":
            for layer in meta["layers"]:
                checks += _check_layer(_Layer(arrays, meta, args, f"{args['prefix']}l{layer}."))
    return checks


class _Layer:
    """The arrays of one layer in one ubatch."""

    def __init__(self, arrays: Arrays, meta: Meta, args: Meta, prefix: str) -> None:
        self.arrays, self.prefix = arrays, prefix
        self.head, self.rs_z, self.size = args["head"], args["rs_z"], meta["size"]
        self.n_planes = args["n_rs_seq"] + 1
        self.s_copy = arrays[f"{args['prefix']}s_copy"]
        self.n_seqs = args["ubatch"]["n_seqs"]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[self.prefix + name]

    def f64(self, *names: str) -> Iterator[NDArray[np.float64]]:
        return (self[name].astype(np.float64) for name in names)


def _check_layer(layer: _Layer) -> Iterator[ArrayCheck]:
    yield _check_conv(layer)
    if "scan_x" in layer:
        yield from _check_scan(layer)
    if "dn_q" in layer:
        yield from _check_delta_net(layer)


def _check_conv(layer: _Layer) -> ArrayCheck:
    rows = layer["r_before"].copy()
    states = scan.gather(rows, layer.s_copy, layer.rs_z)
    x = layer["conv_in"]
    window = scan.conv_window(states[: layer.n_seqs], x)
    snapshots = scan.conv_snapshots_all if "dn_q" in layer else scan.conv_snapshots
    scan.scatter(rows, states, snapshots(window, x.shape[-1], layer.n_planes), layer.head, layer.size)
    return exact(layer.prefix + "r_after", rows, layer["r_after"])


def _check_scan(layer: _Layer) -> Iterator[ArrayCheck]:
    x, dt, a, b, c = layer.f64("scan_x", "scan_dt", "A", "scan_B", "scan_C")
    rows = layer["s_before"].copy()
    states = scan.gather(rows, layer.s_copy, layer.rs_z)
    start = states[: layer.n_seqs].reshape(len(x), *x.shape[2:], -1).astype(np.float64)
    y, snapshots = scan.ssm_scan(start, x, dt, a, b, c, layer.n_planes)
    scan.scatter(rows, states, snapshots, layer.head, layer.size)
    yield close(layer.prefix + "scan_y", y, layer["scan_y"], SCAN_OUT)
    yield close(layer.prefix + "s_after", rows, layer["s_after"], STATE)


def _check_delta_net(layer: _Layer) -> Iterator[ArrayCheck]:
    q, k, v, gate, beta = layer.f64("dn_q", "dn_k", "dn_v", "dn_gate", "dn_beta")
    rows = layer["s_before"].copy()
    states = scan.gather(rows, layer.s_copy, layer.rs_z)
    start = states[: layer.n_seqs].reshape(*v[:, 0].shape, q.shape[-1]).astype(np.float64)
    out, snapshots = scan.delta_net(start, q, k, v, gate, beta, layer.n_planes)
    scan.scatter(rows, states, snapshots, layer.head, layer.size)
    yield close(layer.prefix + "dn_out", out, layer["dn_out"], DELTA_OUT)
    yield close(layer.prefix + "s_after", rows, layer["s_after"], DELTA_STATE)
