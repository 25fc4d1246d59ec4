"""Attention by definition, and in the precision of flash attention."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CacheUsageError
from kvsim.tensors.attention import alibi_bias, alibi_slopes, attention, attention_weights
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.flash import as_operand, flash_attention, round_query

RNG = np.random.default_rng(2)


def by_definition(q, k, v, mask, scale, bias=None, sinks=None):
    """One head and token at a time."""
    n_token, n_head, _ = q.shape
    out = np.zeros((n_token, n_head, v.shape[2]))
    for h in range(n_head):
        g = h * k.shape[1] // n_head
        for t in range(n_token):
            cells = np.flatnonzero(mask[t])
            z = np.array([scale * q[t, h] @ k[c, g] + (0 if bias is None else bias[h, t, c]) for c in cells])
            e = np.exp(z)
            total = e.sum() + (np.exp(sinks[h]) if sinks is not None else 0)
            out[t, h] = (e[:, None] * v[cells, g]).sum(axis=0) / total
    return out


def case(n_head: int = 4, n_head_kv: int = 2, n_cell: int = 9, width: int = 8):
    rng = np.random.default_rng(2)
    q, k, v = (
        rng.normal(size=s) for s in ((3, n_head, width), (n_cell, n_head_kv, width), (n_cell, n_head_kv, 5))
    )
    mask = rng.random((3, n_cell)) < 0.6
    mask[:, 4] = True
    return q, k, v, mask


@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (4, 2), (6, 1)])
def test_equals_the_definition(n_head: int, n_head_kv: int) -> None:
    q, k, v, mask = case(n_head, n_head_kv)
    assert attention(q, k, v, mask, scale=0.3) == pytest.approx(by_definition(q, k, v, mask, 0.3))


def test_bias_and_sinks() -> None:
    q, k, v, mask = case()
    bias, sinks = RNG.normal(size=(4, 3, 9)), RNG.normal(size=4) * 3
    got = attention(q, k, v, mask, scale=0.3, bias=bias, sinks=sinks)
    assert got == pytest.approx(by_definition(q, k, v, mask, 0.3, bias, sinks))


def test_softcap_bounds_scores() -> None:
    q, k = np.array([[[1000.0]]]), np.array([[[1.0]], [[-1.0]]])
    weights = attention_weights(q, k, np.ones((1, 2), bool), scale=1.0, softcap=2.0)
    assert weights[0, 0] == pytest.approx([1 / (1 + np.exp(-4)), 1 / (1 + np.exp(4))])


def test_unseen_cells_are_never_read() -> None:
    """A freed cell may hold anything, also NaN."""
    q, k, v, mask = case()
    mask[:, 2] = False
    want = attention(q, k, v, mask, scale=1.0)
    k[2], v[2] = np.nan, np.nan
    assert np.array_equal(attention(q, k, v, mask, scale=1.0), want)
    got = flash_attention(q, k, v, mask, scale=1.0, type_k="f16", type_v="f16")
    assert np.isfinite(got).all()


@pytest.mark.parametrize("sinks", [None, np.zeros(4)])
def test_a_token_that_sees_nothing_reads_zero(sinks: np.ndarray | None) -> None:
    q, k, v, mask = case()
    mask[1] = False
    assert not attention(q, k, v, mask, scale=1.0, sinks=sinks)[1].any()
    got = flash_attention(q, k, v, mask, scale=1.0, type_k="f16", type_v="f16", sinks=sinks)
    assert not got[1].any()
    assert got[0].any()


def test_a_mask_may_differ_by_head() -> None:
    q, k, v, mask = case()
    heads = np.stack([mask, mask, ~mask, ~mask])
    got = attention(q, k, v, heads, scale=1.0)
    assert got[:, :2] == pytest.approx(attention(q, k, v, mask, scale=1.0)[:, :2])
    assert got[:, 2:] == pytest.approx(attention(q, k, v, ~mask, scale=1.0)[:, 2:])


def test_absorbed_mla_equals_expanded_heads() -> None:
    """Keys [latent | rope] with queries times the up-projection: the same as a key per head."""
    n_head, latent, nope, turned, n_cell = 3, 6, 4, 2, 5
    up_k, up_v = RNG.normal(size=(n_head, nope, latent)), RNG.normal(size=(n_head, 4, latent))
    row = RNG.normal(size=(n_cell, latent + turned))
    q = RNG.normal(size=(2, n_head, nope + turned))
    mask = np.ones((2, n_cell), bool)
    keys = np.concatenate(
        [np.einsum("hnl,cl->chn", up_k, row[:, :latent]), np.repeat(row[:, None, latent:], n_head, axis=1)],
        -1,
    )
    values = np.einsum("hnl,cl->chn", up_v, row[:, :latent])
    absorbed = np.concatenate([np.einsum("thn,hnl->thl", q[..., :nope], up_k), q[..., nope:]], -1)
    read = attention(absorbed, row[:, None], row[:, None, :latent], mask, scale=0.4)
    assert np.einsum("hnl,thl->thn", up_v, read) == pytest.approx(attention(q, keys, values, mask, scale=0.4))


def test_precision_is_kept() -> None:
    q, k, v, mask = case()
    single = attention(*(a.astype(np.float32) for a in (q, k, v)), mask, scale=0.3)
    assert single.dtype == np.float32


def test_uneven_heads_are_refused() -> None:
    q, k, v, mask = case(n_head=4, n_head_kv=3)
    with pytest.raises(CacheUsageError, match="4 query heads cannot share 3 key heads"):
        attention(q, k, v, mask, scale=1.0)


@pytest.mark.parametrize(
    ("n_head", "slopes"),
    [(4, [2**-2, 2**-4, 2**-6, 2**-8]), (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]), (1, [2**-8])],
)
def test_alibi_slopes(n_head: int, slopes: list[float]) -> None:
    assert alibi_slopes(n_head).tolist() == slopes


def test_alibi_bias_is_slope_times_distance() -> None:
    bias = alibi_bias(np.array([0.5, 0.25], np.float32), np.array([0, 4]), np.array([4]))
    assert bias.tolist() == [[[-2.0, 0.0]], [[-1.0, 0.0]]]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_1"])
def test_flash_attention_is_near_the_definition(kind: str) -> None:
    q, k, v, mask = case(width=32)
    k = decode(kind, encode(kind, k))
    v = v if "q" in kind else decode(kind, encode(kind, v))
    sinks, bias = np.array([0.5, -1, 2, 0]), -RNG.random((4, 3, 9))
    args = {"scale": 0.2, "softcap": 5.0, "bias": bias, "sinks": sinks}
    got = flash_attention(q, k, v, mask, type_k=kind, type_v="f16" if "q" in kind else kind, **args)
    error = np.abs(got - attention(q, k, v, mask, **args)).max()
    assert 0 < error < 0.02


def test_flash_attention_collects_in_f16() -> None:
    """2048 + 1 is 2048 in f16: the second cell is lost, unless V collects in f32."""
    q, k, v = np.zeros((1, 1, 2)), np.zeros((2, 1, 2)), np.array([[[2048.0]], [[1.0]]])
    mask = np.ones((1, 2), bool)
    assert flash_attention(q, k, v, mask, scale=1.0, type_k="f16", type_v="f16") == 1024.0
    assert flash_attention(q, k, v, mask, scale=1.0, type_k="f16", type_v="bf16") == 1024.5


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_queries_round_to_the_float_type_that_multiplies(kind: str) -> None:
    """f32 rows are read as f16, in which 1 + 2^-12 is 1."""
    assert round_query(np.full((1, 1, 4), 1 + 2**-12), kind).tolist() == [[[1.0] * 4]]


def test_queries_round_to_q8_0_for_quantised_keys() -> None:
    q = np.linspace(-1.27, 1.27, 32)[None, None]
    assert np.array_equal(round_query(q, "q4_0"), decode("q8_0", encode("q8_0", q)))


def test_operands_round_to_float_rows() -> None:
    x = np.array([1 + 2**-12])
    assert as_operand(x, "f32") == x
    assert as_operand(x, "f16") == 1.0
