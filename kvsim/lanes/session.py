"""One model and one context of llama.cpp in this process: operations in, answers and its log out.

Runs in a child process (:mod:`kvsim.lanes.child`): what llama.cpp asserts on ends the process.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.lanes.library import LaneError, open_library
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ContextParams

LEVEL_DEBUG, LEVEL_CONT = 1, 5
CELLS_DEBUG = "LLAMA_KV_CACHE_DEBUG"
SHIFT_GRAPH = re.compile(rb"cache_k|K_shift")
"""The first node of the graph that shifts keys; that of a model's graph is its embedding."""


@dataclass
class Answer:
    """What an operation gave: its return value, the placement log it caused, the position ranges after it,
    and the logits of a decode by batch index."""

    ret: int | None
    log: str = ""
    pos: list[tuple[int, int]] = field(default_factory=list)
    logits: dict[int, Any] = field(default_factory=dict)


class Session:
    """Loads the model and makes the context; raises LaneError with the library's own words if it cannot."""

    def __init__(
        self, lib: Path | None, model: Path, params: ContextParams, debug: bool, faults: bool
    ) -> None:
        os.environ[CELLS_DEBUG] = "3" if debug else "0"
        self.ffi, self.lib, self.version = open_library(lib)
        self.lines: list[tuple[int, str]] = []
        self.keep: list[Any] = []  # callbacks live as long as something in Python holds them
        log = self.ffi.callback("log_callback", self._log)
        self.keep.append(log)
        self.lib.llama_log_set(log, self.ffi.NULL)
        self.lib.llama_backend_init()
        self.model = self._load(model)
        self._abort_in: int | None = None
        self._graphs, self._computing = 0, True
        self._asked = params, faults
        self._open()
        self.n_vocab = int(self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model)))
        self.n_embd = int(self.lib.llama_model_n_embd_inp(self.model))
        self.n_seq_max = int(self.lib.llama_n_seq_max(self.context))

    # -- setting up ----------------------------------------------------------------------------

    def _log(self, level: int, text: Any, _: Any) -> None:
        self.lines.append((level, self.ffi.string(text).decode("utf-8", "replace")))

    def _open(self) -> None:
        self.context = self._make_context(*self._asked)
        self.memory = self.lib.llama_get_memory(self.context)
        self.saved: dict[int, bytes] = {}

    def renew(self) -> None:
        """A fresh context in place of the one there is."""
        self.lib.llama_free(self.context)
        self._open()

    def _load(self, path: Path) -> Any:
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, False
        model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if model == self.ffi.NULL:
            raise LaneError(f"{path}: llama.cpp cannot load it: {self._complaint()}")
        return model

    def _make_context(self, asked: ContextParams, faults: bool) -> Any:
        params = self.lib.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "kv_unified", "swa_full"):
            setattr(params, name, getattr(asked, name))
        for name in ("embeddings", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor",
                     "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"):  # fmt: skip
            setattr(params, name, getattr(asked, name))
        params.type_k, params.type_v = cache_type(asked.type_k).ggml_id, cache_type(asked.type_v).ggml_id
        params.flash_attn_type = -1 if asked.flash_attn is None else int(asked.flash_attn)
        params.n_outputs_max = params.n_outputs_max_per_seq = 0
        params.n_threads = params.n_threads_batch = 1
        if faults:
            announce = self.ffi.callback("eval_callback", self._before_node)
            self.keep.append(announce)
            params.cb_eval = announce
        context = self.lib.llama_init_from_model(self.model, params)
        if context == self.ffi.NULL:
            raise LaneError(f"llama.cpp cannot make such a context: {self._complaint()}")
        if faults:
            question = self.ffi.callback("abort_callback", self._should_abort)
            self.keep.append(question)
            self.lib.llama_set_abort_callback(context, question, self.ffi.NULL)
        return context

    def _complaint(self) -> str:
        bad = [text.strip() for level, text in self.lines if level in (3, 4)]
        return "; ".join(bad[-3:]) or "it does not say why"

    # -- aborting a chosen ubatch --------------------------------------------------------------
    # All nodes of a graph are announced before the first is computed, and the abort callback is asked
    # between nodes: so an announcement after a question begins the next graph.

    def _before_node(self, tensor: Any, ask: bool, _: Any) -> bool:
        if self._computing:
            self._computing = False
            if not SHIFT_GRAPH.search(self.ffi.string(self.lib.ggml_get_name(tensor))):
                self._graphs += 1
        return not ask

    def _should_abort(self, _: Any) -> bool:
        self._computing = True
        return self._abort_in is not None and self._graphs == self._abort_in + 1

    # -- operations ----------------------------------------------------------------------------

    def perform(self, op: str, args: dict[str, Any], logits: bool = False) -> Answer:
        """Perform one operation of the trace format."""
        self.lines.clear()
        ret = self.decode(args) if op == "decode" else self._edit_or_state(op, args)
        answer = Answer(ret, self.placements(), self.spans())
        if op == "decode" and ret == 0 and logits:
            wanted = [i for i, out in enumerate(args["out"]) if out]
            answer.logits = {i: self._logits_of(i) for i in wanted}
        return answer

    def _edit_or_state(self, op: str, a: dict[str, Any]) -> int | None:
        lib, memory = self.lib, self.memory
        if op == "seq_rm":
            return int(lib.llama_memory_seq_rm(memory, a["seq"], a["p0"], a["p1"]))
        if op == "seq_cp":
            lib.llama_memory_seq_cp(memory, a["src"], a["dst"], a["p0"], a["p1"])
        elif op == "seq_keep":
            lib.llama_memory_seq_keep(memory, a["seq"])
        elif op == "seq_add":
            lib.llama_memory_seq_add(memory, a["seq"], a["p0"], a["p1"], a["delta"])
        elif op == "seq_div":
            lib.llama_memory_seq_div(memory, a["seq"], a["p0"], a["p1"], a["d"])
        elif op == "clear":
            lib.llama_memory_clear(memory, a["data"])
        elif op.startswith("state_"):
            return self._state(op, a)
        elif op != "init":
            raise LaneError(f"the live lane does not know the operation {op!r}")
        return None

    def decode(self, args: dict[str, Any]) -> int:
        """The code of ``llama_decode``. Fields that are missing or None are left to llama.cpp."""
        tokens, seq = args.get("tokens"), args.get("seq")
        n = len(tokens if tokens is not None else seq or ())
        batch: dict[str, Any] = {"n_tokens": n}
        if tokens is not None:
            batch["token"] = self.ffi.new("int32_t[]", tokens)
        else:
            rows = np.random.default_rng(args.get("embd_seed", 0)).normal(size=n * self.n_embd)
            batch["embd"] = self.ffi.new("float[]", rows.astype(np.float32).tolist())
        if args.get("pos") is not None:
            batch["pos"] = self.ffi.new("int32_t[]", args["pos"])
        if seq is not None:
            each = [self.ffi.new("int32_t[]", ids) for ids in seq]
            batch["n_seq_id"] = self.ffi.new("int32_t[]", [len(ids) for ids in seq])
            batch["seq_id"] = self.ffi.new("int32_t *[]", each)
        if args.get("out") is not None:
            batch["logits"] = self.ffi.new("int8_t[]", args["out"])
        self._abort_in, self._graphs, self._computing = args.get("abort_at_ubatch"), 0, True
        code = int(self.lib.llama_decode(self.context, self.ffi.new("llama_batch *", batch)[0]))
        self._abort_in = None
        return code

    def _logits_of(self, i: int) -> Any:
        row = self.lib.llama_get_logits_ith(self.context, i)
        if row == self.ffi.NULL:
            raise LaneError(f"llama.cpp has no logits for batch entry {i}, which asked for them")
        return np.frombuffer(self.ffi.buffer(row, 4 * self.n_vocab), np.float32).copy()

    def _state(self, op: str, args: dict[str, Any]) -> int:
        slot = args["slot"]
        if op == "state_get":
            self.saved[slot] = self.state()
            return len(self.saved[slot])
        if op == "state_seq_get":
            self.saved[slot] = self.state(args["seq"], args["flags"])
            return len(self.saved[slot])
        data = self.saved[slot]
        if "xor0" in args and data:
            data = bytes([data[0] ^ args["xor0"]]) + data[1:]
        data = data[: args["truncate"]] if "truncate" in args else data
        buffer = self.ffi.from_buffer("uint8_t[]", data)
        if op == "state_set":
            return int(self.lib.llama_state_set_data(self.context, buffer, len(data)))
        seq, flags = args["seq"], args["flags"]
        return int(self.lib.llama_state_seq_set_data_ext(self.context, buffer, len(data), seq, flags))

    def state(self, seq: int | None = None, flags: int = 0) -> bytes:
        """The whole state, or that of a sequence."""
        lib, context = self.lib, self.context
        if seq is None:
            size = lib.llama_state_get_size(context)
        else:
            size = lib.llama_state_seq_get_size_ext(context, seq, flags)
        buffer = self.ffi.new("uint8_t[]", max(size, 1))
        if seq is None:
            written = lib.llama_state_get_data(context, buffer, size)
        else:
            written = lib.llama_state_seq_get_data_ext(context, buffer, size, seq, flags)
        return bytes(self.ffi.buffer(buffer, written))

    def saved_state(self, slot: int) -> bytes:
        """The state that was saved into a slot."""
        return self.saved[slot]

    def restore(self, data: bytes) -> int:
        """Restore a whole state; the bytes read, 0 if refused."""
        buffer = self.ffi.from_buffer("uint8_t[]", data)
        return int(self.lib.llama_state_set_data(self.context, buffer, len(data)))

    def clock(self, ops: list[tuple[str, dict[str, Any]]]) -> list[float]:
        """Perform operations; the seconds each took."""
        took = []
        for op, args in ops:
            self.lines.clear()
            begun = time.perf_counter()
            if op == "decode":
                self.decode(args)
            else:
                self._edit_or_state(op, args)
            took.append(time.perf_counter() - begun)
        return took

    # -- looking at it -------------------------------------------------------------------------

    def spans(self) -> list[tuple[int, int]]:
        """Smallest and largest position of every sequence, as the memory answers."""
        lib, memory = self.lib, self.memory
        return [
            (int(lib.llama_memory_seq_pos_min(memory, s)), int(lib.llama_memory_seq_pos_max(memory, s)))
            for s in range(self.n_seq_max)
        ]

    def can_shift(self) -> bool:
        """Whether the memory says that positions can be moved."""
        return bool(self.lib.llama_memory_can_shift(self.memory))

    def placements(self) -> str:
        """What the slot search has printed since the operation began."""
        return "".join(text for level, text in self.lines if level in (LEVEL_DEBUG, LEVEL_CONT))
