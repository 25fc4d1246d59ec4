"""How full a recording's memory was after each operation, and in how many pieces its free cells lay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvsim.changes import PictureReader, largest_hole
from kvsim.trace import Header, Step


@dataclass
class Occupancy:
    """One cache over a recording: per operation its used cells, and the longest run of free ones.

    The cells of all its streams count together; a run lies within one stream.
    """

    cache: str
    size: int
    used: list[int] = field(default_factory=list)
    hole: list[int] = field(default_factory=list)

    @property
    def scattered(self) -> list[float]:
        """The share of the free cells outside of the longest run, 0 to 1, per operation."""
        free = (self.size - used for used in self.used)
        return [1 - hole / n if n else 0.0 for n, hole in zip(free, self.hole, strict=True)]


@dataclass
class History:
    """All caches of a recording, and the operations in which a decode failed, with what they answered."""

    caches: list[Occupancy]
    failed: dict[int, int] = field(default_factory=dict)
    n_steps: int = 0


def history(header: Header, steps: Iterable[Step]) -> History:
    """Read a recording through."""
    reader = PictureReader(header)
    sizes: dict[str, int] = {}
    for spec in reader.specs:
        sizes[spec.cache] = sizes.get(spec.cache, 0) + spec.size
    result = History([Occupancy(cache, size) for cache, size in sizes.items()])
    recurrent = header.config["recurrent"]
    states = Occupancy("recurrent", recurrent["size"]) if recurrent else None
    if states:
        result.caches.append(states)
    for step in steps:
        picture = reader.read(step.after)
        for one in result.caches[: len(sizes)]:
            lanes = [lane for lane in picture.lanes if lane.spec.cache == one.cache]
            one.used.append(sum(lane.used for lane in lanes))
            one.hole.append(max(largest_hole(lane.owners == 0)[0] for lane in lanes))
        if states and picture.recurrent:
            states.used.append(picture.recurrent["used"])
            held = {cell[0] for cell in picture.recurrent["cells"] if cell[5]}
            states.hole.append(_longest_gap(held, states.size))
        if step.op == "decode" and step.ret:
            result.failed[step.i] = step.ret
        result.n_steps += 1
    # pooled rows belong to positions, not to a slot search: their tables stay empty
    result.caches = [one for one in result.caches if any(one.used)]
    return result


def _longest_gap(held: set[int], size: int) -> int:
    longest = run = 0
    for i in range(size):
        run = 0 if i in held else run + 1
        longest = max(longest, run)
    return longest
