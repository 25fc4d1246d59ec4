"""Sessions in files: what comes back, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from policy_slots import OTHER, TEXT, assert_as_fresh, leaf, new_slot

from kvsim.events import Recorder
from kvsim.policies import SessionReport, restore_session, reuse, save_session
from kvsim.policies.slot import Slot

NAMES = ["llama", "window", "hybrid", "recurrent", "dsv4"]


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_conversation_goes_on_as_the_saved_one(name: str, tmp_path: Path) -> None:
    window = 4 if name == "window" else 0
    slot = new_slot(name, n_swa=window)
    slot.feed(TEXT[:13])
    saved = save_session(slot, tmp_path / "slot.bin")
    assert saved == SessionReport(13, (tmp_path / "slot.bin").stat().st_size)
    there = new_slot(name, n_swa=window, seq=1)
    there.feed(OTHER[:5])
    assert restore_session(there, tmp_path / "slot.bin") == saved
    assert (there.tokens, there.agrees) == (TEXT[:13], True)
    assert (there.cost.bytes_read, there.cost.reused) == (saved.n_bytes, 13)
    assert slot.cost.bytes_written == saved.n_bytes
    assert_as_fresh(there, name, n_swa=window)


def test_the_file_begins_with_magic_version_and_tokens(tmp_path: Path) -> None:
    slot = new_slot()
    slot.feed([7, 8])
    save_session(slot, tmp_path / "s")
    head = struct.unpack("<IIIii", (tmp_path / "s").read_bytes()[:20])
    assert head == (0x67677371, 4, 2, 7, 8)


def test_one_sequence_moves_into_a_busy_cache(tmp_path: Path) -> None:
    """Cells need not be one run: a saved conversation goes into any free ones."""
    slot = new_slot(sizes={"kv": 8})
    other = Slot(slot.context, 1)
    for i in range(4):
        slot.feed([TEXT[i]])
        other.feed([OTHER[i]])
    save_session(slot, tmp_path / "s")
    slot.forget()
    assert restore_session(slot, tmp_path / "s").n_tokens == 4
    assert leaf(slot.context, "kv").cells[0].pos.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert other.agrees
    assert slot.agrees


@pytest.mark.parametrize("damage", ["cut", "magic", "other model"])
def test_a_file_that_does_not_fit_is_refused_and_leaves_the_slot_empty(damage: str, tmp_path: Path) -> None:
    source = new_slot("hybrid" if damage == "other model" else "llama")
    source.feed(TEXT[:6])
    path = tmp_path / "s"
    save_session(source, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    if damage == "magic":
        path.write_bytes(b"GGUF" + path.read_bytes()[4:])
    slot = new_slot()
    events = Recorder()
    slot.feed(OTHER[:9])
    slot.context.observe(events)
    report = restore_session(slot, path)
    assert report.refused
    assert (report.n_tokens, slot.tokens, slot.agrees) == (0, [], True)
    told = [e.detail for e in events.events if e.kind == "policy"]
    assert [d["refused"] for d in told] == [report.refused]
    assert_as_fresh(slot)


def test_a_missing_file_changes_nothing(tmp_path: Path) -> None:
    slot = new_slot()
    slot.feed(TEXT[:5])
    with pytest.raises(OSError, match="nowhere"):
        restore_session(slot, tmp_path / "nowhere")
    assert slot.tokens == TEXT[:5]
    assert slot.agrees


@pytest.mark.parametrize(("name", "n_past", "why"), [("llama", 7, []), ("hybrid", 0, ["state ahead"])])
def test_how_much_of_a_restored_prompt_can_be_reused(
    name: str, n_past: int, why: list[str], tmp_path: Path
) -> None:
    """The same prompt again: a state cannot go back by the token that must be decoded, and checkpoints are
    not in the file."""
    slot = new_slot(name)
    slot.feed(TEXT[:8])
    save_session(slot, tmp_path / "s")
    there = new_slot(name)
    restore_session(there, tmp_path / "s")
    report = reuse(there, TEXT[:8])
    assert report.n_past == n_past
    assert [each.code for each in report.obstacles] == why
