"""The Memory page's bars, table and curves as HTML. Nothing in it comes from a file but numbers and names,
which are escaped."""

from __future__ import annotations

from html import escape

from app.memory_page.costs import UNITS, Cost, Part, in_words
from app.memory_page.occupancy import History, Occupancy

SHADES = (74, 36, 54, 22, 64, 14, 44, 30)
"""Ink in a part's bar, in percent; neighbours differ."""

WORDS = {1: "no slot", -1: "refused", 2: "aborted"}
MARKS, ROOM = 6, 1.22  # lines of the scale; its width beside that of the longest bar


def bars(own: Cost, others: list[Cost]) -> str:
    """One bar for each configuration, on one scale, the parts in shades."""
    costs = [own, *others]
    largest = max(c.total for c in costs)
    step, unit, unit_bytes, most = _scale(largest)
    order = {part.name: k for cost in costs for k, part in enumerate(cost.parts)}
    rows = "".join(_row(cost, own, most, order, first=cost is own) for cost in costs)
    places = [k * step for k in range(largest // step + 1)]
    lines = "".join(f'<i style="left:{100 * p / most:.3f}%"></i>' for p in places)
    labels = ""
    for p in places:
        text = f"{p / unit_bytes:g}" + (f" {unit}" if p == places[-1] else "")
        labels += f'<span style="left:{100 * p / most:.3f}%">{text}</span>'
    scale = f'<div class="kvm-scale" aria-hidden="true">{labels}</div>'
    return f'<div class="kvm-bars"><div class="kvm-lines" aria-hidden="true">{lines}</div>{rows}{scale}</div>'


def table(parts: tuple[Part, ...]) -> str:
    """The parts in numbers."""
    heads = ("part", "layers", "rows", "bytes per row and layer", "total")
    head = "".join(f"<th>{h}</th>" for h in heads)
    rows = ""
    for k, part in enumerate(parts):
        name = f'<i style="{_shade(k)}"></i>{escape(part.name)}'
        each = f"{part.each:,}" if part.each else "differs"
        cells = (name, f"{part.layers:,}", f"{part.rows:,}", each, in_words(part.bytes))
        rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return f'<table class="kvs-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def curves(past: History, scenario: str) -> str:
    """Occupancy of every cache over the recording; where a decode failed, a line that leads there."""
    parts = "".join(_curve(one, past, scenario) for one in past.caches)
    ticks = _ticks(past.n_steps)
    labels = "".join(f'<span style="left:{100 * t / past.n_steps:.3f}%">{t}</span>' for t in ticks)
    steps = f'<div class="kvm-scale kvm-steps">{labels}</div>'
    return f'{_failures(past, scenario)}<div class="kvm-curves">{parts}{steps}</div>'


def _row(cost: Cost, own: Cost, most: int, order: dict[str, int], first: bool) -> str:
    title = f"<b>{escape(cost.title)}</b>" if first else escape(cost.title)
    said = f'<div class="kvm-what"><div>{title}</div><small>{escape(cost.detail)}</small></div>'
    if cost.refusal:
        return f'<div class="kvm-row">{said}<div class="kvm-bar"><em>{escape(cost.refusal)}</em></div></div>'
    bar = ""
    for part in cost.parts:
        width = 100 * part.bytes / most
        name = escape(part.name)
        shown = name if width > 1.1 * len(part.name) + 2 else ""
        bar += f'<i style="{_shade(order[part.name])};width:{width:.3f}%" title="{name}">{shown}</i>'
    more = "" if first else f"<small>{_change(cost.total, own.total)}</small>"
    figure = f"<span>{in_words(cost.total)}</span>{more}"
    return f'<div class="kvm-row">{said}<div class="kvm-bar">{bar}{figure}</div></div>'


def _change(total: int, own: int) -> str:
    return "the same" if total == own else f"{total / own - 1:+.0%}".replace("-", "−")


def _shade(k: int) -> str:
    ink = SHADES[k % len(SHADES)]
    return f"--ink:{ink}%;--on:{'var(--kvs-bg)' if ink > 50 else 'var(--kvs-ink)'}"


def _scale(largest: int) -> tuple[int, str, int, int]:
    """Bytes between lines; the unit of the labels and its bytes; bytes of the whole width.

    The bars leave room at the right for their figures.
    """
    k = next((k for k in range(len(UNITS) - 1, 0, -1) if largest >= 1024**k), 0)
    step = 1
    while largest / step > MARKS:
        step *= 2
    return step, UNITS[k], 1024**k, max(1, int(largest * ROOM))


def _curve(one: Occupancy, past: History, scenario: str) -> str:
    n, size = past.n_steps, one.size
    none, used = [0] * n, one.used
    pieces = [size - hole for hole in one.hole]
    areas = f'<i class="kvm-used" style="{_area(used, none, size)}"></i>'
    areas += f'<i class="kvm-pieces" style="{_area(pieces, used, size)}"></i>'
    said = f"{escape(one.cache)}: at most {max(used):,} of {size:,} used"
    fails = "".join(_failure(i, past, scenario) for i in past.failed)
    words = f"<b>{escape(one.cache)}</b><small>at most {max(used):,}</small>"
    words += f"<small>{max(one.scattered):.0%} of free cells scattered at worst</small>"
    return (
        f'<div class="kvm-curve"><div class="kvm-size"><span>{size:,}</span><span>0</span></div>'
        f'<div class="kvm-graph" role="img" aria-label="{said}">{areas}{fails}</div>'
        f'<div class="kvm-name">{words}</div></div>'
    )


def _area(above: list[int], below: list[int], size: int) -> str:
    """The steps between two curves, as a clip of the whole."""
    n = len(above)
    x = [100 * i / n for i in range(n + 1)]
    there = [f"{x[i + k]:.2f}% {100 - 100 * v / size:.2f}%" for i, v in enumerate(above) for k in (0, 1)]
    back = [f"{x[i + k]:.2f}% {100 - 100 * below[i] / size:.2f}%" for i in reversed(range(n)) for k in (1, 0)]
    return f"clip-path:polygon({','.join(there + back)})"


def _failure(i: int, past: History, scenario: str) -> str:
    """A line at a failed decode that leads to it."""
    left = f"left:{100 * (i + 0.5) / past.n_steps:.3f}%"
    said = f"operation {i}: {_what(past, i)}"
    return f'<a class="kvm-fail" style="{left}" href="{_to(scenario, i)}" title="{said}"></a>'


def _failures(past: History, scenario: str) -> str:
    """What the lines are: the first failure of each kind, in words that lead there. "" without one."""
    first: dict[str, int] = {}
    for i in past.failed:
        first.setdefault(_what(past, i), i)
    told = ", ".join(
        f'<a class="kvm-first" href="{_to(scenario, i)}">{what} at {i}</a>' for what, i in first.items()
    )
    return f'<div class="kvs-note">Lines: failed decodes, first {told}</div>' if first else ""


def _what(past: History, i: int) -> str:
    return WORDS.get(past.failed[i], "failed")


def _to(scenario: str, i: int) -> str:
    return f"./?page=replay&amp;scenario={escape(scenario)}&amp;at={i}"


def _ticks(n: int) -> list[int]:
    step = next((s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if n / s <= 8), max(1, n // 5))
    return list(range(0, n, step))
