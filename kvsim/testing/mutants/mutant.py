"""A real fault of a real cache, put into the reference on purpose, by replacing one rule of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

MUTANTS: dict[str, Mutant] = {}
"""Every mutant by id, in the order of the modules."""


@dataclass(frozen=True)
class Patch:
    """``owner.name`` is ``new`` instead of ``old``; ``inherited``: it was not the owner's own."""

    owner: Any
    name: str
    old: Any
    new: Any
    inherited: bool

    def put_in(self) -> None:
        setattr(self.owner, self.name, self.new)

    def take_out(self) -> None:
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.old)


class Patches:
    """Collects what a mutant replaces.

    Each replacement is a function ``faulty(right, *args)`` that is given the right one; or a plain value.
    """

    def __init__(self) -> None:
        self.made: list[Patch] = []

    def __call__(self, owner: Any, name: str, faulty: Callable[..., Any]) -> None:
        right = getattr_static(owner, name)
        if isinstance(right, property):
            inside = right.fget
            new: Any = property(lambda self: faulty(inside, self))
        else:

            def new(*args: Any, **kwargs: Any) -> Any:
                return faulty(right, *args, **kwargs)

        self._add(owner, name, new)

    def value(self, owner: Any, name: str, faulty: Any) -> None:
        self._add(owner, name, faulty)

    def _add(self, owner: Any, name: str, new: Any) -> None:
        self.made.append(Patch(owner, name, getattr_static(owner, name), new, name not in vars(owner)))


@dataclass(frozen=True)
class Mutant:
    """A fault to be put in.

    ``cases``: ids in fixtures/bugs/cases.jsonl, where the sources are. ``what``: which rule is broken, and
    how. ``symptom``: what a caller sees. ``memories``: the members of the family that can have it. ``exact``:
    whether its cells can be compared; a fault in an allocator of another kind shows in behaviour only.
    """

    id: str
    cases: tuple[str, ...]
    what: str
    symptom: str
    memories: tuple[str, ...]
    exact: bool
    patches: tuple[Patch, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The reference has this fault until the end of the ``with`` block."""
        for patch in self.patches:
            patch.put_in()
        try:
            yield
        finally:
            for patch in reversed(self.patches):
                patch.take_out()


def mutant(
    *cases: str, memories: tuple[str, ...], symptom: str, exact: bool = True
) -> Callable[[Callable[[Patches], None]], Mutant]:
    """Makes a mutant of a function that says what is replaced; its docstring says which rule is broken."""

    def make(put_in: Callable[[Patches], None]) -> Mutant:
        patches = Patches()
        put_in(patches)
        name = put_in.__name__.replace("_", "-")
        what = " ".join((put_in.__doc__ or "").split())
        made = Mutant(name, cases, what, symptom, memories, exact, tuple(patches.made))
        MUTANTS[name] = made
        return made

    return make
