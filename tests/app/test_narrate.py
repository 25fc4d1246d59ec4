"""What is said of recorded operations, word for word."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvsim.changes import PictureReader
from kvsim.narrate import Narration, narrate
from kvsim.trace import read_trace

KV = "kv/llama-uni-c256-u16-s4-f16-03"
WIDE = "kv/llama-h32-uni-c1024-u16-s4-f16-07"
ISWA = "iswa/gemma3-swa20-uni-c512-u64-s8-q8_0-05"
HYBRID = "hybrid/qwen35-uni-c512-u32-s4-q8_0-rs2-09"


@cache
def told(name: str) -> list[Narration]:
    return sentences(f"fixtures/traces/{name}.jsonl.gz")


def sentences(path: str) -> list[Narration]:
    trace = read_trace(path)
    reader, before, found = PictureReader(trace.header), None, []
    for step in trace:
        after = reader.read(step.after)
        found.append(narrate(step, before, after, reader.owners, trace.header))
        before = after
    return found


@pytest.mark.parametrize(
    ("name", "i", "sentence"),
    [
        (KV, 0, "A fresh memory: 256 cells in kv, all empty."),
        (KV, 1, "Positions 0–7 of seq 1 go to cells 0–7."),
        (KV, 3, "Seq 2 is written to save 0: 5,260 bytes, 5 cells. Nothing changes."),
        (
            KV,
            15,
            "Positions 0–7 of seq 2 are removed: 8 cells freed, 8–12 and 35–37. The head drops from 73 to 8.",
        ),
        (
            KV,
            16,
            "Positions 8–42 of seq 2 roll back by 8, to 0–34. No cell moves. "
            "Their 35 keys still carry the old rotation: it is put right before the next decode.",
        ),
        (
            KV,
            17,
            "First the 35 pending keys turn by −8. "
            "Then position 35 of seq 2 goes to cell 8, the first empty one from the head.",
        ),
        (KV, 18, "31 tokens in 2 ubatches (16 + 15) go to cells 9–12, 35–37 and 73–96."),
        (KV, 20, "One token each of seq 0, 1, 2 and 3 goes to cells 97–100."),
        (
            KV,
            27,
            "Seq 3 is restored from save 5. It lets go of 64 cells, of which 19 stay with seq 0; "
            "then its 55 positions are written to 55 cells between 9 and 127.",
        ),
        (KV, 28, "Seq 3 holds no position there: nothing changes."),
        (KV, 40, "Seq 0 joins the 6 cells of seq 2, positions 0–5. Nothing is copied."),
        (
            KV,
            47,
            "Seq 2 lets go of positions 3–9: 3 shared cells stay with seq 0, 1 and 3, 4 of its own are "
            "freed. The head drops from 22 to 8.",
        ),
        (
            KV,
            49,
            "Only seq 3 stays. 20 cells are freed; 6 cells lose their other owners. "
            "The head drops from 31 to 6.",
        ),
        (
            WIDE,
            6,
            "Aborted in ubatch 3 of 3. Its 3 tokens are rolled back; the 32 of ubatches 1 and 2 stay.",
        ),
        (
            WIDE,
            10,
            "Refused before anything changed: token 0 of seq 1 has position 48, but seq 1 ends at 46, "
            "so 47 is expected.",
        ),
        (
            ISWA,
            30,
            "The base cache is one cell short: 199 cells asked for, 198 free. Nothing was written. "
            "3 of the 4 ubatches found room; the next, of 7 tokens, found 6.",
        ),
        (
            ISWA,
            69,
            "In the window cache, seq 0 took cell 103: position 61 of seq 3 there was already out of reach. "
            "Seq 3 must stay gapless, so its older positions 0–60 are purged too. "
            "The base cache keeps them all.",
        ),
        (
            HYBRID,
            3,
            "Refused: the recurrent state of seq 1 stands at 28 and can go back 2 tokens at most, once; "
            "3 would be needed. Attention was not touched.",
        ),
        (
            HYBRID,
            58,
            "Position 40 of seq 3 is removed: 1 cell freed, 169. The head drops from 202 to 169. "
            "The recurrent state cannot forget a token, so it goes back 2 snapshots: "
            "the next decode starts from plane 2.",
        ),
        (
            "dsa/deepseek32-str-c256-u16-s4-f16-08",
            67,
            "Seq 0 gives up its 16 cells and takes over all 16 positions of seq 1, into the same cell numbers "
            "of its own stream. The keys and values follow at the next decode.",
        ),
        (
            "hybrid/lfm2-noswa-str-c256-u16-s8-f16-rs2-04",
            59,
            "Aborted. Its 16 tokens are rolled back, and with them positions 0–105 of seq 3.",
        ),
        (
            "hybrid_iswa/lfm2-l4-str-c1024-u64-s1-q8_0-rs2-02",
            36,
            "454 tokens in 8 ubatches of at most 64 go to cells 236–689 of base, cells 96–255, 0–255 and 0–37 "
            "of swa. In the window cache, cells 0–95 of seq 0 are taken: their positions were already out of "
            "reach.",
        ),
        (
            "msa/minimax-m3-str-c512-u64-s2-f16-06",
            20,
            "Save 0 is refused, because the save is damaged. Half of it is done: cells 0–66 of base and idx "
            "are written and stay.",
        ),
        (
            WIDE,
            76,
            "Save 3 is refused, because the save is damaged. Seq 1 had already been cleared for it: it let go "
            "of 11 cells.",
        ),
        (
            "dsa_iswa/dots3note-str-c256-u64-s8-f16-04",
            62,
            "Every sequence is restored from save 3: 0 cells used in mla, 159 before.",
        ),
    ],
)
def test_sentences(name: str, i: int, sentence: str) -> None:
    assert told(name)[i].sentence == sentence


def test_calls_verdicts_and_ubatches() -> None:
    decode = told(KV)[18]
    assert (decode.call, decode.short, decode.verdict) == (
        "decode(31 tokens of seq 3)",
        "decode(31 tokens, seq 3)",
        "0 ok",
    )
    assert decode.ubatches[1] == "Ubatch 2 of 2: positions 37–51 of seq 3 go to cells 82–96."
    assert told(KV)[16].call == "seq_add(seq 2, 8, 43, −8)"
    assert told(KV)[40].call == "seq_cp(seq 2 → 0, start, end)"
    assert told(WIDE)[6].verdict == "2 aborted, in ubatch 3"
    assert told(WIDE)[6].failed
    assert told(HYBRID)[3].verdict == "false, refused"


def test_the_arithmetic_of_a_shortage() -> None:
    why = told(ISWA)[30].shortage
    assert why is not None
    assert (why.cache, why.asked, why.free, why.holes, why.reclaimable) == (
        "base",
        [64, 64, 64, 7],
        198,
        6,
        0,
    )
    assert why.largest == (137, 375)
    assert why.holders[:3] == [([4], 136), ([6], 90), ([0, 7], 25)]
    assert why.remedies[0] == ("198 tokens or fewer", "fits")
    assert ("768 cells instead of 512", "+256") in why.remedies


@pytest.mark.parametrize(
    "memory", ["dsa", "dsa_iswa", "dsv4", "hybrid_idx", "hybrid_iswa", "msa", "recurrent"]
)
def test_every_operation_of_every_memory_gets_a_whole_sentence(memory: str) -> None:
    for file in sorted(Path(f"fixtures/traces/{memory}").glob("*.gz"))[:3]:
        for words in told(f"{memory}/{file.name.removesuffix('.jsonl.gz')}"):
            assert not words.sentence[0].islower()
            assert words.sentence.endswith(".")
            assert "  " not in words.sentence
            assert "no description" not in words.sentence


def test_a_memory_under_test_may_take_a_batch_and_tell_no_ubatch() -> None:
    said = sentences("fixtures/museum/gaps-accepted.jsonl")
    assert said[1].sentence == "Position 9 of seq 2 goes to cell 0."
    assert (said[2].verdict, said[2].sentence) == (
        "0 ok",
        "1 token taken, the trace has no ubatch that says how.",
    )


def test_a_single_state_is_one() -> None:
    assert told("recurrent/mamba2-uni-c256-u16-s1-f16-09")[0].sentence == (
        "A fresh memory: 1 recurrent state, all empty."
    )
