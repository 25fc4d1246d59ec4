"""Rotary position embedding: turn pairs of values by an angle that grows with the position.

Pair i of a head turns by ``pos * base^(-2i/n_rot)``, adjusted by frequency factors, the frequency scale
and YaRN. NORM pairs neighbours, NEOX pairs values half the rotated width apart::

    n_rot 8, NORM  0-1 2-3 4-5 6-7        n_rot 8, NEOX  0-4 1-5 2-6 3-7

M-RoPE gives each token four positions (time, y, x, extra); each pair uses one of them, and pairs as NEOX.

Upstream: ``ggml/src/ggml-cpu/ops.cpp: ggml_rope_cache_init, ggml_mrope_cache_init, rope_yarn``. Angles are
computed in float64 here, in float32 there. Left out: the vision variant, which no cache meets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvsim.errors import CacheUsageError

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rope:
    """How one layer rotates. ``n_rot`` values of each head from ``offset`` on; the rest stay.

    ``factors`` divides the angle of each pair. YaRN is on if ``ext_factor`` is not 0; then ``n_ctx_orig``
    is the context the model was trained on. ``sections`` (pairs for t, y, x, extra) selects M-RoPE,
    ``interleaved`` its variant that deals t, y, x out in turn.
    """

    n_rot: int
    offset: int = 0
    neox: bool = False
    base: float = 10000.0
    scale: float = 1.0
    factors: tuple[float, ...] | None = None
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0
    sections: tuple[int, int, int, int] | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.n_rot < 2 or self.n_rot % 2:
            raise CacheUsageError(f"n_rot {self.n_rot} does not make pairs: it must be even and positive")
        if self.ext_factor and self.n_ctx_orig < 1:
            raise CacheUsageError("YaRN (ext_factor is not 0) needs n_ctx_orig, the trained context length")

    @property
    def pairs_halves(self) -> bool:
        """Whether pairs lie half the width apart; M-RoPE always pairs so."""
        return self.neox or self.sections is not None

    @property
    def magnitude(self) -> float:
        """The factor by which rotated values grow: 1 but for YaRN and an attention factor."""
        yarn = 1.0 + 0.1 * math.log(1.0 / self.scale) if self.ext_factor else 1.0
        return self.attn_factor * yarn

    def frequencies(self) -> F64:
        """Angle per position step of each pair, ``float64[n_rot/2]``."""
        pair = np.arange(self.n_rot // 2)
        extrapolated = self.base ** (-2.0 * pair / self.n_rot)
        if self.factors is not None:
            extrapolated = extrapolated / np.asarray(self.factors)
        if not self.ext_factor:
            return self.scale * extrapolated
        low, high = self._correction(self.beta_fast), self._correction(self.beta_slow)
        low, high = max(0, math.floor(low)), min(self.n_rot - 1, math.ceil(high))
        ramp = np.clip((pair - low) / max(0.001, high - low), 0, 1)
        mix = self.ext_factor * (1 - ramp)
        mixed: F64 = self.scale * extrapolated * (1 - mix) + extrapolated * mix
        return mixed

    def _correction(self, beta: float) -> float:
        """The (fractional) pair that turns ``beta`` times over the trained context."""
        return self.n_rot * math.log(self.n_ctx_orig / (beta * 2 * math.pi)) / (2 * math.log(self.base))

    def section_of_pair(self) -> NDArray[np.intp]:
        """Which of the positions t, y, x, extra (0..3) each pair uses, ``[n_rot/2]``."""
        assert self.sections is not None
        slot = np.arange(self.n_rot // 2) % sum(self.sections)
        if not self.interleaved:
            return np.searchsorted(np.cumsum(self.sections), slot, side="right")
        turn = slot % 3
        return np.where(slot < 3 * np.asarray(self.sections)[turn], turn, 3)

    def cos_sin(self, pos: ArrayLike) -> tuple[F64, F64]:
        """Cosine and sine, times the magnitude, ``float64[n, n_rot/2]``.

        ``pos`` is ``int[n]``, with M-RoPE ``int[4, n]`` (t, y, x, extra). May be negative.
        """
        steps = np.asarray(pos, np.float64)
        per_pair = steps[:, None] if self.sections is None else steps[self.section_of_pair()].T
        angles = per_pair * self.frequencies()
        return np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude


def rope(x: NDArray[np.floating], pos: ArrayLike, params: Rope) -> NDArray[np.floating]:
    """Rotate ``x[token, ..., head_size]`` to the positions of its tokens; a new array of the same type.

    ``pos`` is ``int[token]``, with M-RoPE ``int[4, token]``. ``rope(rope(x, a), b) == rope(x, a+b)`` if the
    magnitude is 1. Raises CacheUsageError if the head is smaller than ``offset + n_rot``.
    """
    if params.offset + params.n_rot > x.shape[-1]:
        raise CacheUsageError(
            f"cannot rotate {params.n_rot} values from {params.offset} of a head of {x.shape[-1]}"
        )
    shape = (x.shape[0], *[1] * (x.ndim - 2), params.n_rot // 2)
    cos, sin = (table.astype(x.dtype).reshape(shape) for table in params.cos_sin(pos))
    out = x.copy()
    first, second = pair_views(out, params)
    a = first.copy()
    first[...] = a * cos - second * sin
    second[...] = a * sin + second * cos
    return out


def pair_views(x: NDArray[np.floating], params: Rope) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Views of the first and the second value of every pair, ``[..., n_rot/2]`` each."""
    part = x[..., params.offset : params.offset + params.n_rot]
    if params.pairs_halves:
        return part[..., : params.n_rot // 2], part[..., params.n_rot // 2 :]
    return part[..., 0::2], part[..., 1::2]
