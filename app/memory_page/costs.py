"""What a configuration costs, and what each alternative to it would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from app.memory_page.setting import Setting
from kvsim.errors import KvsimError
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ROLLBACK_ARCHS, ResolvedContext, pad, resolve
from kvsim.models.memory_bytes import spec_bytes
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams, SwaType

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Part:
    """One cache, the recurrent states or a compressor's ring. ``each`` is bytes per row and layer, 0 if it
    differs from layer to layer."""

    name: str
    layers: int
    rows: int
    each: int
    bytes: int


@dataclass(frozen=True)
class Cost:
    """A configuration's bytes by part, or why llama.cpp refuses it."""

    title: str
    detail: str
    parts: tuple[Part, ...] = ()
    refusal: str = ""

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)


def cost(model: ModelParams, setting: Setting, title: str = "As configured") -> Cost:
    """The bytes of one configuration; a refusal is told, not raised."""
    try:
        spec, context = _spec(model, setting)
    except KvsimError as error:
        return Cost(title, "", refusal=str(error))
    if spec is None:
        return Cost(title, "", refusal=f"{model.arch} keeps no memory: it sees a whole text at once")
    return Cost(title, _detail(spec, context), _parts(spec))


def alternatives(model: ModelParams, setting: Setting) -> Iterator[Cost]:
    """What else could be chosen, one thing changed at a time; only what makes sense for the model."""
    types = {"q8_0": "K and V in q8_0", "q4_0": "K and V in q4_0", "f16": "K and V in f16"}
    for name, title in types.items():
        if not (name == setting.type_k == setting.type_v):
            yield cost(model, replace(setting, type_k=name, type_v=name), title)
    n = setting.n_seq_max
    if n == 1:
        yield cost(model, replace(setting, n_seq_max=4, streams=False), "4 sequences, unified")
        each = f"{setting.n_ctx // 4:,}"
        yield cost(model, replace(setting, n_seq_max=4, streams=True), f"4 streams of {each}")
    elif setting.streams:
        yield cost(model, replace(setting, streams=False), f"{n} sequences, unified")
    else:
        yield cost(model, replace(setting, streams=True), f"{n} streams of {setting.n_ctx // n:,}")
    if model.swa_type is not SwaType.NONE:
        title = "window caches of their own size" if setting.swa_full else "swa_full"
        yield cost(model, replace(setting, swa_full=not setting.swa_full), title)
    if model.arch in ROLLBACK_ARCHS:
        more = 0 if setting.n_rs_seq else 4
        title = f"{more} rollback snapshots" if more else "no rollback snapshots"
        yield cost(model, replace(setting, n_rs_seq=more), title)


def explanation(model: ModelParams, setting: Setting) -> list[str]:
    """Where the cells of the window cache come from, and what a calculator that knows no windows says."""
    try:
        spec, context = _spec(model, setting)
    except KvsimError:
        return []
    told = []
    windowed = [c for c in spec.caches.values() if c.swa_type is not SwaType.NONE] if spec else []
    if not windowed or setting.swa_full:
        return told
    size, n_swa = windowed[0].size, windowed[0].n_swa
    held = n_swa * (context.n_seq_max if context.kv_unified else 1)
    if pad(held + context.n_ubatch) == size:
        times = f"{context.n_seq_max} x " if held != n_swa else ""
        told.append(f"{size:,} = {times}window {n_swa:,} + ubatch {context.n_ubatch:,}, padded to 256.")
    full, own = cost(model, replace(setting, swa_full=True)).total, cost(model, setting).total
    if full > own:
        told.append(
            f"A calculator that treats all {model.n_layer} layers alike says {in_words(full)}, "
            f"{full / own:.1f} times as much."
        )
    return told


def summary(model: ModelParams) -> str:
    """The model's layers in words: "8 layers without window, 40 layers with a window of 1,024"."""
    layers = model.layers[: model.n_layer]
    windowed = sum(layer.is_swa for layer in layers)
    recurrent = sum(layer.is_recr for layer in layers)
    plain = len(layers) - windowed - recurrent
    told = []
    if plain:
        told.append(f"{_layers(plain)} {'without window' if windowed else 'of attention'}")
    if windowed:
        told.append(f"{_layers(windowed)} with a window of {model.n_swa:,}")
    if recurrent:
        told.append(f"{_layers(recurrent)} with a recurrent state")
    return ", ".join(told)


def in_words(n: int) -> str:
    """1536 as "1.50 KiB": three digits."""
    k = next((k for k in range(len(UNITS) - 1, 0, -1) if n >= 1024**k), 0)
    value = n / 1024**k
    digits = 0 if k == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {UNITS[k]}"


def kind_of(model: ModelParams, setting: Setting) -> str:
    """Which member of the family holds it ("iswa"); "" where llama.cpp refuses."""
    try:
        spec, _ = _spec(model, setting)
    except KvsimError:
        return ""
    return spec.kind if spec else ""


def _spec(model: ModelParams, setting: Setting) -> tuple[MemorySpec | None, ResolvedContext]:
    context = resolve(model, setting.params)
    return memory_spec(model, context), context


def _parts(spec: MemorySpec) -> tuple[Part, ...]:
    found = []
    for name, listed in groupby(spec_bytes(spec), key=lambda part: part.part):
        rows = list(listed)
        layers, n_rows, total = (
            max(r.n_layers for r in rows),
            max(r.rows for r in rows),
            sum(r.bytes for r in rows),
        )
        each, rest = divmod(total, n_rows * layers)
        found.append(Part(name, layers, n_rows, 0 if rest else each, total))
    return tuple(found)


def _detail(spec: MemorySpec, context: ResolvedContext) -> str:
    told = []
    types = [context.type_k] if context.type_k == context.type_v else [context.type_k, context.type_v]
    told.append(" and ".join(types))
    for name, cache in spec.caches.items():
        if cache.layers:
            each = f"{cache.n_stream} x {cache.size:,}" if cache.n_stream > 1 else f"{cache.size:,}"
            told.append(f"{name} {each}")
    if spec.recurrent:
        told.append(f"{spec.recurrent.size * (1 + spec.recurrent.n_rs_seq):,} states")
    return ", ".join(told)


def _layers(n: int) -> str:
    return "1 layer" if n == 1 else f"{n} layers"
