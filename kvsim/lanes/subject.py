"""The real llama.cpp as a subject of the tester, beside the reference.

It brings its own configurations: the tiny models, whose files it writes, in the contexts of the campaign. An
operation is tried in a copy of its process first, so that one that ends llama.cpp is an outcome like any
other. Of cells it shows index, position and owners (:mod:`kvsim.lanes.picture`); it tells logits and the
bytes of states too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from kvsim.context import ABORTED
from kvsim.errors import CacheUsageError
from kvsim.lanes.campaign import CONFIGURATIONS, memory_of
from kvsim.lanes.choose import for_library
from kvsim.lanes.known_differences import Parting, explained
from kvsim.lanes.library import LaneError, library_named, open_library
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.lanes.picture import Pictures
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import TINY, write_tiny
from kvsim.ops import Op
from kvsim.state_versions import CURRENT
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.match import ENDS
from kvsim.testing.subject import Picture, Subject, UnsupportedError
from kvsim.trace import Header
from kvsim.trace.describe import header_of
from kvsim.trace.unseen import seen_part


class LlamaSubject(Subject):
    """``where``: empty for the installed wheel, or a library, a folder with a wheel, a version
    (:func:`~kvsim.lanes.library.library_named`). Raises LaneError if there is none, or if it is older than
    b11434, whose states kvsim writes."""

    faults = frozenset({"abort"})

    def __init__(self, where: str = "") -> None:
        self._lib = library_named(where)
        version = open_library(self._lib)[2]
        if version.layout is not CURRENT:
            raise LaneError(
                f"llama.cpp {version.name} is older than the reference, b11434: hold it against another "
                "llama.cpp, with --lane and --against"
            )
        self.name = f"llama.cpp {version.name}"
        self._version = version.name
        self._lane: LlamaCpp | None = None
        self._config = ""

    def configs(self, info: CacheInfo) -> Sequence[Config]:
        return tiny_configs(info.kind)

    def create(self, config: Config) -> None:
        model, _, context = config.name.partition("/")
        if model not in TINY or CONFIGURATIONS.get(context) != config.params:
            raise UnsupportedError(f"{config}: llama.cpp has tiny models in contexts of its own only")
        if self._lane is not None and self._config == config.name:
            self._lane.renew()
        else:
            self.close()
            try:
                self._lane = LlamaCpp(tiny_file(model), config.params, self._lib)
            except LaneError as error:
                raise UnsupportedError(str(error)) from error
            self._config = config.name
        header = header_of(config.model, config.params, name=config.name, source=self.name)
        self._pictures = Pictures(self._lane, header)
        self._logits: NDArray[np.float32] | None = None
        self._saved: bytes | None = None

    @property
    def lane(self) -> LlamaCpp:
        if self._lane is None:
            raise LaneError("create a configuration first")
        return self._lane

    def apply(self, op: Op) -> int | None:
        op = performable(op, self.lane.n_vocab)
        self._logits = self._saved = None
        try:
            answer = self.lane.apply_if_it_survives(op)
        except EndedError as error:
            raise CacheUsageError(str(error)) from error
        if answer.logits:
            self._logits = np.stack(list(answer.logits.values()))
        elif op.op in ("state_get", "state_seq_get"):
            self._saved = self.lane.saved(op.args["slot"])
        return answer.ret

    def snapshot(self) -> Picture:
        self._picture = self._pictures.take()
        return self._picture

    def shown(self, picture: Picture) -> Picture:
        return seen_part(self._picture, picture)

    def excuse(self, op: Op, wanted: int | str | None, found: int | str | None) -> str:
        kind = self.lane.spec.kind
        if wanted == ENDS and found == ABORTED and "abort_at_ubatch" in op.args:
            return "the abort that was asked for came before the end"
        if found == ENDS:
            parting = Parting.IT_ENDS
        elif wanted == ENDS:
            parting = Parting.WE_REFUSE
        elif (found, wanted) == (0, 1):
            parting = Parting.IT_REFUSES
        else:
            return ""
        return explained(self._version, kind, op.op, op.args, parting)

    def logits(self) -> NDArray[np.float32] | None:
        return self._logits

    def state(self) -> bytes | None:
        return self._saved

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None


def tiny_configs(kind: str) -> list[Config]:
    """The tiny models with that kind of memory, in every context of the campaign."""
    return [
        Config(f"{model}/{name}", TINY[model].params(), params)
        for model in TINY
        if memory_of(model) == kind
        for name, params in CONFIGURATIONS.items()
    ]


def tiny_like(header: Header) -> str:
    """The tiny model whose memory has the same caches as that of a recording: cells do not depend on weights.
    Raises LaneError if there is none."""
    params = ContextParams.from_header(header.to_json())
    for name, model in TINY.items():
        of_model = model.params()
        if of_model.arch == header.arch and _sizes(header_of(of_model, params)) == _sizes(header):
            return name
    raise LaneError(f"no tiny model has the caches of this {header.arch}, so llama.cpp cannot be asked")


def _sizes(header: Header) -> tuple[object, ...]:
    recurrent = header.config["recurrent"] or {}
    caches = {
        name: [cache.get(key) for key in ("size", "n_stream", "n_swa", "swa_type")]
        for name, cache in header.caches.items()
    }
    return header.memory, caches, recurrent.get("size"), recurrent.get("n_rs_seq")


def performable(op: Op, n_vocab: int) -> Op:
    """The operation with tokens that the library knows."""
    return for_library(op, n_vocab) if op.op == "decode" else op


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="kvsim-tiny-")


def tiny_file(model: str) -> Path:
    """The file of a tiny model, written once a process."""
    path = Path(_folder().name) / f"{model}.gguf"
    if not path.exists():
        write_tiny(model, path)
    return path
