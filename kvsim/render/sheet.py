"""One frame of a recording on a sheet: sentence, lanes of cells, recurrent states, positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.changes import SHIFT, Lane, Picture
from kvsim.render.colours import Colours
from kvsim.render.frames import Frame
from kvsim.render.ink import FILL, GROUND, MARK, Ink, width_of
from kvsim.render.lane_cells import LaneCells
from kvsim.render.layout import GUTTER, LANE_HEAD, Place, place, reach
from kvsim.render.positions import draw_positions, positions_height

PAD = 20
HIGHEST = 800  # of a sheet that is as high as it needs, unless there are so many lanes that each needs its
LEAST = 90  # with its heading
SENTENCE = 100
CARD_WIDTH, CARD_HEIGHT = 150, 54


class Sheet:
    """Draws some frames of one recording at one size, so that nothing jumps from one to the next."""

    def __init__(self, width: int, height: int | None, colours: Colours, frames: Sequence[Frame]) -> None:
        self.width, self.colours = width, colours
        pictures = [p for frame in frames for p in (frame.before, frame.after) if p is not None]
        reached = [max(ends) for ends in zip(*(reach(p.lanes) for p in pictures), strict=True)]
        # lanes that nothing here uses would take the room of those that are used
        self.shown = [k for k, end in enumerate(reached) if end] or list(range(len(reached)))
        pictures = [self._used(p) for p in pictures]
        one = pictures[-1]
        self.seqs = _sequences(pictures)
        self.last = max([7, *(last for p in pictures for _, last in p.pos.values())])
        self.cards = 0 if one.recurrent is None else self._cards_height(one.recurrent["size"])
        below = positions_height(one, self.seqs) + self.cards + PAD
        sizes = [lane.spec.size for lane in one.lanes]
        room = (height or max(HIGHEST, SENTENCE + below + len(sizes) * LEAST)) - SENTENCE - below
        self.places = (
            place(sizes, [reached[k] for k in self.shown], width - 2 * PAD - GUTTER, SENTENCE, room)
            if sizes
            else []
        )
        self.end = self.places[-1].y + self.places[-1].height + 16 if self.places else SENTENCE
        self.height = height or round(self.end + below) // 2 * 2

    def _used(self, picture: Picture) -> Picture:
        """The picture without the lanes that are not shown."""
        return replace(picture, lanes=[picture.lanes[k] for k in self.shown])

    def draw(self, frame: Frame, progress: float = 1) -> Ink:
        """The frame; ``progress`` below 1: on the way from the picture before."""
        before = self._used(frame.before) if frame.before else None
        frame = replace(frame, before=before, after=self._used(frame.after))
        ink = Ink(self.width, self.height, self.colours.ground["bg"])
        self._sentence(ink, frame)
        for k, (lane, spot) in enumerate(zip(frame.after.lanes, self.places, strict=True)):
            was = frame.before.lanes[k] if frame.before else None
            self._head_line(ink, lane, was, spot)
            if spot.pitch < 5:
                self._image(ink, frame, lane, spot)
            else:
                origin = (PAD + GUTTER, spot.y)
                LaneCells(ink, self.colours, frame, was, lane, spot, origin).draw(progress)
            self._pin(ink, lane, spot)
        y = self.end
        if frame.after.recurrent is not None:
            self._draw_cards(ink, frame.after.recurrent, y)
            y += self.cards
        draw_positions(ink, self.colours, frame, self.seqs, self.last, y, self.width - 2 * PAD, PAD)
        return ink

    # -- words --------------------------------------------------------------------------------

    def _sentence(self, ink: Ink, frame: Frame) -> None:
        ground, words = self.colours.ground, frame.words
        if words.failed:
            ink.box(GROUND, 0, 0, self.width, SENTENCE - 12, 0, ground["fail-bg"])
        ink.text(PAD, 30, str(frame.step.i), 26, ground["ink"], mono=True)
        x = PAD + 62
        verdict = f"  [{words.verdict}]" if words.verdict else ""
        room = self.width - x - PAD
        call = _shorten(words.call, room - width_of(verdict, 13.5, mono=True), 13.5, mono=True)
        x_end = ink.text(x, 24, call, 13.5, ground["ink2"], mono=True)
        ink.text(x_end, 24, verdict, 13.5, ground["fail" if words.failed else "ink2"], mono=True)
        lines = wrap(words.sentence, room, 16)
        for n, line in enumerate(lines[:2]):
            if n == 1 and len(lines) > 2:
                line = _shorten(" ".join(lines[1:]), room, 16)
            ink.text(x, 48 + 23 * n, line, 16, ground["ink"])

    def _head_line(self, ink: Ink, lane: Lane, before: Lane | None, spot: Place) -> None:
        ground, spec = self.colours.ground, lane.spec
        y = spot.y - LANE_HEAD + 10
        name = f"{spec.cache}, stream {spec.stream}" if spec.n_stream > 1 else spec.cache
        x = ink.text(PAD, y, name, 14, ground["ink"], bold=True) + 14
        moved = f"{before.head:,} → " if before and before.head != lane.head else ""
        facts = [f"{lane.used:,} of {spec.size:,} cells used", f"head {moved}{lane.head:,}"]
        pending = int((lane.cells[:, SHIFT] != 0).sum())
        if pending:
            facts.append(f"{pending:,} shifts pending")
        hidden = spec.size - spot.rows * spot.cols
        if hidden > 0:
            facts.append(f"{spec.size - hidden:,}–{spec.size - 1:,} never used here")
        ink.text(x, y, "   ".join(facts), 12.5, ground["ink2"])

    # -- cells --------------------------------------------------------------------------------

    def _image(self, ink: Ink, frame: Frame, lane: Lane, spot: Place) -> None:
        """Very many cells: a pixel each, shared ones dithered between their owners."""
        empty = self.colours.ground["cell"]
        sets = frame.owners.sets
        table = [[self.colours.fills[s % 12] for s in ids[:4]] or [empty] for ids in sets]
        longest = max(map(len, table))
        palette = np.array([[row[k % len(row)] for k in range(longest)] for row in table])
        lengths = np.array([len(row) for row in table])
        index = np.zeros(spot.rows * spot.cols, np.int64)
        index[: lane.spec.size] = lane.owners
        at = np.arange(index.size)
        turn = ((at % spot.cols + at // spot.cols) // 4) % lengths[index]
        pixels = palette[index, turn].reshape(spot.rows, spot.cols, 3)
        ink.image(PAD + GUTTER, spot.y, spot.width, spot.height, pixels)
        for row in range(0, spot.rows, max(1, spot.rows // 6)):
            y = spot.y + (row + 0.5) * spot.height / spot.rows
            self._row_number(ink, row * spot.cols, y)

    def _row_number(self, ink: Ink, cell: int, y: float) -> None:
        grey = self.colours.ground["ink3"]
        ink.text(PAD + GUTTER - 10, y, f"{cell:,}", 11.5, grey, mono=True, across="right", up="center")

    def _pin(self, ink: Ink, lane: Lane, spot: Place) -> None:
        """Where the next search for a slot begins."""
        last = lane.head >= min(lane.spec.size, spot.rows * spot.cols)
        cell = lane.head - 1 if last else lane.head
        if cell // spot.cols >= spot.rows:
            return
        high = spot.height / spot.rows
        x = PAD + GUTTER + (cell % spot.cols + last) * spot.pitch
        y = spot.y + cell // spot.cols * high
        colour = self.colours.ground["ink"]
        ink.line(MARK, [(x, y - 2), (x, y + high)], colour, 2)
        ink.shape(MARK, [(x - 5, y - 7), (x + 5, y - 7), (x, y)], colour)
        if spot.pitch >= 5:
            for row in range(spot.rows):
                if row % max(1, int(14 / spot.pitch + 0.99)) == 0:
                    self._row_number(ink, row * spot.cols, spot.y + (row + 0.5) * spot.pitch)

    # -- recurrent states ----------------------------------------------------------------------

    def _cards_height(self, n: int) -> int:
        columns = max(1, (self.width - 2 * PAD - GUTTER) // (CARD_WIDTH + 10))
        return 30 + -(-n // columns) * (CARD_HEIGHT + 8)

    def _draw_cards(self, ink: Ink, record: dict[str, Any], y: float) -> None:
        ground = self.colours.ground
        end = ink.text(PAD, y + 8, "recurrent", 14, ground["ink"], bold=True)
        facts = f"{record['used']} of {record['size']} states used   head {record['head']}"
        ink.text(end + 14, y + 8, facts, 12.5, ground["ink2"])
        columns = max(1, (self.width - 2 * PAD - GUTTER) // (CARD_WIDTH + 10))
        for cell in record["cells"]:
            x = PAD + GUTTER + cell[0] % columns * (CARD_WIDTH + 10)
            self._card(ink, x, y + 26 + cell[0] // columns * (CARD_HEIGHT + 8), cell)

    def _card(self, ink: Ink, x: float, y: float, cell: list[Any]) -> None:
        i, pos, src, _, _, seqs = cell
        ground, right = self.colours.ground, x + CARD_WIDTH - 10
        ink.box(FILL, x, y, CARD_WIDTH, CARD_HEIGHT, 7, ground["panel"], ground["line2"], 1)
        ink.text(x + 10, y + 17, f"state {i}", 12.5, ground["ink"], bold=True)
        if src >= 0 and src != i:
            ink.text(right, y + 17, f"reads {src}", 12, ground["ink3"], across="right")
        at = x + 10
        for seq in seqs[:4]:
            ink.box(
                FILL, at, y + 31, 12, 12, 3, self.colours.fills[seq % 12], self.colours.edges[seq % 12], 1
            )
            at += 16
            if len(seqs) == 1:
                ink.text(at, y + 37, f"seq {seq}", 12.5, ground["ink2"], up="center")
        held = f"position {pos:,}" if pos >= 0 else "empty"
        ink.text(right, y + 37, held, 12, ground["ink2"], across="right", up="center")


def wrap(text: str, width: float, size: float) -> list[str]:
    """The text in lines of at most ``width`` pixels."""
    lines: list[str] = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _shorten(text: str, width: float, size: float, mono: bool = False) -> str:
    if width_of(text, size, mono) <= width:
        return text
    while text and width_of(text + " …", size, mono) > width:
        text = text[: -max(1, len(text) // 40)]
    return text.rstrip() + " …"


def _sequences(pictures: Sequence[Picture]) -> list[int]:
    """The sequences that hold something in any of the pictures."""
    return sorted({int(s) for picture in pictures for s, (_, last) in picture.pos.items() if last >= 0})
