"""The colours keep their distance for every kind of sight (the floor is the design's table)."""

from __future__ import annotations

import tomllib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from kvsim.player.palette import SEQUENCES, TOKENS

# Linear RGB -> LMS and back (Hunt-Pointer-Estevez, as Viénot and Brettel use it).
LMS = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])

# Machado 2009, severity 1.
MACHADO = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(color: str) -> np.ndarray:
    v = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def vienot(kind: str, rgb: np.ndarray) -> np.ndarray:
    lms = LMS @ rgb
    if kind == "protan":
        lms[0] = 2.02344 * lms[1] - 2.52581 * lms[2]
    else:
        lms[1] = 0.494207 * lms[0] + 1.24827 * lms[2]
    return np.linalg.solve(LMS, lms)


def brettel_tritan(rgb: np.ndarray) -> np.ndarray:
    """Two half planes through white, 485 nm and 660 nm; the anchors' LMS come from their chromaticities."""
    lms, white = LMS @ rgb, LMS @ np.ones(3)
    anchors = {485: np.array([0.0687, 0.2007, 0.7306]), 660: np.array([0.7300, 0.2700, 0.0])}
    xyz_to_rgb = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
    anchor = {nm: LMS @ (xyz_to_rgb @ xyz) for nm, xyz in anchors.items()}
    use = anchor[485] if lms[1] / lms[0] >= white[1] / white[0] else anchor[660]
    a, b, c = np.cross(white, use)
    lms[2] = -(a * lms[0] + b * lms[1]) / c
    return np.linalg.solve(LMS, lms)


def simulations() -> dict:
    views = {"normal": lambda v: v}
    for kind, matrix in MACHADO.items():
        views[f"{kind} M"] = np.array(matrix).__matmul__
    views["protan V"] = lambda v: vienot("protan", v)
    views["deutan V"] = lambda v: vienot("deutan", v)
    views["tritan B"] = brettel_tritan
    return views


def lab(rgb: np.ndarray) -> np.ndarray:
    m = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    v = m @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(v > (6 / 29) ** 3, np.cbrt(v), v / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: np.ndarray, two: np.ndarray) -> float:
    (l1, a1, b1), (l2, a2, b2) = one, two
    c_mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(c_mean**7 / (c_mean**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    dl, dc = l2 - l1, c2 - c1
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dhh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(dh) / 2)
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    hm = h1 + h2 if c1 * c2 == 0 else (h1 + h2) / 2 if abs(h1 - h2) <= 180 else ((h1 + h2 + 360) / 2) % 360
    t = (
        1
        - 0.17 * np.cos(np.radians(hm - 30))
        + 0.24 * np.cos(np.radians(2 * hm))
        + 0.32 * np.cos(np.radians(3 * hm + 6))
        - 0.20 * np.cos(np.radians(4 * hm - 63))
    )
    sl = 1 + 0.015 * (lm - 50) ** 2 / np.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rotation = (
        -np.sin(np.radians(60 * np.exp(-(((hm - 275) / 25) ** 2)))) * 2 * np.sqrt(cm**7 / (cm**7 + 25**7))
    )
    terms = (dl / sl) ** 2 + (dc / sc) ** 2 + (dhh / sh) ** 2 + rotation * (dc / sc) * (dhh / sh)
    return float(np.sqrt(terms))


def smallest(colors: list[str], view) -> float:
    labs = [lab(view(linear(c))) for c in colors]
    return min(ciede2000(a, b) for a, b in combinations(labs, 2))


def test_ciede2000_of_a_published_pair() -> None:
    """Sharma, Wu, Dalal 2005, pair 1."""
    one, two = np.array([50.0, 2.6772, -79.7751]), np.array([50.0, 0.0, -82.7485])
    assert ciede2000(one, two) == pytest.approx(2.0425, abs=1e-4)


FLOORS = {
    ("light", 4): 21.0,
    ("light", 8): 14.7,
    ("light", 12): 11.2,
    ("dark", 4): 21.1,
    ("dark", 8): 14.7,
    ("dark", 12): 11.1,
}


@pytest.mark.parametrize(("theme", "n"), FLOORS)
def test_sequence_colours_stay_apart_in_every_vision(theme: str, n: int) -> None:
    worst = {name: smallest(SEQUENCES[theme][:n], view) for name, view in simulations().items()}
    assert min(worst.values()) >= FLOORS[theme, n] - 0.05, worst


@pytest.mark.parametrize(("theme", "floor"), [("light", 13.7), ("dark", 19.1)])
def test_sequence_colours_stand_out_from_ground_and_empty_cells(theme: str, floor: float) -> None:
    column = 0 if theme == "light" else 1
    for name, view in simulations().items():
        for ground in ("bg", "cell"):
            base = lab(view(linear(TOKENS[ground][column])))
            nearest = min(ciede2000(base, lab(view(linear(c)))) for c in SEQUENCES[theme])
            assert nearest >= floor - 0.05, (name, ground)


def contrast(one: str, two: str) -> float:
    a, b = sorted((float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, two)), reverse=True)
    return (a + 0.05) / (b + 0.05)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(
    "text", ["ink", "ink2", "ink3", "fail", "hazard", "agrees", "decode", "edit", "copy", "state"]
)
def test_text_reaches_its_contrast(column: int, text: str) -> None:
    more = {
        "fail": ["fail-bg"],
        "hazard": ["hazard-bg"],
        "ink": ["cell", "fail-bg"],
    }.get(text, [])
    for ground in ["bg", "panel", *more]:
        assert contrast(TOKENS[text][column], TOKENS[ground][column]) >= 4.5, ground


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_are_readable_on_every_sequence_colour(theme: str) -> None:
    for color in SEQUENCES[theme]:
        assert max(contrast(color, "#ffffff"), contrast(color, "#06080b")) >= 4.5


@pytest.mark.parametrize(("theme", "column"), [("light", 0), ("dark", 1)])
def test_streamlit_theme_repeats_the_palette(theme: str, column: int) -> None:
    path = Path(__file__).parents[2] / "app" / ".streamlit" / "config.toml"
    told = tomllib.loads(path.read_text())["theme"][theme]
    assert told["chartCategoricalColors"] == SEQUENCES[theme]
    pairs = {
        "backgroundColor": "bg",
        "secondaryBackgroundColor": "sunk",
        "textColor": "ink",
        "borderColor": "line2",
    }
    assert {key: told[key] for key in pairs} == {key: TOKENS[name][column] for key, name in pairs.items()}
