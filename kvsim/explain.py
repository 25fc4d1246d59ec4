"""What llama.cpp's messages about its memory mean: cause, how to see it, what to do, and a trace.

One table (:data:`EXPLANATIONS`) serves the command line, imported logs and the app.

>>> explanation_in("W decode: failed to find a memory slot for batch of size 512").id
'no-slot'
>>> [found.explanation.id for found in explain("no memry slot for the batch")][0]
'no-slot'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from math import log

from kvsim.explanation_table import EXPLANATIONS, Explanation

__all__ = ["EXPLANATIONS", "Explanation", "Found", "explain", "explanation_by_id", "explanation_in"]

SAME_WORD = 0.8
"""From this similarity on, a word counts as a misspelling of another."""

LENGTHS = 2 / SAME_WORD - 1
"""A word that is longer than so many times another is no misspelling of it."""

SIMILAR = 0.55
"""Least share of a question's words, by weight, that must be in a message to suggest it."""

LONGEST_LINE, MOST_WORDS = 4096, 200
"""Characters of a line and words of a question that are looked at."""


@dataclass(frozen=True)
class Found:
    """An explanation, and how sure it is: 1.0 if the message is in the text as llama.cpp writes it."""

    explanation: Explanation
    score: float

    @property
    def exact(self) -> bool:
        return self.score == 1.0


def explanation_by_id(name: str) -> Explanation:
    """The explanation with that id. Raises KeyError if there is none."""
    return _by_id()[name]


def explanation_in(line: str) -> Explanation | None:
    """The explanation of the message that a line of a log has in it, or None. Prefixes do not matter.

    If several messages match, the longest does: what stands there says more than its part.
    """
    text = " ".join(line.replace("`", "").split())[:LONGEST_LINE]
    matches = [
        (len(found.group()), entry) for pattern, entry in _patterns() if (found := pattern.search(text))
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def explain(message: str, limit: int = 3) -> list[Found]:
    """The explanations of a message, best first: the one whose text it has, or else the most similar ones.

    ``message`` may be an id, one or several lines of a log, or a few words of it, misspelt. Empty if nothing
    is similar.
    """
    if message.strip() in _by_id():
        return [Found(_by_id()[message.strip()], 1.0)]
    exact = {entry.id: entry for line in message.splitlines() if (entry := explanation_in(line))}
    if exact:
        return [Found(entry, 1.0) for entry in exact.values()][:limit]
    asked = set(_words(message)[:MOST_WORDS])
    scored = [Found(entry, _similarity(asked, entry)) for entry in EXPLANATIONS]
    similar = sorted((found for found in scored if found.score >= SIMILAR), key=lambda found: -found.score)
    return similar[:limit]


@cache
def _by_id() -> dict[str, Explanation]:
    return {entry.id: entry for entry in EXPLANATIONS}


@cache
def _patterns() -> list[tuple[re.Pattern[str], Explanation]]:
    """One pattern for each message: values are anything, capitals and lower case are the same."""
    return [
        (re.compile(_pattern(message), re.IGNORECASE), entry)
        for entry in EXPLANATIONS
        for message in entry.messages
    ]


def _pattern(message: str) -> str:
    parts = [re.escape(part) for part in message.removesuffix("{}").split("{}")]
    end = r"\b" if message[-1].isdigit() else ""  # 1 is not 12
    return r" *\S.*?".join(parts) + end


def _words(text: str) -> list[str]:
    """The words of a text that say something: lower case, without numbers and single letters."""
    return [word for word in re.findall(r"[a-z_]+", text.lower()) if len(word) > 1]


@cache
def _vocabulary() -> dict[str, frozenset[str]]:
    """The words of each explanation's messages, by id."""
    return {e.id: frozenset(_words(" ".join((e.id.replace("-", " "), *e.messages)))) for e in EXPLANATIONS}


@cache
def _weights() -> dict[str, float]:
    """Rare words tell more than those that half of the messages have."""
    counts = Counter(word for words in _vocabulary().values() for word in words)
    return {word: log(1 + len(EXPLANATIONS) / n) for word, n in counts.items()}


def _similarity(asked: set[str], entry: Explanation) -> float:
    """The share of the question's words, by weight, that the messages have; just below 1 at most."""
    total = found = 0.0
    unknown = log(1 + len(EXPLANATIONS))
    for word in asked:
        best = _closest(word, _vocabulary()[entry.id])
        known = _known(word)
        weight = _weights()[known] if known else unknown
        total += weight
        found += weight if best else 0.0
    return min(found / total, 0.99) if total else 0.0


@lru_cache(maxsize=4096)
def _known(word: str) -> str | None:
    """The word of any message that it is, or is a misspelling of."""
    return _closest(word, _weights().keys())


def _closest(word: str, among: Collection[str]) -> str | None:
    """The word itself, or the one it is a misspelling of."""
    if word in among:
        return word
    # misspellings keep the first letter, other words seldom do: "bread" is not "read"
    alike = [other for other in among if other[0] == word[0] and len(word) <= LENGTHS * len(other)]
    scored = [(SequenceMatcher(None, word, other).ratio(), other) for other in alike]
    ratio, other = max(scored, default=(0.0, ""))
    return other if ratio >= SAME_WORD else None


INTRODUCTION = """\
# Messages

What llama.cpp says about its memory, and what it means: `kvsim explain MESSAGE` finds the same by the words
of a message, and `kvsim import-log` in a whole log. This page is made from the table in
`kvsim/explanation_table.py` by `python -m kvsim.explain > docs/messages.md`."""


def page() -> Iterator[str]:
    """The blocks of ``docs/messages.md``, which are separated by blank lines."""
    yield INTRODUCTION
    for entry in EXPLANATIONS:
        yield f"## {entry.id}"
        yield "\n".join(f"- `{message}`" for message in entry.messages)
        yield entry.cause
        shown = [f"Trace: [`{entry.trace}`](../{entry.trace}), operation {entry.at}"] if entry.trace else []
        lines = [f"To see it: {entry.see}", f"What to do: {entry.remedy}", f"Where: `{entry.where}`", *shown]
        yield "\n".join(f"- {line}" for line in lines)


if __name__ == "__main__":
    print("\n\n".join(page()))
