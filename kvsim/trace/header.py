"""The first line of a trace: which model and memory it is of, and how they were set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.errors import TraceError
from kvsim.memory import MAX_SEQ
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.params import MAX_LAYERS, ModelParams
from kvsim.models.record import MAX_WIDTH
from kvsim.trace.kinds import (
    BOOL,
    COUNT,
    LIST,
    NUMBER,
    RECORD,
    TEXT,
    Kind,
    Table,
    check_names,
    check_record,
    integer,
    integers,
    one_of,
    or_null,
)

VERSION = 1

MEMORIES: dict[str, tuple[str, ...]] = {
    "kv": ("kv",),
    "iswa": ("base", "swa"),
    "recurrent": (),
    "hybrid": ("attn",),
    "hybrid_iswa": ("base", "swa"),
    "hybrid_idx": ("attn", "idx"),
    "dsa": ("mla", "lid"),
    "dsa_iswa": ("mla", "lid", "swa"),
    "msa": ("base", "idx"),
    "dsv4": ("raw.base", "raw.swa", "csa", "hca", "lid"),
}
"""Kind of memory -> the names of its caches, in their order."""

WITH_RECURRENT = {"recurrent", "hybrid", "hybrid_iswa", "hybrid_idx"}
COMPRESSORS = ("csa", "hca", "lid")

MAX_CELLS = 1 << 24
"""Most cells of all caches and streams together; a header that asks for more is taken for a mistake."""

MAX_BYTES = 1 << 40
"""Most bytes that the rows of all caches may take."""

_POSITIVE = integer(1, MAX_CELLS)
_WIDTH = integer(0, MAX_WIDTH)
_LAYER = integer(0, MAX_LAYERS - 1)
_TYPE = one_of(*CACHE_TYPES)
_SWA_TYPE = integer(0, 3)
_N_SEQ = integer(1, MAX_SEQ)

_TOP: Table = {
    "kvtrace": one_of(VERSION),
    "source": TEXT,
    "arch": TEXT,
    "memory": one_of(*MEMORIES),
    "model": TEXT,
    "seed": integer(0, 2**64 - 1),
    "config": RECORD,
}
_CONFIG: Table = {
    "params": RECORD,
    "cparams": RECORD,
    "hparams": RECORD,
    "caches": RECORD,
    "recurrent": or_null(RECORD),
    "rope_layers": LIST,
    "can_shift": BOOL,
}
_CPARAMS: Table = {
    "n_ctx": _POSITIVE,
    "n_ctx_seq": _POSITIVE,
    "n_batch": _POSITIVE,
    "n_ubatch": _POSITIVE,
    "n_seq_max": _N_SEQ,
    "n_rs_seq": integer(0, MAX_SEQ),
    "kv_unified": BOOL,
    "flash_attn": BOOL,
    "causal_attn": BOOL,
    "embeddings": BOOL,
    "rope_freq_base": NUMBER,
    "rope_freq_scale": NUMBER,
    "n_ctx_orig_yarn": COUNT,
    "yarn_ext_factor": NUMBER,
    "yarn_attn_factor": NUMBER,
    "yarn_beta_fast": NUMBER,
    "yarn_beta_slow": NUMBER,
}
_HPARAMS: Table = {
    "n_layer_all": integer(1, MAX_LAYERS),
    "n_layer": integer(1, MAX_LAYERS),
    "n_pos_per_embd": one_of(1, 4),
}
_CACHE: Table = {
    "n_stream": _N_SEQ,
    "size": _POSITIVE,
    "n_seq_max": _N_SEQ,
    "n_pad": _POSITIVE,
    "n_swa": COUNT,
    "swa_type": _SWA_TYPE,
    "v_trans": BOOL,
    "n_rot_k": _WIDTH,
    "n_rot_v": _WIDTH,
    "can_shift": BOOL,
    "has_cell_ext": BOOL,
    "rope_type": integer(-1, 255),
    "layers": LIST,
    "map_layer_ids": RECORD,
}
_CACHE_LAYER: Table = {
    "il": _LAYER,
    "type_k": _TYPE,
    "n_embd_k": _WIDTH,
    "type_v": or_null(_TYPE),
    "n_embd_v": _WIDTH,
}
_RECURRENT: Table = {"size": _N_SEQ, "n_rs_seq": integer(0, MAX_SEQ), "layers": LIST}
_RECURRENT_WIDTHS = integers(0, MAX_WIDTH)
_NUMBERS = Kind("a list of numbers", lambda v: type(v) is list and set(map(type, v)) <= {int, float})
_COMPRESSOR: Table = {
    "ratio": _POSITIVE,
    "state_size": _POSITIVE,
    "n_embd_state": _WIDTH,
    "n_stream": _N_SEQ,
    "n_rs_seq": integer(0, MAX_SEQ),
}
LONGEST_FAILURE = 10_000
_SAID = Kind(
    f"printable text of at most {LONGEST_FAILURE} characters",
    lambda v: type(v) is str and len(v) <= LONGEST_FAILURE and v.isprintable(),
)
_FAILURE: Table = {"subject": _SAID, "verdict": _SAID, "operation": _SAID, "what": _SAID}
_ROPE_LAYER: Table = {"freq_base": NUMBER, "freq_scale": NUMBER, "factors": or_null(_NUMBERS)}


@dataclass(frozen=True)
class Header:
    """What the first line says. ``config`` is as in the file (fixtures/traces/README.md)."""

    source: str
    arch: str
    memory: str
    model: str
    seed: int
    config: dict[str, Any]

    @classmethod
    def from_json(cls, line: Any) -> Header:
        """Check the first line. Raises TraceError, without a place, on the first contradiction."""
        if type(line) is not dict or "kvtrace" not in line:
            raise TraceError('not a trace: the first line must be a header, an object with "kvtrace"')
        check_record(line, _TOP, "header")
        check_names(line, _TOP, "header")
        header = cls(**{key: line[key] for key in _TOP if key != "kvtrace"})
        _check_config(header)
        return header

    def to_json(self) -> dict[str, Any]:
        names = [key for key in _TOP if key != "kvtrace"]
        return {"kvtrace": VERSION, **{key: getattr(self, key) for key in names}}

    @property
    def cparams(self) -> dict[str, Any]:
        """The resolved context parameters."""
        return self.config["cparams"]  # type: ignore[no-any-return]

    @property
    def hparams(self) -> dict[str, Any]:
        """What of the model's hyper-parameters the memory needs."""
        return self.config["hparams"]  # type: ignore[no-any-return]

    @property
    def caches(self) -> dict[str, dict[str, Any]]:
        """Name -> how that cache was made, in the order of the memory."""
        return self.config["caches"]  # type: ignore[no-any-return]

    @property
    def n_seq_max(self) -> int:
        return int(self.cparams["n_seq_max"])

    @property
    def made_smaller(self) -> dict[str, int]:
        """Cells per stream of the caches that were made smaller than llama.cpp makes them, for a test."""
        return {name: self.caches[name]["size"] for name in self.config.get("made_smaller", ())}

    @property
    def interval(self) -> bool:
        """Whether it is an interval of a simulation: operation 0 shows what there was before, and saved states
        are of one narrow row per cell."""
        return bool(self.config.get("interval", False))

    @property
    def failure(self) -> dict[str, str] | None:
        """What the tester found at the end: ``subject``, ``verdict``, ``operation``, ``what``. None if the tester
        did not save the trace."""
        return self.config.get("failure")


def _check_config(header: Header) -> None:
    config = header.config
    check_record(config, _CONFIG, "config", {"made_smaller": LIST, "interval": BOOL, "failure": RECORD})
    if "failure" in config:
        check_record(config["failure"], _FAILURE, "config.failure")
        check_names(config["failure"], _FAILURE, "config.failure")
    check_record(config["cparams"], _CPARAMS, "config.cparams")
    for il, layer in enumerate(config["rope_layers"]):
        check_record(layer, _ROPE_LAYER, f"config.rope_layers[{il}]")
    check_record(config["hparams"], _HPARAMS, "config.hparams")
    ModelParams.from_header(header.to_json())
    names = MEMORIES[header.memory]
    if header.memory == "hybrid_idx" and "idx" not in header.caches:
        names = ("attn",)  # a model without an indexer
    check_names(header.caches, names, f"config.caches of a {header.memory!r} memory")
    for name, cache in header.caches.items():
        _check_cache(header, name, cache)
    _check_sizes(header)
    for name in config.get("made_smaller", []):
        one_of(*header.caches).check(name, "an entry of config.made_smaller")
    _check_recurrent(header)
    _check_compressors(header)


def _check_cache(header: Header, name: str, cache: Any) -> None:
    where = f"config.caches.{name}"
    check_record(cache, _CACHE, where)
    n_seq_max, unified = header.n_seq_max, header.cparams["kv_unified"]
    # DeepSeek-V4 keeps one stream per sequence even when unified
    n_stream = n_seq_max if header.memory == "dsv4" or not unified else 1
    if cache["n_stream"] != n_stream:
        raise TraceError(
            f"{where}.n_stream is {cache['n_stream']}, must be {n_stream}: "
            f"n_seq_max is {n_seq_max}, kv_unified is {str(unified).lower()}"
        )
    if cache["n_seq_max"] != n_seq_max:
        raise TraceError(f"{where}.n_seq_max is {cache['n_seq_max']}, config.cparams says {n_seq_max}")
    _check_cache_layers(header, where, cache)


def _check_cache_layers(header: Header, where: str, cache: dict[str, Any]) -> None:
    n_layer_all = header.hparams["n_layer_all"]
    for i, layer in enumerate(cache["layers"]):
        check_record(layer, _CACHE_LAYER, f"{where}.layers[{i}]")
        if layer["il"] >= n_layer_all:
            raise TraceError(f"{where}.layers[{i}].il is {layer['il']}, the model has {n_layer_all} layers")
        for kind in ("k", "v"):
            _check_row(f"{where}.layers[{i}]", layer[f"type_{kind}"], layer[f"n_embd_{kind}"])
    blocks = [layer["il"] for layer in cache["layers"]]
    if len(set(blocks)) != len(blocks):
        raise TraceError(f"{where}.layers names a block twice: {blocks}")
    index = integer(0, len(blocks) - 1)
    for block, i in cache["map_layer_ids"].items():
        if not (block.isascii() and block.isdigit() and len(block) <= 4 and int(block) < n_layer_all):
            raise TraceError(f"{where}.map_layer_ids has {block[:20]!r}, the model has {n_layer_all} layers")
        index.check(i, f"{where}.map_layer_ids[{block}]")


def _check_row(where: str, type_name: str | None, width: int) -> None:
    if type_name is None and width:
        raise TraceError(f"{where} has V rows of {width} values but no type_v")
    block = CACHE_TYPES[type_name].block if type_name else 1
    if width % block:
        raise TraceError(f"{where} has rows of {width} values, {type_name} stores blocks of {block}")


def _check_sizes(header: Header) -> None:
    cparams = header.cparams
    streams = 1 if cparams["kv_unified"] else header.n_seq_max
    if cparams["n_ctx"] != cparams["n_ctx_seq"] * streams:
        raise TraceError(
            f"config.cparams.n_ctx is {cparams['n_ctx']}, must be n_ctx_seq {cparams['n_ctx_seq']} "
            f"for each of {streams} streams"
        )
    for name, cache in header.caches.items():
        if cache["size"] > cparams["n_ctx_seq"]:
            raise TraceError(
                f"config.caches.{name}.size is {cache['size']}, more than n_ctx_seq {cparams['n_ctx_seq']}"
            )
    cells = sum(map(_n_cells, header.caches.values()))
    if cells > MAX_CELLS:
        raise TraceError(f"the caches have {cells} cells together, at most {MAX_CELLS} are read")
    size = sum(_n_cells(cache) * sum(map(_row_bytes, cache["layers"])) for cache in header.caches.values())
    if size > MAX_BYTES:
        raise TraceError(f"the caches take {size} bytes together, at most {MAX_BYTES} are believed")


def _n_cells(cache: dict[str, Any]) -> int:
    return int(cache["size"] * cache["n_stream"])


def _row_bytes(layer: dict[str, Any]) -> int:
    k, v = CACHE_TYPES[layer["type_k"]], CACHE_TYPES.get(layer["type_v"])
    return k.row_bytes(layer["n_embd_k"]) + (v.row_bytes(layer["n_embd_v"]) if v else 0)


def _check_recurrent(header: Header) -> None:
    recurrent = header.config["recurrent"]
    if (recurrent is not None) != (header.memory in WITH_RECURRENT):
        has = "no" if recurrent is None else "a"
        raise TraceError(f"config has {has} recurrent part, a {header.memory!r} memory must not be so")
    if recurrent is None:
        return
    check_record(recurrent, _RECURRENT, "config.recurrent")
    n_layer = header.hparams["n_layer"]
    if len(recurrent["layers"]) < n_layer:
        raise TraceError(f"config.recurrent.layers has fewer entries than n_layer {n_layer}")
    for il, widths in enumerate(recurrent["layers"]):
        _RECURRENT_WIDTHS.check(widths, f"config.recurrent.layers[{il}]")


def _check_compressors(header: Header) -> None:
    if ("dsv4" in header.config) != (header.memory == "dsv4"):
        raise TraceError("config.dsv4 describes the compressors of a 'dsv4' memory, and of no other")
    if header.memory != "dsv4":
        return
    compressors = header.config["dsv4"]
    check_names(compressors, COMPRESSORS, "config.dsv4")
    for name in COMPRESSORS:
        check_record(compressors[name], _COMPRESSOR, f"config.dsv4.{name}")
