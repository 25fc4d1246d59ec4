"""Sliding windows by architecture: type, width, which blocks have one, and their rope (models.md 4).

Source: ``load_arch_hparams`` in ``src/models/*.cpp``, ``load_swa_pattern`` in ``src/llama-model.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.models.metadata import Metadata
from kvsim.models.params import SwaType


@dataclass(frozen=True)
class WindowRule:
    """How an architecture gets its window.

    ``default`` is the width if the file gives none (None: the file must; 0: no window then);
    ``fixed`` replaces whatever the file gives. ``pattern`` n: block il is dense if il % n == n - 1, or
    il % n == 0 with ``dense_first``; 0: no block is; a list or a period in the file overrides it; None:
    the file must have the list. ``inherits``: window blocks turn like the others unless the file says
    more (``inherits_scale``: their rope scale too), else with base 10000 and scale 1.
    """

    pattern: int | None
    default: int | None = None
    fixed: int | None = None
    dense_first: bool = False
    type: SwaType = SwaType.STANDARD
    inherits: bool = False
    inherits_scale: bool = False


def _like_base(pattern: int | None, default: int | None = None, dense_first: bool = False) -> WindowRule:
    return WindowRule(pattern, default, dense_first=dense_first, inherits=True, inherits_scale=True)


WINDOWS: dict[str, WindowRule] = {
    "afmoe": _like_base(4, 0),
    "cohere2": _like_base(4),
    "cohere2moe": _like_base(4, dense_first=True),
    "deepseek4": WindowRule(0),
    "dflash": _like_base(None, 0),
    "dots3note": WindowRule(None),
    "exaone-moe": _like_base(4),
    "exaone4": _like_base(4, 4096),
    "gemma-embedding": WindowRule(6, type=SwaType.SYMMETRIC),
    "gemma2": _like_base(2, 4096),
    "gemma3": WindowRule(6, 0),
    "gemma3n": WindowRule(5),
    "gemma4": WindowRule(None),
    "gemma4-assistant": WindowRule(None),
    "gpt-oss": _like_base(2),
    "granite_swa": WindowRule(None),
    "laguna": WindowRule(4, 0, dense_first=True, inherits=True),
    "lfm2": WindowRule(None, 0),
    "llama4": WindowRule(4, 8192, fixed=8192, type=SwaType.CHUNKED, inherits=True, inherits_scale=True),
    "maple": _like_base(None),
    "mellum": _like_base(4, 0),
    "mimo2": WindowRule(None),
    "modern-bert": WindowRule(3, 0, dense_first=True, type=SwaType.SYMMETRIC),
    "muse-glimmer": WindowRule(4, inherits=True),
    "olmo2": WindowRule(4, 0, inherits=True),
    "plamo3": WindowRule(8, 0),
    "smallthinker": WindowRule(4, 0, fixed=4096, dense_first=True, inherits=True, inherits_scale=True),
    "spark2_5": _like_base(None),
    "step35": WindowRule(None),
}
"""Architectures not listed have no window, whatever the file says (Phi-3 among them)."""


@dataclass(frozen=True)
class Window:
    """A model's window: ``is_swa`` per block; base and scale of the rope of window blocks."""

    n_swa: int
    type: SwaType
    is_swa: list[bool]
    freq_base: float
    freq_scale: float


def window_of(
    meta: Metadata, n_layer_all: int, n_layer: int, is_recr: list[bool], rope: tuple[float, float]
) -> Window:
    """The window of the model in ``meta``; ``rope`` is (base, scale) of its other blocks."""
    rule = WINDOWS.get(meta.arch)
    none = Window(0, SwaType.NONE, [False] * n_layer_all, 10000.0, 1.0)
    if rule is None or (meta.arch == "exaone4" and n_layer != 64):
        return none
    n_swa = (
        meta.integer("attention.sliding_window")
        if rule.default is None
        else meta.integer("attention.sliding_window", rule.default)
    )
    if n_swa == 0 and rule.default is not None:
        return none
    base, scale = rope if rule.inherits else (10000.0, 1.0)
    return Window(
        n_swa=rule.fixed or n_swa,
        type=rule.type,
        is_swa=_blocks(meta, rule, n_layer_all, n_layer, is_recr),
        freq_base=meta.number("rope.freq_base_swa", base),
        freq_scale=scale if rule.inherits_scale else 1.0,
    )


def _blocks(
    meta: Metadata, rule: WindowRule, n_layer_all: int, n_layer: int, is_recr: list[bool]
) -> list[bool]:
    key = "attention.sliding_window_pattern"
    if meta.arch == "lfm2":  # every attention block
        return [il < n_layer and not recr for il, recr in enumerate(is_recr)]
    if meta.arch == "deepseek4":  # the prediction heads too
        return [True] * n_layer_all
    if meta.has_list(key):
        flags = [bool(v) for v in meta.integers(key)]
        return (flags + [False] * n_layer_all)[:n_layer_all]
    period = meta.integer(key) if rule.pattern is None else meta.integer(key, rule.pattern)
    if rule.pattern is None:
        raise meta.fail(key, period, "a list with one entry per block")
    dense = 0 if rule.dense_first else period - 1
    return [il < n_layer and (period == 0 or il % period != dense) for il in range(n_layer_all)]
