"""The colours of the app, light and dark: sequences, kinds of operations, verdicts, ink and ground.

This is the only place where colours stand. The player reads them as CSS variables (``--kv-ink``,
``--kv-seq-0``, ...), the Streamlit theme (``.streamlit/config.toml``) repeats those that Streamlit itself
needs, and a test compares the two. Sequences take colours by ``id mod 12``; the two sets keep their distance
under every kind of colour blindness (``tests/app/test_palette.py`` computes it).
"""

from __future__ import annotations

SEQUENCES = {
    "light": [
        "#275abc", "#e6830c", "#2baa96", "#7a4d5d", "#f0e34c", "#7fdcfe",
        "#bb4d4c", "#a1c286", "#7f76cc", "#dfa1b5", "#526701", "#b395c8",
    ],
    "dark": [
        "#4c64c7", "#de911d", "#2fc0aa", "#8c5b6b", "#f2eb59", "#b1f1ff",
        "#cf4e55", "#dbecbb", "#9383d7", "#feb1c8", "#647500", "#bfaae4",
    ],
}  # fmt: skip

TOKENS = {
    # name: (light, dark)
    "bg": ("#ffffff", "#12161b"),
    "panel": ("#ffffff", "#171c22"),
    "sunk": ("#f5f7f9", "#0d1115"),
    "cell": ("#eceff2", "#242a31"),
    "line": ("#e3e7ec", "#282f37"),
    "line2": ("#c6ced7", "#434d58"),
    "ink": ("#14181d", "#eaeef2"),
    "ink2": ("#46505c", "#b4bdc7"),
    "ink3": ("#5e6976", "#8f9aa6"),
    "decode": ("#5b6774", "#93a1b0"),
    "edit": ("#7d5fa3", "#b79bd6"),
    "copy": ("#2f7f89", "#6bb5bd"),
    "state": ("#8c6c31", "#c4a76e"),
    "fail": ("#bd2219", "#ff8a80"),
    "fail-bg": ("#fdf1f0", "#2b1917"),
    "hazard": ("#8a5a00", "#f0bd5a"),
    "hazard-bg": ("#fdf6e7", "#2a2212"),
    "agrees": ("#1c6e42", "#74cf9c"),
}


def css(root: str = ".kv") -> str:
    """The variables as CSS rules for ``root`` and ``root[data-theme=dark]``."""
    rules = []
    for theme, column in (("light", 0), ("dark", 1)):
        names = {name: pair[column] for name, pair in TOKENS.items()}
        names |= {f"seq-{i}": colour for i, colour in enumerate(SEQUENCES[theme])}
        body = " ".join(f"--kv-{name}: {colour};" for name, colour in names.items())
        selector = root if theme == "light" else f'{root}[data-theme="dark"]'
        rules.append(f"{selector} {{ color-scheme: {theme}; {body} }}")
    return "\n".join(rules)


def page_css(root: str) -> str:
    """The colours as variables (``--kvs-ink``, ``--kvs-seq-0``) that follow the colour scheme of ``root``."""
    pairs = dict(TOKENS)
    pairs |= {f"seq-{i}": pair for i, pair in enumerate(zip(*SEQUENCES.values(), strict=True))}
    body = " ".join(f"--kvs-{name}: light-dark({light}, {dark});" for name, (light, dark) in pairs.items())
    return f"{root} {{ {body} }}"
