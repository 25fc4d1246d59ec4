"""A header that contradicts itself cannot be replayed: the parameters must give what was made."""

import pytest
from trace_samples import DSV4, HYBRID, KV, as_bytes, lines_of

from kvsim.errors import TraceError
from kvsim.trace import read_trace, replay

GIVE = ", the model and the parameters give "
CONTRADICTIONS = {
    "sequences": (KV, "params.n_seq_max", 4, f"config.cparams.n_ctx is 2048{GIVE}1024"),
    "context": (KV, "params.n_ctx", 4096, f"config.cparams.n_ctx is 2048{GIVE}4096"),
    "unified": (KV, "params.kv_unified", True, f"config.cparams.n_ctx is 2048{GIVE}256"),
    "ubatch": (KV, "params.n_ubatch", 32, f"config.cparams.n_ubatch is 64{GIVE}32"),
    "type": (KV, "params.type_k", "q8_0", f"config.caches.kv.n_rot_k is 0{GIVE}64"),
    "size": (KV, "caches.kv.size", 128, f"config.caches.kv.size is 128{GIVE}256"),
    "recurrent": (HYBRID, "recurrent.size", 3, "config.recurrent is {'layers': "),
    "ring": (DSV4, "dsv4.csa.state_size", 4, "config.dsv4.csa is {"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_parameters_that_do_not_give_what_was_made(name):
    path, place, value, reason = CONTRADICTIONS[name]
    lines = lines_of(path)[:1] + lines_of(path)[1:2]
    target = lines[0]["config"]
    *parents, last = place.split(".")
    for key in parents:
        target = target[key]
    target[last] = value
    if name == "recurrent":
        lines[1]["after"]["recurrent"].update(size=3)
        lines[1]["after"]["recurrent"]["cells"].pop()
    trace = read_trace(as_bytes(lines), "t.jsonl")
    assert [step.op for step in trace] == ["init"]
    with pytest.raises(TraceError) as caught:
        next(replay(trace))
    assert str(caught.value).startswith(f"t.jsonl:1: {reason}")


def test_memory_of_another_kind():
    lines = lines_of(KV)
    lines[0]["arch"] = "mamba"
    with pytest.raises(TraceError, match=r"^t:1: header\.memory is 'kv', but mamba has 'recurrent'$"):
        next(replay(read_trace(as_bytes(lines), "t")))


def test_model_without_a_memory():
    lines = lines_of(KV)
    lines[0]["arch"] = "bert"
    with pytest.raises(TraceError, match=r"^t:1: bert keeps no memory"):
        next(replay(read_trace(as_bytes(lines), "t")))
