"""Recurrent states: the rows around a scan, snapshots, and rolling back to them (spec recurrent.md)."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.tensors import scan

rng = np.random.default_rng(2)


def test_zeroing_happens_before_the_gather_and_in_place() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    states = scan.gather(rows, np.array([1, 0]), rs_z=1)
    assert states.tolist() == [[0, 0], [0, 1]]
    assert rows.tolist() == [[0, 1], [0, 0], [4, 5]]


def test_surprise11_zeroing_keeps_nan() -> None:
    rows = np.array([[np.nan, np.inf, 1.0]])
    assert np.isnan(scan.gather(rows, np.array([0]), rs_z=0)[0, :2]).all()


def test_states_that_only_moved_are_written_as_they_were() -> None:
    rows = np.arange(4.0)[:, None].copy()
    states = scan.gather(rows, np.array([2, 0, 1]), rs_z=-1)
    scan.scatter(rows, states, [np.array([[9.0]])], head=0, size=4)
    assert rows[:, 0].tolist() == [9, 0, 1, 3]


def test_snapshots_go_to_their_planes() -> None:
    rows = np.zeros((6, 1))
    states = scan.gather(rows, np.array([1]), rs_z=-1)
    scan.scatter(rows, states, [np.array([[5.0]]), np.array([[4.0]])], head=1, size=3)
    assert rows[:, 0].tolist() == [0, 5, 0, 0, 4, 0]


@pytest.mark.parametrize("n_tokens", [1, 2, 5])
def test_conv_snapshots_are_the_inputs_before_each_of_the_last_tokens(n_tokens: int) -> None:
    window = np.arange(3 + n_tokens)[None, None]
    kept = [s[0, 0].tolist() for s in scan.conv_snapshots(window, n_tokens, 3)]
    assert kept == [[n_tokens - d, n_tokens - d + 1, n_tokens - d + 2] for d in range(min(n_tokens, 3))]
    every = [s[0, 0].tolist() for s in scan.conv_snapshots_all(window, n_tokens, 3)]
    assert every[: len(kept)] == kept
    assert all(s == [0, 1, 2] for s in every[n_tokens:])


def test_causal_conv_is_a_correlation_with_the_newest_input_last() -> None:
    window = np.array([[[1.0, 2, 3, 4], [5, 6, 7, 8]]])
    kernel = np.array([[0.0, 0, 1], [1, 0, -1]])
    assert scan.causal_conv(window, kernel).tolist() == [[[3, 4], [-2, -2]]]


def test_softplus_is_the_identity_above_20() -> None:
    assert scan.softplus(np.array([0.0, 21.0])).tolist() == [np.log(2), 21.0]


def ssm_inputs(n_tokens: int) -> tuple[np.ndarray, ...]:
    x, dt = rng.normal(size=(2, n_tokens, 4, 3)), rng.normal(size=(2, n_tokens, 4))
    return x, dt, -np.abs(rng.normal(size=(4, 1))), *rng.normal(size=(2, 2, n_tokens, 2, 5))


def test_ssm_scan_by_the_formula() -> None:
    x, dt, a, b, c = ssm_inputs(1)
    start = rng.normal(size=(2, 4, 3, 5))
    y, (state,) = scan.ssm_scan(start, x, dt, a, b, c, n_planes=1)
    d = np.log1p(np.exp(dt[1, 0, 3]))  # head 3 reads group 1
    want = start[1, 3] * np.exp(d * a[3, 0]) + np.outer(x[1, 0, 3] * d, b[1, 0, 1])
    assert np.allclose(state[1, 3], want)
    assert np.allclose(y[1, 0, 3], want @ c[1, 0, 1])


def test_ssm_snapshot_d_is_the_state_d_tokens_earlier() -> None:
    """R11: a rollback of d tokens restores exactly what stopping d tokens earlier gives."""
    x, dt, a, b, c = ssm_inputs(4)
    start = rng.normal(size=(2, 4, 3, 5))
    _, planes = scan.ssm_scan(start, x, dt, a, b, c, n_planes=3)
    assert len(planes) == 3
    for d, plane in enumerate(planes):
        n = 4 - d
        _, (earlier, *_) = scan.ssm_scan(start, x[:, :n], dt[:, :n], a, b[:, :n], c[:, :n], n_planes=1)
        assert (plane == earlier).all()


def test_short_ubatch_has_fewer_snapshots() -> None:
    x, dt, a, b, c = ssm_inputs(2)
    assert len(scan.ssm_scan(np.zeros((2, 4, 3, 5)), x, dt, a, b, c, n_planes=4)[1]) == 2


@pytest.mark.parametrize("gates", [1, 6])
def test_delta_net_learns_what_it_is_shown(gates: int) -> None:
    """With rate 1 and no decay, a unit key recalls its value at once, and another key does not disturb it."""
    q = k = np.eye(6)[None, :2, None]  # two orthogonal keys for one key head
    v = rng.normal(size=(1, 2, 3, 6))
    gate, beta = np.zeros((1, 2, 3, gates)), np.ones((1, 2, 3))
    out, planes = scan.delta_net(np.zeros((1, 3, 6, 6)), q, k, v, gate, beta, n_planes=2)
    assert np.allclose(out * np.sqrt(6), v)
    assert np.allclose(planes[0][0, :, :, 0], v[0, 0])
    assert np.allclose(planes[1][0, :, :, 1], 0)


def test_kda_decays_each_key_dimension_by_itself() -> None:
    gate = np.log(np.array([0.5, 1.0, 0.25])).reshape(1, 1, 1, 3)
    zero = np.zeros((1, 1, 1, 3))
    _, (state,) = scan.delta_net(np.ones((1, 1, 3, 3)), zero, zero, zero, gate, np.ones((1, 1, 1)), 1)
    assert np.allclose(state[0, 0], [[0.5, 1.0, 0.25]] * 3)


def test_delta_net_heads_take_key_heads_in_turn() -> None:
    k = np.zeros((1, 1, 2, 2))
    k[0, 0, 0, 0] = k[0, 0, 1, 1] = 1
    v = np.ones((1, 1, 4, 2))
    _, (state,) = scan.delta_net(
        np.zeros((1, 4, 2, 2)), k, k, v, np.zeros((1, 1, 4, 1)), np.ones((1, 1, 4)), 1
    )
    assert [int(np.argmax(state[0, h, 0])) for h in range(4)] == [0, 1, 0, 1]
