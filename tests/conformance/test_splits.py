"""Every recorded batch is accepted or refused as llama.cpp did, and split into the same ubatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from recorded_decodes import N_VOCAB, TRACES, batch_of, decodes

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.errors import BatchError, CacheUsageError

RULE_OF_NOTE = {
    "invalid:hole": {"V8"},
    "invalid:dec": {"V7", "V12"},
    "invalid:seq_hi": {"V6"},
    "invalid:seq_neg": {"V6"},
    "invalid:pos_neg": {"V7", "V8", "V9", "V12"},
    "invalid:gap": {"V7", "V9"},
    "invalid:tok_null": {"V2"},
    "invalid:tok_neg": {"V5"},
    "invalid:tok_hi": {"V5"},
    "invalid:repeat": {"V7", "V9"},
    "invalid:subset": {"V7", "V8", "V9", "V10"},
    "invalid:diverged": {"V7", "V9", "V10"},
    "coupled": {"V10"},  # the recorder did not know that a side of a hybrid was empty
}
"""What may be wrong with a refused batch; most the recorder made wrong on purpose."""


def splitter(header: dict[str, Any], batch: BatchAllocator) -> Callable[[], Ubatch | None]:
    """How the memory of this recording splits a batch (the first attempt, where there are two)."""
    cparams, memory = header["config"]["cparams"], header["memory"]
    n, unified = cparams["n_ubatch"], cparams["kv_unified"]
    several_streams = cparams["n_seq_max"] > 1 and not unified
    tail = cparams["n_rs_seq"] + 1 if cparams["n_rs_seq"] > 0 else 0
    if memory in ("iswa", "dsa_iswa"):
        return lambda: batch.split_simple(n) if unified else batch.split_equal(n, True)
    if memory in ("kv", "dsa", "msa"):
        return lambda: batch.split_equal(n, True) if several_streams else batch.split_simple(n)
    if memory == "dsv4":
        if cparams["n_seq_max"] == 1:
            return lambda: batch.split_simple(n)
        return lambda: batch.split_seq(n) if batch.has_coupled else batch.split_equal(n, True, tail)
    if cparams["embeddings"]:
        return lambda: batch.split_seq(n)
    return lambda: batch.split_equal(n, memory == "recurrent" or several_streams, tail)


def record(ubatch: Ubatch) -> dict[str, Any]:
    """A ubatch in the words of the recordings."""
    made = {
        "n_tokens": ubatch.n_tokens,
        "n_seq_tokens": ubatch.n_seq_tokens,
        "n_seqs": ubatch.n_seqs,
        "equal": ubatch.equal_seqs,
        "seq_unq": list(ubatch.seq_id_unq),
        "idx": ubatch.idx.tolist(),
    }
    if any(len(ids) > 1 for ids in ubatch.seq_ids):
        made["seq"] = [list(ids) for ids in ubatch.seq_ids]
    return made


@pytest.mark.parametrize("memory", sorted(path.name for path in TRACES.iterdir() if path.is_dir()))
def test_recorded_batches_are_split_the_same(memory: str) -> None:
    n_decodes = 0
    for path in sorted((TRACES / memory).glob("*.jsonl.gz")):
        for header, line, before in decodes(path):
            n_decodes += 1
            check_decode(f"{path.name} operation {line['i']}", header, line, before)
    assert n_decodes > 100


def check_decode(where: str, header: dict[str, Any], line: dict[str, Any], before: Any) -> None:
    config = header["config"]
    batch = BatchAllocator(config["hparams"]["n_pos_per_embd"], config["cparams"]["n_seq_max"], N_VOCAB)
    note = line["args"].get("note", "")

    def start() -> None:
        batch.init(batch_of(line["args"]), before, output_all=config["cparams"]["embeddings"])

    if note == "invalid:empty":
        with pytest.raises(CacheUsageError, match="empty"):
            start()
        return
    if line["ret"] == -1:
        with pytest.raises(BatchError) as refusal:
            start()
        assert refusal.value.rule in RULE_OF_NOTE[note], f"{where}: {note}: {refusal.value}"
        return
    start()
    made = batch.split_all(splitter(header, batch))
    if line["ret"] == 1:  # nothing was placed, so nothing is recorded
        return
    assert made is not None, where
    keys = ("n_tokens", "n_seq_tokens", "n_seqs", "equal", "seq_unq", "idx", "seq")
    recorded = [{key: u[key] for key in keys if key in u} for u in line["ubatches"]]
    ours = [record(ubatch) for ubatch in made]
    assert ours[: len(recorded)] == recorded, where
    if line["ret"] == 0:
        assert len(ours) == len(recorded), where
