"""A memory that knows nothing but where sequences end, for tests of batches."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ends:
    """Last position of each sequence; those that are not listed are empty, the others start at 0."""

    last: dict[int, int] = field(default_factory=dict)

    def seq_pos_min(self, seq: int) -> int:
        return 0 if self.last.get(seq, -1) >= 0 else -1

    def seq_pos_max(self, seq: int) -> int:
        return self.last.get(seq, -1)
