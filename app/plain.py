"""Words of a file, for places in which Streamlit reads Markdown."""

from __future__ import annotations

import re

_MARKS = re.compile(r"[\\`*_\[\]<>$~&#|]|:(?=\w)")


def plain(text: str) -> str:
    """The text with a backslash before all that Markdown, or Streamlit, would take as more than text.

    >>> print(plain("![x](a.png): **not** a :red[GGUF] file"))
    !\\[x\\](a.png): \\*\\*not\\*\\* a \\:red\\[GGUF\\] file
    """
    return _MARKS.sub(r"\\\g<0>", text)
