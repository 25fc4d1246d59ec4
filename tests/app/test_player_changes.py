"""How a cell has changed, as the player calls it: what the memory said while it performed the operation."""

from __future__ import annotations

import pytest

from kvsim.events import Recorder
from kvsim.player.payload import pack
from kvsim.replay import Replayer, context_of
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

STREAMS = "dsa/deepseek32-str-c256-u16-s4-f16-08"
ROLLBACK = "hybrid/lfm2-noswa-str-c256-u16-s8-f16-rs2-04"

WRITE, FREE, PURGE, SHARE, RELEASE, SHIFT, TURN, UNDO = range(1, 9)

SAID_BY = {
    WRITE: {"write", "copy_queued"},
    FREE: {"free", "purge"},
    PURGE: {"purge"},
    SHARE: {"share"},
    SHIFT: {"shift"},
    TURN: {"k_shift"},
    UNDO: {"free"},
}
"""Kind of change -> the events that tell of it. A cell that another owner keeps is no event of the cell."""

KINDS = """() => { const m = kvsim.player.model; return m.steps.map((_, i) => m.frame(i).lanes.map((lane, k) =>
  lane.changes.map(c => [c.kind, `${m.lanes[k].cache} ${m.lanes[k].stream} ${c.cell}`])).flat()) }"""


def recorded(name: str) -> dict:
    trace = read_trace(f"fixtures/traces/{name}.jsonl.gz")
    return pack(trace.header, trace, name)


def events_of(name: str) -> list[dict[str, set[str]]]:
    """Per operation, what the memory said of each cell: ``cache stream cell`` -> kinds of events."""
    trace = read_trace(f"fixtures/traces/{name}.jsonl.gz")
    replayer, recorder = Replayer(context_of(trace.header)), Recorder()
    replayer.context.observe(recorder)
    found = []
    for step in trace:
        replayer.step(step.i, step.op, step.args)
        said: dict[str, set[str]] = {}
        for event in recorder.take():
            for cell in event.cells:
                said.setdefault(f"{event.cache} {event.stream} {cell}", set()).add(event.kind)
        found.append(said)
    return found


@pytest.mark.parametrize(
    "name",
    [
        STREAMS,  # copies over what a stream held
        "iswa/gemma3-swa20-uni-c512-u64-s8-q8_0-05",  # purges, window cells taken over
        "dsv4/deepseek4-str-c1024-u64-s1-q8_0-rs2-02",  # an aborted ubatch that stays, over window cells
        ROLLBACK,  # a rollback that removes older cells too
    ],
)
def test_changes_are_called_what_the_memory_said(show, name) -> None:
    page = show(recorded(name))
    calls = page.evaluate("kvsim.player.model.steps.map(s => s.call)")
    for call, changes, said in zip(calls, page.evaluate(KINDS), events_of(name), strict=True):
        if call.startswith("state_"):  # a restore tells of whole sequences
            continue
        for kind, where in changes:
            assert kind == RELEASE or SAID_BY[kind] & said.get(where, set()), (call, kind, where)


def test_cells_that_a_copy_between_streams_replaces_are_overwritten_not_shifted(show) -> None:
    """Stream 0 held positions 5–20 of its own; the copy puts those of stream 1 into the same cells."""
    page = show(recorded(STREAMS), 67)
    details = page.locator(".kv-inspector").inner_text()
    assert "overwritten in mla, stream 0\n16 cells: 0–15" in details
    assert "shifted" not in details
    assert "keys turned" not in details
    page.evaluate("kvsim.player.select({ lane: 0, cell: 3 })")
    history = page.locator(".kv-history li", has_text="67")
    history.get_by_text("overwritten by a copy: seq 0, position 3").wait_for()
    assert page.evaluate("kvsim.player.lanes[0].cell(3).unknown") == 2  # dotted until the rows follow
    page.keyboard.press("End")
    assert page.evaluate("kvsim.player.lanes[0].cell(3).unknown") == 0


def test_a_rollback_is_told_as_one(show) -> None:
    """A rollback goes by positions: what the sequence held from the failed ubatch's first one on goes too."""
    page = show(recorded(ROLLBACK), 59)
    details = page.locator(".kv-inspector").inner_text()
    assert "rolled back in attn, stream 3\n106 cells: 0–105" in details
    assert "purged" not in details
