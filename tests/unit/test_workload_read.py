"""Readers of public traces: what they say of the bundled files, and damaged files refused with their line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvsim.workload.read import Summary, Workload
from kvsim.workload.request import FIRST_ANSWER, FreshTokens, Request, WorkloadError, joined

WORKLOADS = Path("fixtures/workloads")
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"


def mooncake(time: float = 0, n: int = 600, out: int = 3, ids: object = (5, 6)) -> str:
    ids = list(ids) if isinstance(ids, tuple) else ids
    record = {"timestamp": time, "input_length": n, "output_length": out, "hash_ids": ids}
    return json.dumps(record) + "\n"


def written(tmp_path: Path, text: str | bytes) -> Workload:
    path = tmp_path / "workload"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Workload(path)


@pytest.mark.parametrize(
    ("name", "n", "prompt", "answer", "seconds"),
    [
        ("azure_llm_2023_code.csv.gz", 8819, 18059974, 245896, 3435.948056),
        ("azure_llm_2023_conv.csv.gz", 19366, 22361870, 4088665, 3501.721937),
        ("mooncake_conversation_4000.jsonl.gz", 4000, 53249359, 1388321, 1301.999),
    ],
)
def test_bundled_traces(name: str, n: int, prompt: int, answer: int, seconds: float) -> None:
    """Sums as awk has them of the same files."""
    found = Workload(WORKLOADS / name).summary()
    assert (found.n_requests, found.n_prompt, found.n_answer) == (n, prompt, answer)
    assert found.seconds == pytest.approx(seconds)


def test_azure_rows_are_requests_that_share_nothing(tmp_path: Path) -> None:
    text = HEAD + ROW + "2023-11-16 18:15:50.9951690,3,2\n"
    first, second = written(tmp_path, text)
    assert (first.id, first.arrival, first.n_prompt, first.n_answer) == (0, 0.0, 374, 44)
    assert (second.id, second.n_prompt, second.n_answer) == (1, 3, 2)
    assert second.arrival == pytest.approx(4.314579)
    everything = [*first.tokens(), *first.answer, *second.tokens(), *second.answer]
    assert len(set(everything)) == 374 + 44 + 3 + 2


def test_equal_hash_ids_are_equal_tokens(tmp_path: Path) -> None:
    first, second = written(tmp_path, mooncake(0, 600, 3, (5, 6)) + mooncake(1500, 1100, 1, (5, 9, 10)))
    assert first.prompt == (range(2560, 3160),)
    assert second.prompt == (range(2560, 3072), range(4608, 5120 + 76))
    assert second.arrival == 1.5
    assert second.tokens()[:512] == first.tokens()[:512]
    assert second.tokens()[512] != first.tokens()[512]


def test_stops_where_asked(tmp_path: Path) -> None:
    workload = written(tmp_path, HEAD + ROW * 5)
    assert [r.id for r in Workload(workload.path, 2)] == [0, 1]
    assert list(Workload(workload.path, 0)) == []
    assert workload.summary() == Summary(5, 5 * 374, 5 * 44, 0.0)


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    assert written(tmp_path, gzip.compress((HEAD + ROW).encode())).summary().n_requests == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 0, "empty"),
        ("a,b\n", 1, "neither an Azure trace"),
        (HEAD + ROW + "2023-11-16 18:15:46,1\n", 3, "2 fields"),
        (HEAD + ROW + "yesterday,1,1\n", 3, "not a time"),
        (HEAD + ROW + '"' + "x" * 200_000 + '",1,1\n', 3, "cannot be read as CSV"),
        (HEAD + "2023-11-16 18:15:46,-1,1\n", 2, "ContextTokens '-1'"),
        (HEAD + "2023-11-16 18:15:46,1,1.5\n", 2, "GeneratedTokens '1.5'"),
        (HEAD + "2023-11-16 18:15:46,99999999,1\n", 2, "ContextTokens"),
        (HEAD + ROW + "\n" + "2023-11-16 18:15:45,1,1\n", 4, "before the line above"),
        (HEAD + ROW + "2023-11-16 18:15:48+00:00,1,1\n", 3, "time zone"),
        (mooncake() + "{\n", 2, "not a JSON object"),
        (mooncake() + "[1]\n", 2, "not an object with"),
        (mooncake() + '{"timestamp": 1}\n', 2, "hash_ids"),
        (mooncake(5) + mooncake(4), 2, "before the line above"),
        (mooncake(ids=(1,)), 1, "1 hash ids; 600 tokens are 2 blocks"),
        (mooncake(ids="12"), 1, "type str"),
        (mooncake(ids=(1, -2)), 1, "hash id -2"),
        (mooncake(ids=(1, True)), 1, "hash id True"),
        (mooncake(n=-1, ids=()), 1, "input_length -1"),
        (mooncake(out=2.5), 1, "output_length 2.5"),
        (mooncake(time=-1), 1, "timestamp -1"),
        (HEAD.encode() + b"\xff\xff\n", 2, "UTF-8"),
        (gzip.compress((HEAD + ROW * 100).encode(), mtime=0)[:-9], 1, "damaged"),
    ],
)
def test_damaged_files_are_refused_with_their_line(
    tmp_path: Path, text: str | bytes, line: int, says: str
) -> None:
    workload = written(tmp_path, text)
    with pytest.raises(WorkloadError, match="workload") as caught:
        workload.summary()
    assert says in str(caught.value)
    assert caught.value.line >= line if isinstance(text, bytes) else caught.value.line == line


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for name in ("no", "a\0b"):
        with pytest.raises(WorkloadError, match="cannot be opened"):
            Workload(tmp_path / name).summary()


def test_fresh_tokens_come_round() -> None:
    tokens = FreshTokens(FIRST_ANSWER)
    assert tokens.take(2) == range(FIRST_ANSWER, FIRST_ANSWER + 2)
    tokens._next = FIRST_ANSWER + FIRST_ANSWER - 2
    assert tokens.take(3) == range(FIRST_ANSWER, FIRST_ANSWER + 3)  # ids stay below 2**31


def test_ranges_that_go_on_are_joined() -> None:
    assert joined(iter([range(2), range(2, 5), range(9, 9), range(7, 8)])) == (range(5), range(7, 8))
    assert Request(0, 0.0, (range(5), range(7, 8)), range(2)).n_prompt == 6
