"""Recordings as files: what the endings make, what is refused, and that text stays text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import kvsim
from kvsim.cli import app
from kvsim.errors import KvsimError, TraceError
from kvsim.player.page import _fonts
from kvsim.player.palette import SEQUENCES
from kvsim.render import Wanted, render
from kvsim.render import film as films
from kvsim.render.colours import Colours
from kvsim.render.frames import frames_of
from kvsim.render.html import html_page
from kvsim.render.lane_cells import LaneCells
from kvsim.render.layout import Place, place
from kvsim.render.sheet import Sheet
from kvsim.trace import read_trace

KV = "fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz"
TYPES = sorted({p.parent.name for p in Path("fixtures/traces").glob("*/*.gz")})


def kv():
    return read_trace(KV)


def make(tmp_path, name: str, **wanted: object) -> Path:
    out = tmp_path / name
    render(kv(), out, Wanted(**wanted))
    return out


def share_of(image: Image.Image, colour: str) -> float:
    """How much of the picture has exactly this colour."""
    wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return float((np.asarray(image.convert("RGB")) == wanted).all(axis=2).mean())


def test_a_still_shows_the_step_in_the_colours_of_its_sequences(tmp_path) -> None:
    """After operation 18 seq 1 holds 8 cells, seq 2 36: so much more of the picture has its colour."""
    image = Image.open(make(tmp_path, "x.png", last=18, width=1280))
    assert image.width == 1280
    one, two = (share_of(image, SEQUENCES["light"][seq]) for seq in (1, 2))
    assert one > 0.003
    assert two / one == pytest.approx(36 / 8, rel=0.1)
    assert share_of(image, SEQUENCES["light"][7]) == 0
    empty = Image.open(make(tmp_path, "y.png", last=0, width=1280))
    assert share_of(empty, SEQUENCES["light"][1]) == 0


def test_a_vector_still_is_the_same_every_time_and_holds_no_picture(tmp_path) -> None:
    one, two = (make(tmp_path, name, last=18).read_bytes() for name in ("a.svg", "b.svg"))
    assert one == two
    assert one.count(b"<path") > 200
    assert b"<image" not in one


def test_a_film_has_its_size_its_operations_and_its_pace(tmp_path) -> None:
    slow = Image.open(make(tmp_path, "a.gif", first=14, last=16, width=480, height=300))
    fast = Image.open(make(tmp_path, "b.gif", first=14, last=16, width=480, height=300, speed=3))
    assert slow.size == fast.size == (480, 300)

    def seconds(film: Image.Image) -> float:
        times = []
        for k in range(film.n_frames):
            film.seek(k)
            times.append(film.info["duration"])
        return sum(times) / 1000

    assert seconds(slow) == pytest.approx(4 * 0.9 + 2 * 4 * 0.06, abs=0.05)
    assert seconds(fast) == pytest.approx(seconds(slow) / 3, abs=0.1)


def test_mp4_gives_ffmpeg_raw_pictures_and_tells_its_reason(tmp_path, monkeypatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text('#!/bin/sh\ncat > "$0.in"\nfor last; do :; done\necho film > "$last"\n')
    program.chmod(0o755)
    monkeypatch.setattr(films.shutil, "which", lambda _: str(program))
    out = make(tmp_path, "x.mp4", first=19, last=19, width=320, height=200)
    assert out.read_text() == "film\n"
    assert (tmp_path / "ffmpeg.in").stat().st_size == 320 * 200 * 3 * round(1.8 * films.RATE)
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    with pytest.raises(KvsimError, match="ffmpeg failed: no such codec"):
        make(tmp_path, "y.mp4", first=19, last=19, width=320, height=200)
    assert not (tmp_path / "y.mp4").exists()


def test_without_ffmpeg_the_message_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(films.shutil, "which", lambda _: None)
    with pytest.raises(KvsimError, match=r"MP4 needs ffmpeg on the PATH; install it, or write a \.gif"):
        make(tmp_path, "x.mp4")


@pytest.mark.parametrize(
    ("name", "wanted", "message"),
    [
        ("x.pdf", {}, r"use one of \.html, \.gif, \.mp4, \.png, \.svg"),
        ("x.png", {"width": 20}, "a width of 20 is not possible: 160 to 4096 pixels are"),
        ("x.gif", {"speed": 0}, "a speed of 0 is not possible"),
        ("x.gif", {"first": 8, "last": 3}, "operations 8-3: the last comes before the first"),
        ("x.png", {"last": 85}, "there is no operation 85; the trace has 0 to 84"),
        ("x.html", {"first": 85}, "there is no operation 85; the trace has 0 to 84"),
        ("x.gif", {"first": 90}, "there is no operation 90; the trace has 0 to 84"),
        ("none/x.svg", {"last": 1}, "cannot be written: No such file"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, name, wanted, message) -> None:
    with pytest.raises(KvsimError, match=message):
        make(tmp_path, name, **wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", TYPES)
def test_every_member_of_the_family_can_be_drawn(tmp_path, memory) -> None:
    path = sorted(Path(f"fixtures/traces/{memory}").glob("*.gz"))[-1]
    render(read_trace(path), tmp_path / "x.png", Wanted(last=30, width=900, theme="dark"))
    assert Image.open(tmp_path / "x.png").width == 900


def test_many_lanes_keep_cells_that_can_be_seen(tmp_path) -> None:
    """20 lanes, of which 6 are used: after operation 32 seq 3 holds 79 cells in two of them."""
    trace = read_trace("fixtures/traces/dsv4/deepseek4-str-c256-u16-s4-f16-08.jsonl.gz")
    (frame,) = frames_of(trace, 32, 32)
    sheet = Sheet(900, None, Colours("light"), [frame])
    assert [frame.after.lanes[k].spec.cache for k in sheet.shown] == ["raw.base"] * 3 + ["raw.swa"] * 3
    assert all(spot.pitch >= 5 for spot in sheet.places)
    render(trace, tmp_path / "x.png", Wanted(first=32, last=32, width=900))
    assert share_of(Image.open(tmp_path / "x.png"), SEQUENCES["light"][3]) > 0.02
    for places in (sheet.places, place([256] * 20, [256] * 20, 800, 100, 300)):
        assert all(spot.height >= spot.rows for spot in places)  # a row is never thinner than a pixel


def test_grids_of_one_memory_stand_below_each_other_at_any_size() -> None:
    """Same pitch and columns; inside the width; very many cells get a pixel each."""
    for sizes in ([256], [512, 256], [1024] * 5, [131072], [32768, 4096]):
        places = place(sizes, sizes, 1180, 100, 600)
        assert len({(p.cols, p.pitch) for p in places}) == 1
        for p, size in zip(places, sizes, strict=True):
            assert p.rows * p.cols >= size
            assert p.width <= 1180
            assert p.y + p.height <= 100 + 600 + 1


def test_the_command_makes_what_the_ending_says(tmp_path) -> None:
    out = tmp_path / "x.png"
    result = CliRunner().invoke(app, ["render", KV, "-o", str(out), "--at", "18", "--size", "640x400"])
    assert result.exit_code == 0, result.output
    assert Image.open(out).size == (640, 400)
    for wrong in (["--at", "x"], ["--size", "big"], ["--at", "99"], ["--at", "3-"], ["--at", "٣"]):
        assert CliRunner().invoke(app, ["render", KV, "-o", str(out), *wrong]).exit_code == 2


def test_where_nothing_can_be_written_is_said_before_anything_is_drawn(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kvsim.cli.render.render", lambda *_: pytest.fail("drawn"))
    own = tmp_path / "own.html"
    own.write_bytes(Path(KV).read_bytes())
    (tmp_path / "x.gif").mkdir()
    for trace, out, told in (
        (KV, tmp_path / "none" / "x.gif", "there is no folder"),
        (KV, tmp_path / "x.gif", "is a folder"),
        (own, own, "is the file that is read"),
    ):
        result = CliRunner().invoke(app, ["render", str(trace), "-o", str(out)])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert told in result.stderr


def test_kvsim_makes_pages_without_the_app_or_matplotlib() -> None:
    code = (
        "import sys, kvsim; kvsim.display(sys.argv[1]);"
        "print([m for m in ('app', 'streamlit', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, KV], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_display_refuses_a_step_that_is_not_there() -> None:
    with pytest.raises(TraceError, match="there is no operation 900"):
        kvsim.display(KV, at=900)


# -- in a browser --------------------------------------------------------------------------------


@pytest.mark.browser
def test_a_page_opens_offline_and_keeps_its_own_policy(new_page, tmp_path) -> None:
    """Nothing is fetched, the page keeps to its policy, and a script that is added does not run."""
    out = make(tmp_path, "x.html", first=18)
    page = new_page(offline=True)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(out.as_uri())
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-number").inner_text() == "18"
    page.keyboard.press("Tab")
    page.get_by_role("button", name="One step on").click()
    assert page.locator(".kv-number").inner_text() == "19"
    assert (told, asked) == ([], [out.as_uri()])
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.hurt = 1';"
        " document.body.append(s); }"
    )
    assert page.evaluate("window.hurt") is None
    assert "Content Security Policy" in told[0]


@pytest.mark.browser
def test_a_page_brings_its_fonts(new_page, tmp_path) -> None:
    """Both are drawn with, offline, and weigh little."""
    page = new_page(offline=True)
    page.goto(make(tmp_path, "x.html", first=18).as_uri())
    page.locator(".kv-say").wait_for()
    loaded = "async () => { await document.fonts.ready; return [...document.fonts].map(f => [f.family, f.status]); }"
    assert page.evaluate(loaded) == [["kvsim Sans", "loaded"], ["kvsim Mono", "loaded"]]
    assert page.locator(".kv-say").evaluate("e => getComputedStyle(e).fontFamily").startswith('"kvsim Sans"')
    assert len(_fonts()) < 60_000


@pytest.mark.browser
def test_a_page_in_a_frame_without_room_waits_for_some(new_page, tmp_path) -> None:
    """With hazards to tell, which come before there is anything to draw on."""
    make(tmp_path, "x.html", first=17)
    (tmp_path / "outer.html").write_text('<iframe src="x.html" width="1000" height="700" hidden></iframe>')
    page = new_page()
    page.goto((tmp_path / "outer.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_load_state()
    frame.evaluate("kvsim.player.note({ 17: { hazards: [{ title: 'one', text: 'two' }] } })")
    assert frame.evaluate("kvsim.player.frame") is None
    page.locator("iframe").evaluate("e => { e.hidden = false; }")
    shown = page.frame_locator("iframe")
    assert shown.locator(".kv-number").inner_text() == "17"
    shown.locator(".kv-hazard", has_text="Hazard: one").first.wait_for()


@pytest.mark.browser
def test_the_last_step_of_a_failure_tells_both_sides(new_page, tmp_path) -> None:
    out = tmp_path / "x.html"
    out.write_text(html_page(read_trace("fixtures/museum/lanes-cut-apart.jsonl"), at=2))
    page = new_page()
    page.goto(out.as_uri())
    told = page.locator(".kv-side .kv-apart, .kv-inspector .kv-apart").first
    told.get_by_text("✕ lanes-cut-apart differs from the ledger").wait_for()
    assert told.locator("b").all_inner_texts()[:2] == ["lanes-cut-apart: ", "reference: "]
    page.locator(".kv-mark", has_text="✕ differs").wait_for()


@pytest.mark.browser
def test_hostile_text_in_a_trace_is_shown_as_text(new_page, tmp_path) -> None:
    evil = "</script><img src=x onerror='window.hurt=1'>"
    trace = kv()
    trace.path = f"{evil}.jsonl"
    object.__setattr__(trace.header, "arch", evil)
    out = tmp_path / "x.html"
    out.write_text(html_page(trace))
    page = new_page()
    page.goto(out.as_uri())
    page.locator(".kv-say").wait_for()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0


@pytest.mark.browser
def test_a_notebook_shows_the_player_in_a_frame_of_its_own(new_page, tmp_path) -> None:
    shown = kvsim.display(KV, at=16, height=500)
    out = tmp_path / "notebook.html"
    out.write_text(f"<!doctype html><h1>Lecture 3</h1>{shown._repr_html_()}<p>after")
    page = new_page()
    page.goto(out.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".kv-say").wait_for()
    assert frame.locator(".kv-number").inner_text() == "16"
    assert page.locator("iframe").bounding_box()["height"] == 500
    frame.get_by_role("button", name="One step on").click()
    assert frame.locator(".kv-number").inner_text() == "17"


def test_a_copy_between_streams_is_drawn_as_written_and_a_shift_as_rolling(monkeypatch) -> None:
    """Half way, cell 0 of a replaced stream already shows its new position 0; shifted ones are on their way."""
    shown: list[tuple[str, float]] = []
    monkeypatch.setattr(
        "kvsim.render.cells.draw_cell",
        lambda ink, colours, x, y, pitch, look, share=1.0: shown.append((look.label, share)),
    )

    def half_way(name: str, at: int) -> list[tuple[str, float]]:
        shown.clear()
        (frame,) = frames_of(read_trace(f"fixtures/traces/{name}.jsonl.gz"), at, at)
        spot = Place(y=0, cols=32, rows=2, pitch=28, width=896, height=56)
        lanes = frame.before.lanes[0], frame.after.lanes[0]
        LaneCells(None, None, frame, *lanes, spot, (0.0, 0.0)).draw(0.5)
        return shown

    copied = half_way("dsa/deepseek32-str-c256-u16-s4-f16-08", 67)
    assert copied[:3] == [("0", 0.675), ("1", 0.675), ("2", 0.675)]
    shifted = half_way("kv/llama-uni-c256-u16-s4-f16-03", 16)
    assert shifted[38] == ("4", 1.0)  # position 8 rolls back to 0
