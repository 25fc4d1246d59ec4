"""Opening GGUF model files: metadata and tensors, by way of the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import ModelError


class GGUFFile:
    """An open model file: its key-value pairs, and its tensors as float32 arrays.

    Tensors come with the slowest axis first (the reverse of ggml's order): a weight matrix is
    ``[out, in]``.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values
        self._tensors = tensors

    @property
    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor, decoded to float32. Raises ModelError if there is none of that name."""
        from gguf.quants import dequantize

        if name not in self._tensors:
            raise ModelError(f"{self.path}: no tensor {name!r}")
        tensor = self._tensors[name]
        values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        return values.astype(np.float32, copy=False)


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a model file. Raises ModelError if it is missing, damaged or not GGUF."""
    try:
        import gguf
    except ImportError:
        raise ModelError("reading model files needs the gguf package: pip install 'kvsim[models]'") from None
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file, or it is not a regular one")
    try:
        reader = gguf.GGUFReader(path)
        values = {name: _plain(field.contents()) for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the reader checks nothing: damage shows as any error
        raise ModelError(f"{path}: not a readable GGUF file: {type(error).__name__}: {error}") from error
    return GGUFFile(path, values, tensors)


def _plain(value: Any) -> Any:
    """Python numbers and lists in place of numpy's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
