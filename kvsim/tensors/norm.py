"""The normalisation that stored rows go through."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Divide each last-axis row by its root mean square, times ``weight[d]``."""
    scaled: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return scaled
