"""llama.cpp's public C API as far as the lane uses it, per version, and what its defaults are.

The layout of the parameter structs changes between versions without notice and cannot be asked for. So the
default parameters are read through our declaration: if every field has the value it should, the layout fits.
The structs end in a reserve, so that a version with more fields writes into that and not beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.state_versions import CURRENT, LAYOUTS, Layout

FUNCTIONS = """
typedef struct {
    int32_t n_tokens; int32_t *token; float *embd; int32_t *pos; int32_t *n_seq_id; int32_t **seq_id;
    int8_t *logits;
} llama_batch;
typedef void (*log_callback)(int level, const char *text, void *data);
typedef bool (*abort_callback)(void *data);

const char *ggml_get_name(const void *tensor);
void llama_log_set(log_callback callback, void *data);
void llama_backend_init(void);
model_params llama_model_default_params(void);
context_params llama_context_default_params(void);
void *llama_model_load_from_file(const char *path, model_params params);
void *llama_init_from_model(void *model, context_params params);
void llama_free(void *context);
const void *llama_model_get_vocab(const void *model);
int32_t llama_vocab_n_tokens(const void *vocab);
int32_t llama_model_n_embd_inp(const void *model);
void *llama_get_memory(void *context);
uint32_t llama_n_ctx(const void *context);
uint32_t llama_n_batch(const void *context);
uint32_t llama_n_ubatch(const void *context);
uint32_t llama_n_seq_max(const void *context);
void llama_set_abort_callback(void *context, abort_callback callback, void *data);
int32_t llama_decode(void *context, llama_batch batch);
float *llama_get_logits_ith(void *context, int32_t i);
void llama_memory_clear(void *memory, bool data);
bool llama_memory_seq_rm(void *memory, int32_t seq, int32_t p0, int32_t p1);
void llama_memory_seq_cp(void *memory, int32_t src, int32_t dst, int32_t p0, int32_t p1);
void llama_memory_seq_keep(void *memory, int32_t seq);
void llama_memory_seq_add(void *memory, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
void llama_memory_seq_div(void *memory, int32_t seq, int32_t p0, int32_t p1, int d);
int32_t llama_memory_seq_pos_min(void *memory, int32_t seq);
int32_t llama_memory_seq_pos_max(void *memory, int32_t seq);
bool llama_memory_can_shift(void *memory);
size_t llama_state_get_size(void *context);
size_t llama_state_get_data(void *context, uint8_t *data, size_t size);
size_t llama_state_set_data(void *context, const uint8_t *data, size_t size);
size_t llama_state_seq_get_size_ext(void *context, int32_t seq, uint32_t flags);
size_t llama_state_seq_get_data_ext(void *context, uint8_t *data, size_t size, int32_t seq, uint32_t flags);
size_t llama_state_seq_set_data_ext(
    void *context, const uint8_t *data, size_t size, int32_t seq, uint32_t flags);
"""

_MODEL = """
typedef struct {
    void *devices, *tensor_buft_overrides; int32_t n_gpu_layers; int split_mode, load_mode, lazy_mode;
    int32_t main_gpu; const float *tensor_split; void *progress_callback, *progress_data, *kv_overrides;
    bool vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp;
    char reserve[256];
} model_params;
"""

_CONTEXT = """
typedef struct {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq;
    int32_t n_threads, n_threads_batch;
    int ctx_type, rope_scaling_type, pooling_type, attention_type, flash_attn_type;
    float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx; float defrag_thold;
    eval_callback cb_eval; void *cb_eval_data; int type_k, type_v;
    void *callbacks[{n_callbacks}];
    bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
    void *samplers; size_t n_samplers; void *ctx_other;
    char reserve[256];
} context_params;
"""

_MODEL_DEFAULTS = {
    "devices": None, "tensor_buft_overrides": None, "n_gpu_layers": -1, "split_mode": 1, "load_mode": -1,
    "lazy_mode": 1, "main_gpu": 0, "tensor_split": None, "progress_callback": None, "kv_overrides": None,
    "vocab_only": False, "check_tensors": False, "use_extra_bufts": True, "no_host": False, "no_alloc": False,
}  # fmt: skip

_CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0, "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4, "ctx_type": 0, "rope_scaling_type": -1,
    "pooling_type": -1, "attention_type": -1, "flash_attn_type": -1, "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0, "yarn_ext_factor": -1.0, "yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0, "yarn_orig_ctx": 0, "defrag_thold": -1.0, "cb_eval": None, "cb_eval_data": None,
    "type_k": 1, "type_v": 1, "embeddings": False, "offload_kqv": True, "no_perf": True, "op_offload": True,
    "swa_full": True, "kv_unified": False, "samplers": None, "n_samplers": 0, "ctx_other": None,
}  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A version of llama.cpp: its declarations, the defaults and a function by which it is recognised, and
    the layout of the states that it saves."""

    name: str
    declarations: str
    model: Mapping[str, object]
    context: Mapping[str, object]
    function: str
    layout: Layout
    wheel: str = ""
    """The version of the ``xllamacpp`` wheel that has it."""
    ids_reversed: bool = True
    """Whether it sees the sequence ids of a token in the reverse order, as in the recordings. That is up to
    the C++ library that it was built with."""


def _version(
    name: str,
    n_callbacks: int,
    function: str,
    layout: Layout = CURRENT,
    wheel: str = "",
    ids_reversed: bool = True,
) -> Version:
    """``n_callbacks``: pointers between the row types and the flags; the abort callback is set by a call."""
    structs = "typedef bool (*eval_callback)(void *tensor, bool ask, void *data);" + _MODEL
    declared = structs + _CONTEXT.replace("{n_callbacks}", str(n_callbacks))
    declared += FUNCTIONS
    if f" {function}(" not in declared:
        declared += f"void {function}(void);"  # only looked for, never called
    return Version(name, declared, _MODEL_DEFAULTS, _CONTEXT_DEFAULTS, function, layout, wheel, ids_reversed)


VERSIONS: tuple[Version, ...] = (
    _version("b11549", 3, "llama_get_causal_attn", wheel="2026.10.11549"),
    _version("b11434", 2, "llama_get_causal_attn"),
    _version("b11063", 2, "llama_memory_can_shift", LAYOUTS[1], "2026.9.11063", ids_reversed=False),
)
"""Every version the lane can talk to, newest first: the first that fits is taken."""
