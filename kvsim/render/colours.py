"""The player's colours for matplotlib: fills, edges that stand out, labels that can be read on them."""

from __future__ import annotations

from kvsim.player.palette import SEQUENCES, TOKENS

RGB = tuple[float, float, float]


class Colours:
    """One theme, ``light`` or ``dark``: ``ground["ink"]`` and the others by name, sequences by id."""

    def __init__(self, theme: str) -> None:
        column = 0 if theme == "light" else 1
        self.ground = {name: rgb(pair[column]) for name, pair in TOKENS.items()}
        self.fills = [rgb(colour) for colour in SEQUENCES[theme]]
        self._first = 0.16 if theme == "light" else 0.1
        self.edges = [self._edge(fill) for fill in self.fills]
        self.labels = [_label(fill) for fill in self.fills]

    def _edge(self, fill: RGB) -> RGB:
        """The fill moved towards ink until it stands out 3:1 from an empty cell."""
        share = self._first
        while share <= 1:
            edge = mix(self.ground["ink"], fill, share)
            if contrast(edge, self.ground["cell"]) >= 3:
                return edge
            share += 0.04
        return self.ground["ink"]


def rgb(colour: str) -> RGB:
    """``#rrggbb`` as three numbers, 0 to 1."""
    r, g, b = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return r, g, b


def mix(over: RGB, under: RGB, share: float) -> RGB:
    """``over`` laid on ``under`` with the opacity ``share``."""
    r, g, b = (share * a + (1 - share) * c for a, c in zip(over, under, strict=True))
    return r, g, b


def contrast(one: RGB, other: RGB) -> float:
    """The WCAG contrast of two colours, 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: RGB) -> float:
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _label(fill: RGB) -> RGB:
    white, black = (1.0, 1.0, 1.0), rgb("#06080b")
    return white if contrast(fill, white) >= contrast(fill, black) else black
