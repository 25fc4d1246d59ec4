"""The Attention page: what is shown is what was recorded and what the network read."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import recordings
from app.attention.picture import Place, pack, places, selective
from app.attention.walk import Walk
from app.views import attention
from kvsim.errors import KvsimError, TraceError
from kvsim.models.network import load_network
from kvsim.models.tiny import write_tiny

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
KV = "kv/llama-uni-c256-u16-s4-f16-03"
DSA = "dsa/deepseek32-str-c1024-u64-s1-q8_0-02"
MSA = "msa/minimax-m3-str-c1024-u64-s1-q8_0-02"
DSV4 = "dsv4/deepseek4-str-c256-u32-s4-f16-00"


def walk(name: str) -> Walk:
    return Walk(recordings.trace_of(recordings.path_of(name), name))


def picture(name: str, at: int, il: int = 0, ubatch: int = 0, head: int | None = None) -> dict:
    one = walk(name)
    moment = one.at(at)
    place = next(p for p in places(moment) if (p.ubatch, p.il) == (ubatch, il))
    return pack(one.trace.header, one.context.model, moment, place, head)


def matrix(packed: dict) -> np.ndarray:
    weights = np.frombuffer(base64.b64decode(packed["weights"]), "<f4")
    return weights.reshape(len(packed["rows"]), -1)


def bits(edges: list[int], n: int) -> np.ndarray:
    row = np.zeros(n, bool)
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        row[a:b] = True
    return row


def test_rows_and_masks_are_those_of_the_recording() -> None:
    """Operation 18, ubatch 1: positions 21-36 of seq 3 in cells 9-12, 35-37 and 73-81."""
    packed = picture(KV, 18)
    step = next(s for s in recordings.trace_of(recordings.path_of(KV), KV) if s.i == 18)
    assert [row[0] for row in packed["rows"]] == list(range(21, 37))
    assert [row[3] for row in packed["rows"]] == [9, 10, 11, 12, 35, 36, 37, *range(73, 82)]
    assert {packed["owners"][row[1]][0] for row in packed["rows"]} == {3}
    assert packed["mask"] == step.ubatches[0]["mask"]["kv"]
    assert packed["chosen"] is None
    assert packed["compressed"] is None


@pytest.mark.parametrize(("name", "at", "il"), [(KV, 18, 1), (DSA, 100, 0), (MSA, 79, 1), (DSV4, 90, 2)])
def test_weights_sum_to_one_and_lie_where_a_row_reads(name: str, at: int, il: int) -> None:
    packed = picture(name, at, il)
    weights, n = matrix(packed), packed["n_cells"]
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    read = packed["chosen"] or packed["mask"]
    for row, edges in enumerate(read):
        assert (weights[row, :n][~bits(edges, n)] == 0).all()


def test_a_head_can_be_looked_at_alone() -> None:
    heads = [matrix(picture(KV, 18, head=h)) for h in (0, 1)]
    assert abs(heads[0] - heads[1]).max() > 1e-3
    one = walk(KV)
    n_heads = one.at(18).seen[0].read.q.shape[1]
    mean = sum(matrix(picture(KV, 18, head=h)) for h in range(n_heads)) / n_heads
    np.testing.assert_allclose(matrix(picture(KV, 18)), mean, atol=1e-6)


def test_the_indexer_leaves_its_best_cells_of_the_mask() -> None:
    """deepseek32's small model keeps 8; the first 8 rows keep all they see."""
    packed = picture(DSA, 100)
    n = packed["n_cells"]
    for row, (mask, chosen) in enumerate(zip(packed["mask"], packed["chosen"], strict=True)):
        seen, left = bits(mask, n), bits(chosen, n)
        assert not (left & ~seen).any()
        assert left.sum() == min(8, seen.sum()) == min(8, row + 1)


def test_blocks_of_positions_are_chosen_whole() -> None:
    """Of a chosen block of 4 positions a row reads every one it may see."""
    one = walk(MSA)
    moment = one.at(79)
    il = min(selective(moment))
    place = next(p for p in places(moment) if p.il == il)
    packed = pack(one.trace.header, one.context.model, moment, place, 0)
    size, n, pos = packed["block"], packed["n_cells"], np.array(packed["pos"])
    assert size == 4
    for mask, chosen in zip(packed["mask"], packed["chosen"], strict=True):
        seen, left = bits(mask, n), bits(chosen, n)
        blocks = set(pos[left] // size)
        assert left.sum() < seen.sum()
        assert set(pos[seen & np.isin(pos // size, list(blocks))]) == set(pos[left])


def test_compressed_rows_stand_for_complete_blocks_of_tokens() -> None:
    """At position p, (p + 1) // 4 rows of csa are complete; the indexer reads at most 8 of them."""
    packed = picture(DSV4, 94, il=2)
    ratio, reads = packed["compressed"]["ratio"], packed["compressed"]["reads"]
    assert (packed["compressed"]["kind"], ratio, packed["compressed"]["overlap"]) == ("csa", 4, True)
    width = matrix(packed).shape[1] - packed["n_cells"]
    for (pos, *_), edges in zip(packed["rows"], reads, strict=True):
        rows = np.flatnonzero(bits(edges, width))
        assert rows.max(initial=-1) < (pos + 1) // ratio
        assert len(rows) == min(8, (pos + 1) // ratio)
    assert picture(DSV4, 94, il=0)["compressed"] is None


@pytest.mark.parametrize("folder", sorted({n.split("/")[0] for n in recordings.bundled()}))
def test_every_member_can_be_walked_and_agrees(folder: str) -> None:
    name = next(n for n in recordings.bundled() if n.startswith(f"{folder}/"))
    one = walk(name)
    steps = [s.i for s in one.trace if s.op == "decode" and s.ret == 0]
    moment = one.at(steps[len(steps) // 2])
    assert moment.differences == 0
    assert bool(places(moment)) == (folder != "recurrent")
    for place in places(moment):
        assert pack(one.trace.header, one.context.model, moment, place, None)["rows"]


def test_going_back_gives_the_same_again() -> None:
    one = walk(KV)
    place = Place(0, 0, 0)
    first = pack(one.trace.header, one.context.model, one.at(9), place, None)
    one.at(40)
    assert pack(one.trace.header, one.context.model, one.at(9), place, None) == first
    with pytest.raises(TraceError, match="there is no operation 99; the trace has 0 to 84"):
        one.at(99)


def test_a_long_walk_tells_how_far_it_is_and_goes_on_after_a_click() -> None:
    """What interrupts it is what Streamlit raises in a script whose user clicked elsewhere."""
    trace = recordings.trace_of(recordings.path_of(KV), KV)
    walk, heard = Walk(trace), []

    class Clicked(BaseException):
        pass

    def told(done: int) -> None:
        heard.append(done)
        if done == 9:
            raise Clicked

    with pytest.raises(Clicked):
        walk.at(18, told)
    moment = walk.at(18, heard.append)
    assert heard == list(range(1, 19))
    again = Walk(trace).at(18)
    assert (moment.step, moment.differences) == (again.step, 0)


def test_the_page_tells_how_far_a_long_walk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(attention, "PROGRESS_AFTER", -1.0)
    real = Walk.at

    def at_and_note(self: Walk, i: int, tell=lambda _: None):
        return real(self, i, lambda done: (told.append(done), tell(done)))

    monkeypatch.setattr(Walk, "at", at_and_note)
    at = start(scenario=KV, at="18")
    assert told == list(range(1, 19))
    assert "performing" not in " ".join(block.proto.body for block in at.get("html"))


def test_a_model_file_computes_the_same_operations(tmp_path) -> None:
    write_tiny("llama", tmp_path / "my.gguf")
    trace = recordings.trace_of(recordings.path_of(KV), KV)
    one = Walk(trace, load_network(tmp_path / "my.gguf"))
    moment = one.at(18)
    packed = pack(trace.header, one.context.model, moment, Place(0, 0, 0), None)
    assert packed["mask"] == picture(KV, 18)["mask"]
    assert abs(matrix(packed) - matrix(picture(KV, 18))).max() > 1e-4
    np.testing.assert_allclose(matrix(packed).sum(axis=1), 1, rtol=1e-5)


# -- the page ------------------------------------------------------------------------------------


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.query_params["page"] = "attention"
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def test_a_link_restores_what_was_looked_at() -> None:
    at = start(scenario=DSV4, at="94", layer="3", mode="scores")
    assert at.selectbox(key="attention-scenario").value == DSV4
    assert at.selectbox(key="attention-at").value == 94
    assert at.selectbox(key="attention-layer").value == 3
    assert at.query_params["mode"] == "scores"
    assert any("✓ as recorded" in block.proto.body for block in at.get("html"))


@pytest.mark.parametrize(
    "query",
    [
        {"scenario": "../x"},
        {"at": "-1"},
        {"at": "99999999"},
        {"at": "9" * 5000},
        {"layer": "77"},
        {"mode": "<b>"},
        {"row": "x"},
        {"row": "9" * 5000},
    ],
)
def test_a_damaged_link_shows_the_nearest(query: dict[str, str]) -> None:
    at = start(**query)
    assert at.selectbox(key="attention-scenario").value == KV
    assert not at.error


def test_choosing_another_recording_begins_with_its_longest_decode() -> None:
    at = start()
    at.selectbox(key="attention-scenario").select(DSA).run()
    assert not at.exception
    assert at.selectbox(key="attention-at").value == 100
    assert at.query_params["scenario"] == DSA


def test_a_memory_without_attention_says_so() -> None:
    at = start(scenario=next(n for n in recordings.bundled() if n.startswith("recurrent/")))
    assert "its memory is recurrent" in at.text[-1].value


def test_a_file_that_is_no_model_is_told(tmp_path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(KvsimError):
        load_network(tmp_path / "x.gguf")
    at = start()
    at.session_state["attention-refused"] = "x.gguf: not a GGUF file"
    at.run()
    assert at.error[0].value == "x.gguf: not a GGUF file"


@pytest.mark.browser
def test_rows_are_chosen_by_pointer_and_keys_and_kept_in_the_link(visit) -> None:
    page = visit(f"?page=attention&scenario={KV}&at=18&row=9", height=900)
    page.locator(".kva .kv-say", has_text="The token at position 30 of seq 3").wait_for()
    assert "may attend to 31 of 256 cells: positions 0–30" in page.locator(".kva .kv-say").inner_text()
    side = page.locator(".kva-side").inner_text()
    for line in ("empty\n\n174", "another sequence\n\n45", "a later position\n\n6", "no window"):
        assert line.replace("\n\n", "\n") in side.replace("\n\n", "\n")
    page.locator(".kva").focus()
    page.keyboard.press("ArrowUp")
    page.locator(".kva .kv-say", has_text="position 29 of seq 3").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('row') === '8'")
    box = page.locator(".kva-grid canvas").nth(1).bounding_box()
    page.mouse.click(box["x"] + 300, box["y"] + 12)
    page.locator(".kva .kv-say", has_text="position 21 of seq 3").wait_for()
    page.mouse.move(box["x"] + 60, box["y"] + 12)
    page.locator(".kva-side", has_text="for this row").wait_for()
    page.get_by_role("radio", name="scores").click()
    page.wait_for_function("new URL(location.href).searchParams.get('mode') === 'scores'")
    page.locator(".kva .kv-say", has_text="position 21 of seq 3").wait_for()
