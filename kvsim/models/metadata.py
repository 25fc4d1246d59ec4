"""Typed access to a model file's metadata, under the GGUF names without the architecture prefix."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kvsim.errors import ModelError
from kvsim.models.record import MAX_WIDTH

MISSING = object()


class Metadata:
    """The key-value part of a GGUF file: ``integer("block_count")`` is ``<arch>.block_count``.

    ``tensors`` are the names of the file's tensors. Every getter raises ModelError naming the key if
    it is missing (and has no default), of the wrong type or out of range.
    """

    def __init__(self, values: Mapping[str, Any], tensors: Collection[str] = ()) -> None:
        self.values = values
        self.tensors = tensors
        arch = values.get("general.architecture")
        if not isinstance(arch, str):
            raise ModelError(f"general.architecture must be a string, not {arch!r}: no language model")
        self.arch = arch

    def get(self, key: str, default: object = MISSING) -> Any:
        value = self.values.get(f"{self.arch}.{key}", default)
        if value is MISSING:
            raise ModelError(f"{self.arch}.{key} is missing")
        return value

    def fail(self, key: str, value: object, want: str) -> ModelError:
        return ModelError(f"{self.arch}.{key} = {value!r} must be {want}")

    def integer(self, key: str, default: object = MISSING, hi: int = MAX_WIDTH) -> int:
        """An integer in [0, hi]."""
        return self._integer(key, self.get(key, default), hi)

    def _integer(self, key: str, value: object, hi: int = MAX_WIDTH) -> int:
        if not isinstance(value, int) or not 0 <= value <= hi:
            raise self.fail(key, value, f"an integer from 0 to {hi}")
        return int(value)

    def number(self, key: str, default: object = MISSING) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self.fail(key, value, "a number")
        return float(value)

    def text(self, key: str, default: object = MISSING) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, value, "a string")
        return value

    def has_list(self, key: str) -> bool:
        return isinstance(self.get(key, None), list)

    def integers(self, key: str, default: object = MISSING) -> list[int]:
        """A list of integers of any length."""
        value = self.get(key, default)
        if not isinstance(value, list):
            raise self.fail(key, value, "a list")
        return [self._integer(key, v) for v in value]

    def per_layer(self, key: str, n: int, default: object = MISSING) -> list[int]:
        """One integer per block: the file has a list of at least ``n``, or one value for all."""
        value = self.get(key, default)
        if not isinstance(value, list):
            return [self._integer(key, value)] * n
        if len(value) < n:
            raise self.fail(key, value, f"a list of {n} values, one per block")
        return [self._integer(key, v) for v in value[:n]]
