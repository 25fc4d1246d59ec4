"""The data types a cache may store its rows in, and how many bytes a row takes (kv_cache.md 1)."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import CacheUsageError


@dataclass(frozen=True)
class CacheType:
    """A ggml type: ``block`` values are stored together in ``n_bytes`` bytes."""

    name: str
    ggml_id: int
    block: int
    n_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block > 1

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of ``n`` values. Raises CacheUsageError if the block size does not divide n."""
        if n % self.block:
            raise CacheUsageError(
                f"a row of {n} values cannot be stored as {self.name}: its blocks hold {self.block} values; "
                f"choose a type with smaller blocks, such as f16"
            )
        return n // self.block * self.n_bytes


CACHE_TYPES: dict[str, CacheType] = {
    t.name: t
    for t in (
        CacheType("f32", 0, 1, 4),
        CacheType("f16", 1, 1, 2),
        CacheType("bf16", 30, 1, 2),
        CacheType("q8_0", 8, 32, 34),
        CacheType("q4_0", 2, 32, 18),
        CacheType("q4_1", 3, 32, 20),
        CacheType("iq4_nl", 20, 32, 18),
        CacheType("q5_0", 6, 32, 22),
        CacheType("q5_1", 7, 32, 24),
    )
}
"""Every type llama.cpp accepts for K and V, by name."""


def cache_type(name: str) -> CacheType:
    """The type called ``name``. Raises CacheUsageError naming the known ones."""
    try:
        return CACHE_TYPES[name]
    except (KeyError, TypeError):
        known = ", ".join(CACHE_TYPES)
        raise CacheUsageError(f"unknown cache type {name!r}: use one of {known}") from None
