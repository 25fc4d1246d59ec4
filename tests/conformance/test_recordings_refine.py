"""Every recording, held to the ledger: what attention and states read through the memory is what the
abstract specification says each sequence holds, and where it is not, a hazard has said so."""

from pathlib import Path

import pytest

from kvsim.models.context_params import ContextParams
from kvsim.models.params import ModelParams
from kvsim.ops import Op
from kvsim.replay import N_VOCAB
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.checked import Checked
from kvsim.trace import read_trace

TRACES = Path(__file__).resolve().parents[2] / "fixtures" / "traces"


@pytest.mark.parametrize("kind", sorted(folder.name for folder in TRACES.iterdir() if folder.is_dir()))
def test_recordings_refine_the_ledger(kind: str) -> None:
    files = sorted((TRACES / kind).glob("*.gz"))
    assert files
    for file in files:
        trace = read_trace(file)
        line = trace.header.to_json()
        model, params = ModelParams.from_header(line), ContextParams.from_header(line)
        checked = Checked(CACHES[kind], Config(trace.header.model, model, params, trace.header.made_smaller))
        checked.context.allocator.n_vocab = N_VOCAB
        for step in trace:
            if step.op not in ("init", "rows"):
                assert checked.perform(Op(step.op, step.args)) == step.ret, f"{file.name}, operation {step.i}"
