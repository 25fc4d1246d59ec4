"""What a log says of its contexts when they are made: which memory, how many cells, streams and sequences."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

VISIBLE = {
    "kv": ("kv",),
    "iswa": ("base", "swa"),
    "dsa": ("mla", "lid"),
    "dsa_iswa": ("mla", "lid", "swa"),
    "msa": ("base", "idx"),
}
"""Memories whose caches all search for slots, so that their prints show them whole."""

SHOWN_AS = {"hybrid": "kv", "hybrid_idx": "kv", "hybrid_iswa": "iswa", "dsv4": "iswa"}
"""Memories of which the prints show a part, and the memory that this part is like."""

_MAKING = re.compile(r"\bllama_context: constructing llama_context")
_SETTING = re.compile(r"\bllama_context: (\w+) += (\S+)")
_MODEL = re.compile(r"\bprint_info: (arch|n_layer|n_swa) +?= (\S+)")
_KV_SIZE = re.compile(
    r"\bllama_kv_cache(?:::\w+)?: size = *[\d.]+ \w+ *\( *(\d{1,18}) cells, *\d+ layers, "
    r"*(\d{1,18})/(\d{1,18}) seqs\)",
    re.ASCII,
)
_STATES = re.compile(r"\bllama_memory_recurrent(?:::\w+)?: size = ")
_PARTS = re.compile(
    r"\bllama_(?:kv_cache|memory)_(dsv4|dsa_iswa|dsa|msa|hybrid_idx|iswa)(?:::\w+)?: creating "
)


@dataclass
class Facts:
    """One context as the log tells of its making; empty where the log begins later.

    ``caches``: cells per stream, number of streams and of sequences, in the order they were made.
    """

    line: int = 0
    model: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    caches: list[tuple[int, int, int]] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    has_states: bool = False

    @property
    def memory(self) -> str | None:
        """The kind of memory, as far as the log tells."""
        for part in ("dsv4", "dsa_iswa", "dsa", "msa", "hybrid_idx"):
            if part in self.parts:
                return part
        if self.has_states:
            return "hybrid_iswa" if "iswa" in self.parts else "hybrid" if self.caches else "recurrent"
        return "iswa" if "iswa" in self.parts else "kv" if self.caches else None

    def number(self, name: str) -> int | None:
        """A setting that is a number."""
        return _number(self.settings.get(name, ""))

    @property
    def n_swa(self) -> int:
        """The window of the model; 0 if it has none."""
        return _number(self.model.get("n_swa", "")) or 0

    def has_cache(self, size: int, stream: int, n_swa: int) -> bool:
        """Whether one of its caches can have printed this; yes, if the log does not tell."""
        if not self.caches or self.memory is None or self.memory == "recurrent":
            return not self.caches
        names = VISIBLE[SHOWN_AS.get(self.memory, self.memory)]
        for name, (cells, streams, _) in zip(names, self.caches, strict=False):
            # a single cache has the model's window, if any
            windowed = name == "swa" or (len(names) == 1 and self.n_swa > 0)
            if (cells, windowed) == (size, n_swa > 0) and stream < streams:
                return True
        return False


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class FactsReader:
    """Reads the lines about models and contexts; ``contexts`` has one entry for each that was made."""

    def __init__(self) -> None:
        self.contexts: list[Facts] = []
        self._model: dict[str, str] = {}

    def feed(self, number: int, line: str) -> None:
        if model := _MODEL.search(line):
            if model.group(1) == "arch":
                self._model = {}
            self._model[model.group(1)] = model.group(2)
        elif _MAKING.search(line):
            self.contexts.append(Facts(number, dict(self._model)))
        elif self.contexts:
            self._feed_context(self.contexts[-1], line)

    def _feed_context(self, facts: Facts, line: str) -> None:
        if setting := _SETTING.search(line):
            facts.settings[setting.group(1)] = setting.group(2)
        elif part := _PARTS.search(line):
            facts.parts.add(part.group(1))
        elif size := _KV_SIZE.search(line):
            cells, n_seq, streams = map(int, size.groups())
            facts.caches.append((cells, streams, n_seq))
        elif _STATES.search(line):
            facts.has_states = True
