"""What the player draws between two steps, at moments of the test's choosing."""

from __future__ import annotations

import json

import pytest

from app.playground.run import Run
from app.playground.setup import Setup
from kvsim.player.payload import pack
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

KV = "kv/llama-uni-c256-u16-s4-f16-03"
ABORTED = "kv/llama-h32-uni-c1024-u16-s4-f16-07"
SNAPSHOTS = "hybrid/qwen35-uni-c512-u32-s4-q8_0-rs2-09"
STATES = "recurrent/mamba-str-c256-u64-s8-f16-04"
RINGS = "dsv4/deepseek4-uni-c1024-u32-s1-q8_0-rs2-05"

BEGIN = """step => { const p = kvsim.player; p._run = () => {}; p.go(step - 1); p.step(1); p.motion.advance(0);
  return p.motion.length; }"""

AT = """ms => { const p = kvsim.player, m = p.motion;
  if (!m.advance(m.begun + ms / m.rate)) p._settle(); }"""

# How opaque the layer of what moves is in the middle of a cell, and how far off it the cell is drawn there.
OVER = """([k, i, dx, dy]) => { const m = kvsim.player.motion, { x, y, p } = m.at(k, i), d = kvsim.player.dpr;
  return m.ctx.getImageData((x + p / 2 + dx) * d, (y + p / 2 + dy) * d, 1, 1).data[3]; }"""


@pytest.fixture
def show(show):
    def go(payload: dict, step: int):
        """A page whose motion into ``step`` stands at its first moment."""
        page = show(payload, step - 1)
        page.length = page.evaluate(BEGIN, step)
        return page

    return go


def recorded(name: str) -> dict:
    trace = read_trace(f"fixtures/traces/{name}.jsonl.gz")
    return pack(trace.header, trace, name)


def played(setup: Setup, *lines: str) -> dict:
    run = Run(setup.header)
    run.perform(lines)
    assert run.error is None
    return json.loads(run.payload())


def cell(page, i: int, lane: int = 0) -> dict:
    return page.evaluate(f"kvsim.player.lanes[{lane}].cell({i})")


def test_defragmented_cells_fly_from_cell_to_cell(show) -> None:
    """Seq 1 stands in cells 4–7 behind a hole: its block flies to cells 0–3."""
    page = show(played(Setup(cells=32), "prompt 0 4", "prompt 1 4", "remove 0", "defragment classic"), 4)
    assert page.evaluate("kvsim.player.frame.step.moves") == [[0, 4, 0, 4]]
    page.evaluate(AT, 210)
    assert page.evaluate("[...kvsim.player.lanes[0].ghosts.keys()]") == [4, 5, 6, 7]
    assert cell(page, 0)["owner"] == []  # it has not landed
    pitch = page.evaluate("kvsim.player.lanes[0].pw")
    assert page.evaluate(OVER, [0, 2, 0, -14]) > 200  # half way, on an arc
    assert page.evaluate(OVER, [0, 7, pitch, 0]) == 0
    page.evaluate(AT, 5000)
    assert [cell(page, i)["owner"] for i in (0, 3, 4)] == [[1], [1], []]
    assert page.evaluate(OVER, [0, 2, 0, -14]) == 0


def test_shifted_positions_roll_one_after_the_other_while_the_ruler_slides(show) -> None:
    page = show(recorded(KV), 16)
    held = "kvsim.player.lanes[0].held.size"
    sizes = []
    for ms in (0, 350, 500, 5000):
        page.evaluate(AT, ms)
        sizes.append(page.evaluate(held))
    assert sizes[0] == 35
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < sizes[2] < 35
    assert sizes[3] == 0
    assert [cell(page, 38)[name] for name in ("pos", "shift")] == [0, -8]


def test_pending_keys_turn_on_dials_before_the_token_is_written(show) -> None:
    page = show(recorded(KV), 17)
    page.evaluate(AT, 210)
    assert page.evaluate("kvsim.player.lens.turn") == pytest.approx(0.5)
    assert page.evaluate(OVER, [0, 50, 0, 0]) == 255
    assert cell(page, 8)["owner"] == []
    assert cell(page, 50)["shift"] == -8
    page.evaluate(AT, 5000)
    assert page.evaluate("kvsim.player.lens.turn") == 0
    assert cell(page, 8)["owner"] == [2]
    assert cell(page, 50)["shift"] == 0


def test_cells_that_the_window_passes_fade(show) -> None:
    """A window of 8: with position 12, position 4 falls out of reach of the next token."""
    payload = played(Setup(model="gemma3", cells=32, ubatch=8, window=8), "prompt 0 12", "decode 0")
    page = show(payload, 2)
    assert page.evaluate("kvsim.player.lanes[1].passed") == [5]
    assert not cell(page, 5, 1)["reuse"]
    page.evaluate(AT, page.length - 80)
    assert 0 < page.evaluate(OVER, [1, 5, 6, 6]) < 200
    page.evaluate(AT, 5000)
    assert cell(page, 5, 1)["reuse"] == 1


def test_a_failed_ubatch_is_rewound(show) -> None:
    """The third ubatch, tokens in cells 172–174, lands, and goes back the way it came."""
    page = show(recorded(ABORTED), 6)
    page.evaluate(AT, page.length - 180)
    assert page.evaluate(OVER, [0, 173, 0, 0]) > 200
    page.evaluate(AT, page.length - 60)
    assert page.evaluate(OVER, [0, 173, 0, 0]) < 200
    page.evaluate(AT, 9000)
    assert page.evaluate(OVER, [0, 173, 0, 0]) == 0
    assert cell(page, 173)["owner"] == []


def test_the_pointer_slides_to_the_snapshot_a_rollback_goes_to(show) -> None:
    page = show(recorded(SNAPSHOTS), 58)
    card = page.locator(".kv-card").nth(1)
    assert card.locator(".kv-plane-read").inner_text() == "plane 0\nafter 40"
    page.evaluate(AT, page.length - 120)
    assert card.locator(".kv-plane-read").inner_text() == "plane 2\nafter 38"
    assert card.locator(".kv-pointer").evaluate("e => e.style.transform") == "translate(0px, -28px)"
    page.evaluate(AT, 5000)
    assert page.locator(".kv-pointer").evaluate_all("all => all.map(e => e.style.transform)") == [
        "",
        "",
        "",
        "",
    ]


def test_states_and_tails_slide_to_other_cells(show) -> None:
    """Seq 2 goes from cell 2 to 3, seq 4 from 3 to 4, seq 1 from 4 to 2; tokens fall into the states before."""
    page = show(recorded(STATES), 13)
    foot = page.locator(".kv-card-foot")
    assert [foot.nth(k).inner_text() for k in (2, 3, 4)] == [
        "tail of seq 2",
        "tail of seq 4",
        "tail of seq 1",
    ]
    page.evaluate(AT, page.length - 120)
    assert [foot.nth(k).inner_text() for k in (2, 3, 4)] == [
        "tail of seq 1",
        "tail of seq 2",
        "tail of seq 4",
    ]
    moved = page.locator(".kv-sliding").evaluate_all("all => all.map(e => e.dataset.key)")
    assert sorted(moved) == sorted(f"{what} {seq}" for what in ("tail", "bar", "owner") for seq in (1, 2, 4))
    page.evaluate(AT, 9000)
    assert page.locator(".kv-sliding").count() == 0


def test_rings_fill_and_rows_follow(show) -> None:
    page = show(recorded(RINGS), 18)
    told = page.locator(".kv-compressor")
    seen = []
    for ms in (0, page.length * 0.4, page.length * 0.6, 9000):
        page.evaluate(AT, ms)
        seen.append(told.get_attribute("aria-label"))
    assert seen[0] == "seq 0: 0 csa rows, 0 hca rows"
    assert seen[3] == "seq 0: 28 csa rows, 0 hca rows"
    rows = [int(text.split()[2]) for text in seen]
    assert rows == sorted(rows)
    assert 0 < rows[1] < 28


@pytest.mark.parametrize(
    "act",
    [
        "prompt 0 12",
        "decode 0 1",
        "share 0 1 start end",
        "remove 0 2 end",
        "keep 0",
        "shift 0 start end -2",
        "divide 0 start end 2",
        "save 0",
        "save all",
        "restore 2 from 0",
        "clear",
        "defragment classic",
        "speculate 0 4 2",
        "prompt 0 20 abort 2",
    ],
)
def test_every_act_of_the_playground_moves_something(show, act: str) -> None:
    lines = ["prompt 0 6", "prompt 1 6", "remove 0 0 2", "save 1"]
    page = show(played(Setup(cells=64), *lines, act), len(lines) + 1)
    assert page.evaluate("kvsim.player.motion.tracks.length") > 0
    assert page.length > 100
    page.evaluate(AT, 9000)
    assert page.evaluate("kvsim.player.motion.running") is False


def test_a_save_runs_over_the_cells_it_reads(show) -> None:
    page = show(played(Setup(cells=32), "prompt 0 4", "prompt 1 4", "save 1"), 3)
    page.evaluate(AT, page.length / 2)
    pitch = page.evaluate("kvsim.player.lanes[0].pw")
    edge = -pitch / 2
    assert page.evaluate(OVER, [0, 6, edge, 0]) > 100
    assert page.evaluate(OVER, [0, 2, edge, 0]) == 0
