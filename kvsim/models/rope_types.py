"""How each architecture pairs the dimensions that rope turns (``llama_model_rope_type``)."""

from __future__ import annotations

from kvsim.models.params import RopeType

_NONE = """arwkv7 bloom glm5-next gpt2 gptj jais jamba jina-bert-v2 kimi-k3 kimi-linear mamba mamba2 mpt
    nemotron_h nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 t5 t5encoder wavtokenizer-dec"""

_NORM = """arcee arctic baichuan bailingmoe bailingmoe3 chameleon chatglm cohere2 cohere2moe command-r deci
    deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots3note eagle3 ernie4_5 ernie4_5-moe glm-dsa
    glm4 granite granite_swa granitehybrid granitemoe graniteswitch hy_v4 internlm2 llada llama llama-embed
    llama4 maincoder minicpm mistral3 mistral4 muse-glimmer nanbeige neo-bert olmo plm pockettts smollm3
    starcoder xverse"""

_MROPE = "paddleocr qwen2vl"

_IMROPE = "clef qwen35 qwen35moe qwen3tts qwen3vl qwen3vlmoe qwen4exp"

_TYPES = {
    name: kind
    for kind, names in (
        (RopeType.NONE, _NONE),
        (RopeType.NORM, _NORM),
        (RopeType.MROPE, _MROPE),
        (RopeType.IMROPE, _IMROPE),
    )
    for name in names.split()
}

_MROPE_IF_SECTIONS = frozenset({"bailingmoe3", "glm4", "glm4moe", "hunyuan_vl"})
"""Their vision variants are the files that have rope sections."""


def rope_type_of(arch: str, sections: tuple[int, ...], hyper_connections: int = 0) -> RopeType:
    """The rope type of a model; architectures that no list above names pair halves (NEOX)."""
    if arch == "dflash":
        if any(sections):
            return RopeType.MROPE
        return RopeType.NORM if hyper_connections else RopeType.NEOX
    if arch in _MROPE_IF_SECTIONS and sections[0] > 0 and sections[1] > 0:
        return RopeType.MROPE
    return _TYPES.get(arch, RopeType.NEOX)
