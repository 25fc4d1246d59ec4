"""The versions of llama.cpp's saved states that differ in layout, and how they are told apart.

Files carry a version, buffers in memory do not. The attention cells and rows changed like this:

======  ========  =============================  ======================  =====================
whole   sequence  kept per cell beside position  rotation of the rows    since
======  ========  =============================  ======================  =====================
9       2         x, y (M-RoPE; before March     not recorded
                  2026 nothing)
10      3         x, y, token (M-RoPE, n-gram)   not recorded            August 2026
11      4         x, y, token                    sizes of K's and V's    September 2026, b11434
======  ========  =============================  ======================  =====================

b11434 reads the last one only. Upstream: ``include/llama.h: LLAMA_SESSION_VERSION,
LLAMA_STATE_SEQ_VERSION``; pull requests 20132 (x, y), 27762 (token), 28498 (rotations).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """One layout of the attention part. ``ext`` names what a cell keeps beside its position and owners, in
    caches that keep anything; ``has_rotation``: the sizes of the rows' Hadamard rotations are recorded."""

    whole: int
    sequence: int
    ext: tuple[str, ...]
    has_rotation: bool

    @property
    def lacks(self) -> str:
        """What a reader of today misses in it, in words; empty for the current layout."""
        missing = [f"the {name} of each cell" for name in ("x", "y", "token") if name not in self.ext]
        if not self.has_rotation:
            missing.append("the sizes of the rows' rotations")
        return " and ".join(missing)


CURRENT = Layout(11, 4, ("x", "y", "token"), True)
LAYOUTS = (
    CURRENT,
    Layout(10, 3, ("x", "y", "token"), False),
    Layout(9, 2, ("x", "y"), False),
    Layout(9, 2, (), False),
)
"""Every known layout, the newest first. Version 2 (whole: 9) has two: early files of it keep no x and y."""

SESSION_MAGIC = 0x6767736E
"""'ggsn': a whole-state file."""
SEQ_FILE_MAGIC = 0x67677371
"""'ggsq': a sequence file."""


def layouts_of(magic: int, version: int) -> list[Layout]:
    """The layouts that a file with this magic and version may have; none if the version is unknown."""
    return [la for la in LAYOUTS if version == (la.whole if magic == SESSION_MAGIC else la.sequence)]


def looks_older(layouts: list[Layout]) -> str:
    """What to say of a buffer that can be read to its end in these older layouts only."""
    versions = " or ".join(f"{number}" for number in dict.fromkeys(la.sequence for la in layouts))
    return (
        f"it can be read as version {versions} of the format (b11434 writes {CURRENT.sequence}): it lacks "
        f"{layouts[0].lacks}. Decode the tokens again and save anew, or load it where it was written"
    )


def refusal(magic: int, version: int) -> str:
    """Why b11434 does not load a file of another version, and what can be done."""
    kind, current = (
        ("whole-state", CURRENT.whole) if magic == SESSION_MAGIC else ("sequence", CURRENT.sequence)
    )
    known = layouts_of(magic, version)
    if not known:
        newer = version > current
        return (
            f"{kind} file of version {version}, b11434 reads {current}: it comes from a "
            f"{'newer' if newer else 'much older'} llama.cpp. Load it there"
        )
    return (
        f"{kind} file of version {version}, b11434 reads {current}: it lacks {known[0].lacks}. Decode the "
        f"tokens it holds again and save anew, or load it with the llama.cpp that wrote it; "
        f"kvsim.state_format shows what is in it"
    )
