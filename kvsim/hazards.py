"""The hazards: where llama.cpp quietly does something that no caller wants.

kvsim does what llama.cpp does, and says so: an operation that meets one of these emits an event of kind
``hazard`` whose detail has the ``id``. Each has a minimal trace, ``fixtures/hazards/<id>.jsonl.gz``, and a
section of ``docs/hazards.md``, which is made from the table::

    python -m kvsim.hazards > docs/hazards.md

``docs/findings.md`` repeats its words: ``python -m kvsim.lanes.finding_page > docs/findings.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.hazard_table import ANSWER, BOOKS, CONTENT, NUMBERS, TABLE, Hazard

KINDS = {
    CONTENT: "a sequence holds or reads something else than its caller asked for",
    NUMBERS: "the right tokens, but numbers that differ from what they should be",
    ANSWER: "the call answers or accepts something that is not so, or refuses without need",
    BOOKS: "bookkeeping only: nothing a token reads is affected",
}

HAZARDS: dict[str, Hazard] = {hazard.id: hazard for hazard in TABLE}
"""Every hazard by id, attention caches first."""

INTRODUCTION = """\
# Hazards

Places where llama.cpp b11434 quietly does something that no caller wants. kvsim does the same, because it
is a reference, and says so: the operation emits an event of kind `hazard` with the id below. Each has a
minimal trace in `fixtures/hazards/`, made by `python -m kvsim.testing.hazard_traces`. This page is made from
the table in `kvsim/hazard_table.py` by `python -m kvsim.hazards > docs/hazards.md`."""


def page() -> Iterator[str]:
    """The blocks of ``docs/hazards.md``, which are separated by blank lines."""
    yield INTRODUCTION
    for kind, meaning in KINDS.items():
        yield f"## {kind.capitalize()}: {meaning}"
        for hazard in TABLE:
            if hazard.kind == kind:
                yield from section(hazard)


def section(hazard: Hazard) -> Iterator[str]:
    """One hazard in plain words."""
    yield f"### {hazard.id}"
    yield f"*{hazard.memories}* · `{hazard.where}`"
    yield hazard.happens
    yield (
        f"- Consistent would be: {hazard.instead}\n- What to do: {hazard.remedy}\n"
        f"- Trace: [`{hazard.trace}`](../{hazard.trace})"
    )


if __name__ == "__main__":
    print("\n\n".join(page()))
