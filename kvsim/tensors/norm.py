"""The two normalisations that stored rows go through."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Divide each last-axis row by its root mean square, times ``weight[d]``."""
    scaled: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return scaled


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Centre each last-axis row, divide by its standard deviation, times ``weight``, plus ``bias``."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    scaled: Floats = centred / np.sqrt(variance + eps) * weight + bias
    return scaled
