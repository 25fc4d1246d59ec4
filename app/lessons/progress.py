"""Which steps of which lessons are done, as text for an address: a number in base 36 for each lesson."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.lessons.course import LESSONS

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass
class Progress:
    """By lesson, the steps that were answered and shown."""

    done: dict[str, set[int]] = field(default_factory=dict)

    def finish(self, key: str, step: int) -> None:
        self.done.setdefault(key, set()).add(step)

    def complete(self, key: str) -> bool:
        lesson = next(each for each in LESSONS if each.key == key)
        return len(self.done.get(key, ())) == len(lesson.steps)

    @property
    def n_complete(self) -> int:
        return sum(self.complete(lesson.key) for lesson in LESSONS)

    def text(self) -> str:
        masks = [sum(1 << n for n in self.done.get(lesson.key, ())) for lesson in LESSONS]
        return ".".join(map(_base36, masks)) if any(masks) else ""

    @classmethod
    def of_text(cls, text: str) -> Progress:
        """From :meth:`text`; what cannot be is left out."""
        progress = cls()
        for lesson, word in zip(LESSONS, text.split("."), strict=False):
            mask = int(word, 36) if word.isascii() and word.isalnum() and len(word) < 6 else 0
            steps = {n for n in range(len(lesson.steps)) if mask >> n & 1}
            if steps:
                progress.done[lesson.key] = steps
        return progress


def _base36(n: int) -> str:
    return _base36(n // 36) + _DIGITS[n % 36] if n >= 36 else _DIGITS[n]
