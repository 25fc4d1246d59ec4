"""The header of a trace for a context that only its log is known of."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from kvsim.errors import TraceError
from kvsim.logs.facts import SHOWN_AS, VISIBLE, Facts
from kvsim.logs.searches import Search
from kvsim.memory import MAX_SEQ
from kvsim.models.params import RopeType, SwaType
from kvsim.models.windows import WINDOWS
from kvsim.trace.header import Header

SOURCE = "log of llama.cpp"


def memory_of(facts: Facts, searches: list[Search]) -> tuple[str, str]:
    """The memory that the trace shows, and the one that the context has ("" if the log does not tell).

    Raises TraceError for a memory whose cells are never printed.
    """
    has = facts.memory or ""
    if has == "recurrent":
        raise TraceError("a recurrent memory has no slot search to print: its log shows no cells")
    if not has:
        windows = {search.n_swa > 0 for search in searches}
        return ("iswa" if len(windows) == 2 else "kv"), ""
    return SHOWN_AS.get(has, has), has


def log_header(facts: Facts, searches: list[Search], name: str = "") -> Header:
    """The header: what the log tells, and where it begins too late to tell, what its prints allow.

    ``config.log`` says which memory the context has, and what no log shows. Raises TraceError if there is
    neither a context nor a print.
    """
    if not searches and not facts.caches:
        raise TraceError(
            "no context and no slot search in the log: run llama.cpp with LLAMA_KV_CACHE_DEBUG=3 in its "
            "environment and debug output on (llama-server -lv 5)"
        )
    memory, has = memory_of(facts, searches)
    n_stream, n_seq_max = _streams(facts, searches)
    sizes = _sizes(memory, facts, searches)
    n_ctx_seq = max(facts.number("n_ctx_seq") or 0, *sizes.values())
    windows = {search.n_swa for search in searches if search.n_swa} or {facts.n_swa}
    arch = facts.model.get("arch", "unknown")
    swa = SwaType.NONE if windows == {0} else _window_type(arch)
    windowed = [name for name in VISIBLE[memory] if name == "swa" or len(VISIBLE[memory]) == 1]
    config = {
        "params": {},
        "cparams": _cparams(facts, n_ctx_seq, n_stream, n_seq_max),
        "hparams": _hparams(max(windows), swa),
        "caches": {
            cache: _cache(size, n_stream, n_seq_max, *((max(windows), swa) if cache in windowed else (0, 0)))
            for cache, size in sizes.items()
        },
        "recurrent": None,
        "rope_layers": [{"freq_base": 1.0, "freq_scale": 1.0, "factors": None}],
        "can_shift": False,
        "log": {"memory": has, "unseen": ["tok", "shift", "x", "y", "layers", "rope", "can_shift"]},
    }
    header = Header(SOURCE, arch, memory, (name or arch)[:200], 0, config)
    return Header.from_json(header.to_json())


def _streams(facts: Facts, searches: list[Search]) -> tuple[int, int]:
    """The number of streams and of sequences."""
    seen = 1 + max((search.stream for search in searches), default=0)
    ids = 1 + max((seq for search in searches for seq in search.spans), default=0)
    told = facts.number("n_seq_max")
    n_stream = max([seen, *(streams for _, streams, _ in facts.caches)])
    if n_stream > 1:
        n_stream = max(n_stream, told or 0, ids)
        return n_stream, n_stream
    return 1, min(max(told or 1, ids), MAX_SEQ)


def _sizes(memory: str, facts: Facts, searches: list[Search]) -> dict[str, int]:
    """Cells per stream, by cache: so many that all that was printed of it has room."""
    names = VISIBLE[memory]
    sizes = {}
    for i, name in enumerate(names):
        made = [facts.caches[min(i, len(facts.caches) - 1)][0]] if facts.caches else []
        mine = [search for search in searches if "swa" not in names or (search.n_swa > 0) == (name == "swa")]
        sizes[name] = max(made + [search.size for search in mine or searches])
    return sizes


def _window_type(arch: str) -> SwaType:
    return WINDOWS[arch].type if arch in WINDOWS else SwaType.STANDARD


def _cparams(facts: Facts, n_ctx_seq: int, n_stream: int, n_seq_max: int) -> dict[str, Any]:
    batch = facts.number("n_batch") or n_ctx_seq
    return {
        "n_ctx": n_ctx_seq * n_stream,
        "n_ctx_seq": n_ctx_seq,
        "n_batch": batch,
        "n_ubatch": facts.number("n_ubatch") or batch,
        "n_seq_max": n_seq_max,
        "n_rs_seq": facts.number("n_rs_seq") or 0,
        "kv_unified": n_stream == 1,
        "flash_attn": facts.settings.get("flash_attn") not in (None, "disabled"),
        "causal_attn": facts.settings.get("causal_attn", "1") == "1",
        "embeddings": False,
        "rope_freq_base": _float(facts.settings, "freq_base"),
        "rope_freq_scale": _float(facts.settings, "freq_scale"),
        "n_ctx_orig_yarn": 0,
        **dict.fromkeys(("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow"), 0.0),
        "yarn_attn_factor": 1.0,
    }


def _float(settings: Mapping[str, str], name: str) -> float:
    """A setting that is a number; 1 if it is none."""
    try:
        number = float(settings.get(name, "1"))
    except ValueError:
        return 1.0
    return number if isfinite(number) else 1.0


def _hparams(n_swa: int, swa: SwaType) -> dict[str, Any]:
    """One layer stands for all: a log does not describe them."""
    layer = {"is_swa": False, "is_recr": False, "has_kv": True, "n_head_kv": 0, "n_embd_head_k": 0}
    sizes = {"n_embd_head_v": 0, "n_rot": 0, "n_embd_k_gqa": 0, "n_embd_v_gqa": 0}
    return {
        "n_layer_all": 1,
        "n_layer": 1,
        "n_layer_kv_from_start": -1,
        "n_embd": 0,
        "n_pos_per_embd": 1,
        "n_swa": n_swa,
        "swa_type": int(swa),
        "rope_type": int(RopeType.NONE),
        "rope_sections": [0, 0, 0, 0],
        **{f"rope_freq_{part}_train{swa}": 1.0 for part in ("base", "scale") for swa in ("", "_swa")},
        "is_mla": False,
        "layers": [{**layer, **sizes}],
    }


def _cache(size: int, n_stream: int, n_seq_max: int, n_swa: int, swa_type: int) -> dict[str, Any]:
    return {
        "n_stream": n_stream,
        "size": size,
        "n_seq_max": n_seq_max,
        "n_pad": 1,
        "n_swa": n_swa,
        "swa_type": int(swa_type),
        "v_trans": False,
        "n_rot_k": 0,
        "n_rot_v": 0,
        "can_shift": False,
        "has_cell_ext": False,
        "rope_type": int(RopeType.NONE),
        "layers": [],
        "map_layer_ids": {},
    }
