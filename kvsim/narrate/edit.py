"""What one operation changed, ready to be told."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.changes import Lane, OwnerTable, Picture, changed_cells
from kvsim.narrate.words import join


class Edit:
    """What one editing operation did to the lanes, in the numbers its sentence needs."""

    def __init__(self, before: Picture, after: Picture, owners: OwnerTable) -> None:
        self.before, self.after, self.owners = before, after, owners
        self.pairs = [(b, a, changed_cells(b, a)) for b, a in zip(before.lanes, after.lanes, strict=True)]
        self.touched = [(b, a, c) for b, a, c in self.pairs if c.size]

    def nothing_changed(self) -> bool:
        heads = all(b.head == a.head for b, a, _ in self.pairs)
        return not self.touched and heads and self.before.recurrent == self.after.recurrent

    def first(self) -> tuple[Lane, Lane, np.ndarray[Any, Any]]:
        """The lane that tells the story: the first one that changed."""
        return self.touched[0]

    def elsewhere(self) -> str:
        """A half sentence for the other caches that changed in the same call."""
        _, first, cells = self.first()
        name = first.spec.cache
        others = {a.spec.cache: c for _, a, c in self.touched if a.spec.cache != name}
        if not others:
            return ""
        if all(np.array_equal(c, cells) for c in others.values()):
            return f" in {join([name, *others])} alike"
        return f" in {name}, likewise in {join(list(others))}"
