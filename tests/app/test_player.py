"""The player in a browser, on a page of its own: what it decodes, draws, tells and answers to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from long_chats import chats

from kvsim.changes import PictureReader
from kvsim.player.payload import Packer, pack
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

TRACES = Path("fixtures/traces")
KV = "kv/llama-uni-c256-u16-s4-f16-03"
ISWA = "iswa/gemma3-swa20-uni-c512-u64-s8-q8_0-05"


DECODED = [KV, ISWA, "kv/qwen2vl-uni-c256-u32-s4-f16-11", "hybrid/jamba-str-c256-u32-s4-f16-00"]


def payload_of(name: str) -> dict:
    trace = read_trace(TRACES / f"{name}.jsonl.gz")
    return pack(trace.header, trace, name)


def until(page, condition: str) -> None:
    """Wait in the page itself: its own policy forbids the waits that evaluate text there again and again."""
    turn = f"const f = () => ({condition}) ? done() : requestAnimationFrame(f); f()"
    page.evaluate(f"() => new Promise(done => {{ {turn} }})")


def say(page) -> str:
    return page.locator(".kv-say").inner_text()


def number(page) -> str:
    return page.locator(".kv-number").inner_text()


# What the player holds of a step, as one number per lane; the same sum as `digests` makes.
DIGEST = """order => order.map(i => { const m = kvsim.player.model; m.frame(i);
  return m.now.map(c => { let sum = 0;
    for (let k = 0; k < c.size; k++) {
      const own = m.owners[c.owner[k]].reduce((a, s) => a + s + 2, 0);
      const tok = c.owner[k] ? c.tok[k] + 5 : 4;
      sum = (sum * 31 + own * 7 + (c.pos[k] + 2) * 3 + c.shift[k] + tok) % 1000003;
    }
    return [((sum % 1000003) + 1000003) % 1000003, c.head, c.used]; }) })"""


def digests(name: str) -> list:
    trace = read_trace(TRACES / f"{name}.jsonl.gz")
    reader = PictureReader(trace.header)
    found = []
    for step in trace:
        lanes = []
        for lane in reader.read(step.after).lanes:
            own = np.array([sum(s + 2 for s in ids) for ids in reader.owners.sets])[lane.owners]
            tok = np.where(lane.owners != 0, lane.cells[:, 3] + 5, 4)
            total = 0
            for v in (own * 7 + (lane.pos + 2) * 3 + lane.cells[:, 2] + tok).tolist():
                total = (total * 31 + v) % 1000003
            lanes.append([total, lane.head, lane.used])
        found.append(lanes)
    return found


@pytest.mark.parametrize(
    "name", [KV, ISWA, "kv/qwen2vl-uni-c256-u32-s4-f16-11", "hybrid/jamba-str-c256-u32-s4-f16-00"]
)
def test_every_step_is_decoded_as_recorded_in_any_order(show, name) -> None:
    expected = digests(name)
    page = show(payload_of(name))
    forth = list(range(len(expected)))
    order = forth + forth[::-1] + [3, len(expected) - 1, 7, 0]
    assert page.evaluate(DIGEST, order) == [expected[i] for i in order]


def test_the_sentence_follows_the_step(show) -> None:
    page = show(payload_of(KV), at=16)
    assert number(page) == "16"
    assert say(page).startswith("Positions 8–42 of seq 2 roll back by 8, to 0–34. No cell moves.")
    page.get_by_role("button", name="One step on").click()
    assert number(page) == "17"
    assert say(page).startswith(
        "First the 35 pending keys turn by −8. Then position 35 of seq 2 goes to cell 8"
    )


def test_keys_step_jump_and_play(show) -> None:
    page = show(payload_of(ISWA))
    page.keyboard.press("ArrowRight")  # a page of its own needs no click first
    assert number(page) == "1"
    page.keyboard.press("End")
    assert number(page) == "96"
    page.keyboard.press("Home")
    page.keyboard.press("]")
    assert number(page) == "6"  # the first failure
    assert page.locator(".kv-sentence.kv-failed").count() == 1
    page.keyboard.press("?")
    assert page.get_by_role("region", name="Keyboard").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("region", name="Keyboard").count() == 0
    page.keyboard.press(".")
    page.keyboard.press(".")
    page.keyboard.press("Space")
    until(page, "kvsim.player.at > 9")
    page.keyboard.press("Space")
    stopped = number(page)
    page.wait_for_timeout(250)
    assert number(page) == stopped


def test_shift_and_arrow_step_by_ubatch(show) -> None:
    page = show(payload_of(KV), at=17)
    page.locator(".kv").focus()
    page.keyboard.press("Shift+ArrowRight")
    assert say(page).startswith("Ubatch 1 of 2: positions 21–36 of seq 3 go to cells 9–12, 35–37 and 73–81")
    until(page, "!kvsim.player.motion.running")
    held = page.evaluate("[81, 82].map(i => kvsim.player.lanes[0].cell(i).owner)")
    assert held == [[3], []]  # the second ubatch has not come yet
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("kvsim.player.lanes[0].cell(82).owner") == [3]


def test_hovering_a_cell_tells_its_history(show) -> None:
    page = show(payload_of(KV), at=18)
    box = page.locator(".kv-grid").bounding_box()
    pitch = box["width"] / 32
    page.mouse.move(box["x"] + 5.5 * pitch, box["y"] + 1.5 * pitch)
    history = page.locator(".kv-history")
    history.wait_for()
    assert page.locator(".kv-inspector h3").first.inner_text() == "Cell 37"
    lines = [line.split("\n") for line in history.locator("li").all_inner_texts()]
    assert lines[:4] == [
        ["6", "written: seq 2, position 7"],
        ["11", "written again by a restore"],
        ["15", "freed by seq_rm(2, 0, 8)"],
        ["18", "written: seq 3, position 27"],
    ]
    history.get_by_role("button", name="15", exact=True).click()
    until(page, "document.querySelector('.kv-number').textContent === '15'")


def test_arrows_in_the_grid_move_over_cells_and_are_told(show) -> None:
    page = show(payload_of(KV), at=16)
    page.locator(".kv-grid").focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert (
        page.locator(".kv-grid [role=gridcell]").inner_text()
        == "cell 65, seq 2, position 27, shift −8 pending"
    )
    page.keyboard.press("Enter")
    assert page.evaluate("kvsim.player.selected") == {"lane": 0, "cell": 65}


def test_a_refused_decode_explains_itself(show) -> None:
    page = show(payload_of(ISWA), at=30)
    assert say(page).startswith("The base cache is one cell short: 199 cells asked for, 198 free.")
    card = page.locator(".kv-why")
    assert "ubatch 4: 7 wanted, 6 left" in card.inner_text()
    assert "198 tokens or fewer" in page.locator(".kv-inspector").inner_text()


def test_timeline_scrubs_without_motion(show) -> None:
    page = show(payload_of(KV))
    box = page.locator(".kv-timeline").bounding_box()
    at = lambda i: box["x"] + 8 + (i + 0.5) * min(28, (box["width"] - 16) / 85)  # noqa: E731
    page.mouse.move(at(40), box["y"] + 30)
    assert "Seq 0 joins the 6 cells of seq 2" in page.locator(".kv-tip").inner_text()
    page.mouse.down()
    page.mouse.move(at(60), box["y"] + 30)
    page.mouse.up()
    assert number(page) == "60"
    assert page.evaluate("kvsim.player.motion.running") is False


def test_reduced_motion_changes_at_once(show) -> None:
    page = show(payload_of(KV), at=17, reduced_motion="reduce")
    page.locator(".kv").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[kvsim.player.motion.running, kvsim.player.lanes[0].rings.size]") == [False, 31]


def test_tokens_fly_and_land_where_they_were_written(show) -> None:
    page = show(payload_of(KV), at=17)
    page.evaluate("kvsim.player.step(1)")
    assert page.evaluate("[kvsim.player.motion.running, kvsim.player.lanes[0].held.size]") == [True, 31]
    until(page, "!kvsim.player.motion.running")
    assert page.evaluate("[kvsim.player.lanes[0].held.size, kvsim.player.lanes[0].rings.size]") == [0, 31]


def test_text_of_a_file_is_never_markup(show) -> None:
    payload = payload_of(KV)
    evil = "<img src=x onerror='window.hurt=1'></script><script>window.hurt=2</script>"
    payload["steps"][3] |= {"say": evil, "call": f"{evil}()", "short": evil, "ret": evil}
    page = show(payload, at=3)
    assert say(page) == evil
    assert page.evaluate("window.hurt") is None
    assert page.locator(".kv img").count() == 0


@pytest.mark.parametrize("name", sorted({p.parent.name for p in TRACES.glob("*/*.gz")}))
def test_every_memory_type_is_shown(show, name) -> None:
    file = sorted((TRACES / name).glob("*.gz"))[-1]
    trace = read_trace(file)
    page = show(pack(trace.header, trace, file.stem))
    n = page.evaluate("kvsim.player.model.nSteps")
    page.evaluate("for (let i = 0; i < kvsim.player.model.nSteps; i += 5) kvsim.player.go(i)")
    page.evaluate("i => kvsim.player.go(i)", n - 1)
    shown = page.evaluate("kvsim.player.stage.shown.length")
    recurrent = trace.header.config["recurrent"]
    assert shown > 0 or recurrent
    assert page.locator(".kv-card").count() == (recurrent["size"] if recurrent else 0)
    assert page.locator(".kv-compressor").is_visible() == (name == "dsv4")


def test_stale_pools_are_told_beside_the_indexer_cells(show) -> None:
    """The pooled keys of seq 0 are stale from position 49 on after operation 9, and fresh after a decode."""
    page = show(payload_of("hybrid_idx/qwen4exp-uni-c512-u16-s2-f16-rs2-01"), at=9)
    lanes = page.locator(".kv-lane")
    assert "pools stale: seq 0 from 49" in lanes.nth(1).inner_text()
    assert "pools" not in lanes.nth(0).inner_text()
    page.keyboard.press("ArrowRight")
    assert "pools" not in lanes.nth(1).inner_text()


PLAY = """([from, speed]) => new Promise(done => { const p = kvsim.player; p.go(from); p.setSpeed(speed);
  const end = performance.now() + 2000;
  let frames = 0;
  const frame = () => { frames++;
    if (performance.now() < end || p.at < from + 4) return requestAnimationFrame(frame);
    p.pause(); done(frames); };
  p.play(); requestAnimationFrame(frame); })"""


def busy(session) -> float:
    """Seconds of processor time that the page's main thread has taken; waiting for a processor is not counted."""
    found = session.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in found if metric["name"] == "TaskDuration")


@pytest.mark.parametrize(("cells", "steps"), [(8192, 2000), (131072, 160)])
def test_long_recordings_open_quickly_and_play_smoothly(show, cells, steps) -> None:
    """A frame's share of the processor leaves room for 60 a second, whatever else the machine does."""
    page = show(json.loads(chats(cells, steps)))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    assert page.evaluate("kvsim.player.model.nSteps") == steps
    before = busy(session)
    page.reload()
    page.locator(".kv-say", has_text=".").wait_for()
    assert busy(session) - before < 2
    before = busy(session)
    frames = page.evaluate(PLAY, [steps // 2, 4])
    assert (busy(session) - before) / frames < 1 / 60
    keys = page.evaluate("[...kvsim.player.model._keys.values()].length")
    assert keys * cells * 15 < 80 * 2**20  # keyframes stay within their bound


def test_a_step_back_shows_ghosts_of_what_was_freed(show) -> None:
    page = show(payload_of(KV), at=20)
    page.evaluate("kvsim.player.go(15)")
    ghosts = page.evaluate("[...kvsim.player.lanes[0].ghosts.keys()].sort((a, b) => a - b)")
    assert ghosts == [8, 9, 10, 11, 12, 35, 36, 37]
    assert page.evaluate("kvsim.player.lanes[0].ghosts.get(35).pos") == 5


def test_packing_stops_where_the_recording_does() -> None:
    trace = read_trace(TRACES / f"{KV}.jsonl.gz")
    packer = Packer(trace.header, "part")
    for step in list(trace)[:10]:
        packer.add(step)
    assert [s["i"] for s in packer.payload()["steps"]] == list(range(10))


def test_more_of_the_same_recording_leaves_the_player_where_it_is(show) -> None:
    """A recording that is still being read comes in parts: the step, the speed and what is selected stay."""
    whole = payload_of(KV)
    page = show({**whole, "steps": whole["steps"][:10]}, at=7)
    page.evaluate(
        "p => { kvsim.player.setSpeed(0.25); kvsim.player.select({lane: 0, cell: 3}); kvsim.extend(p) }",
        whole,
    )
    assert number(page) == "7"
    assert page.evaluate("kvsim.player.model.nSteps") == len(whole["steps"])
    assert page.evaluate("[kvsim.player.speed, kvsim.player.selected.cell, kvsim.player.playing]") == [
        0.25,
        3,
        False,
    ]
    assert page.evaluate(DIGEST, [7, 84]) == [digests(KV)[7], digests(KV)[84]]


def test_a_player_that_plays_goes_on_over_the_end_of_a_part(show) -> None:
    whole = payload_of(KV)
    page = show({**whole, "steps": whole["steps"][:10]}, at=7)
    page.evaluate("p => { kvsim.player.play(); kvsim.extend(p) }", whole)
    assert page.evaluate("kvsim.player.playing")
    until(page, "kvsim.player.at > 10")


def framed(page) -> bool:
    """Whether the player as a whole has its frame."""
    return page.locator(".kv").evaluate("e => getComputedStyle(e, '::after').borderTopWidth") == "2px"


def test_keys_act_at_once_and_only_the_tab_key_brings_the_frame(show):
    page = show(payload_of(KV), at=5)
    assert not framed(page)
    page.keyboard.press("ArrowRight")
    until(page, "kvsim.player.at === 6")
    assert not framed(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert framed(page)
    page.locator(".kv-lane-name").first.click()
    page.get_by_role("button", name="One step on").click()
    assert not framed(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_line_of_the_ground_lies_between_the_stripes_of_every_pair_of_sequences(show, theme):
    """Between them, cells come much nearer to the ground than the colour that is nearest to it."""
    page = show(payload_of(KV), theme=theme)
    near = page.evaluate("""() => {
      const { theme } = kvsim.player, found = [];
      const numbers = (color) => color.match(/\\w\\w/g).map((h) => parseInt(h, 16));
      const ground = numbers(theme.bg), far = (c) => Math.hypot(...ground.map((v, k) => v - c[k]));
      for (const pitch of [5, 11, 28]) for (let a = 0; a < 12; a++) for (let b = a + 1; b < 12; b++) {
        const ctx = new OffscreenCanvas(56, 1).getContext("2d");
        ctx.fillStyle = theme.bands(ctx, [a, b], pitch);
        ctx.fillRect(0, 0, 56, 1);
        const { data } = ctx.getImageData(0, 0, 56, 1);
        const least = Math.min(...Array.from({ length: 56 }, (_, x) => far(data.slice(4 * x, 4 * x + 3))));
        found.push(least / Math.min(far(numbers(theme.color(a))), far(numbers(theme.color(b)))));
      }
      return found;
    }""")
    assert len(near) == 3 * 66
    assert max(near) < 0.4


def test_a_sequence_of_one_position_names_it_once(show):
    """ "0" and "2, was 0", where a sequence of several has "0–7"."""
    trace = read_trace("fixtures/hazards/shift-moves-other-owners.jsonl.gz")
    page = show(pack(trace.header, trace, "one"), at=2)
    notes = "document.querySelector('.kv-rulers').getAttribute('aria-label')"
    assert page.evaluate(notes) == "seq 0: 2, was 0; seq 1: 2, was 0"
