"""One prepared run on a GPU: every GPU test, then a table of what the device does beside copying the same
bytes.

python -m engine.gpu_check [--out FILE]

Writes JSON: the tests' verdict, and per operation its microseconds and the fraction ``copy / operation`` (1:
as fast as a plain device copy of the rows it touches). Exit status 0: tests passed and all was measured; 1:
something failed; 3: no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine import indexer
from engine.attention import attend
from engine.factory import EngineFactory
from engine.kv import KVCache
from engine.kv_view import KVView
from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.params import LayerParams, ModelParams, RopeType

NO_GPU = 3
REPEATS = 20
N_CELLS, N_TOKENS = 131_072, 512
TESTS = Path(__file__).parents[1] / "tests" / "engine"
TEST_SECONDS = 180
TAIL = 2000
"""So many characters of what the tests print are kept."""


@dataclass(frozen=True)
class Measured:
    """One line of the table. ``fraction``: time of a device copy of ``n_bytes``, in times of the
    operation's."""

    operation: str
    n_bytes: int
    microseconds: float
    copy_microseconds: float

    @property
    def fraction(self) -> float:
        return self.copy_microseconds / self.microseconds


@dataclass(frozen=True)
class Failed:
    """A line that could not be measured."""

    operation: str
    error: str


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the JSON to this file, anew after each line")
    out = parser.parse_args(argv).out
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device here, so nothing was checked", file=sys.stderr)
        return NO_GPU
    passed, tail = run_tests()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "tests_passed": passed,
        "tests": tail, "rows": [], "failed": [],
    }  # fmt: skip
    print(tail, file=sys.stderr)
    for line in table("cuda", N_CELLS, N_TOKENS):
        print(line, file=sys.stderr, flush=True)
        if isinstance(line, Failed):
            report["failed"].append(asdict(line))
        else:
            report["rows"].append({**asdict(line), "fraction": line.fraction})
        if out is not None:
            out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0 if passed and not report["failed"] else 1


def run_tests() -> tuple[bool, str]:
    """The tests of the engine on the GPU; their verdict and the last lines they printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda", str(TESTS)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TEST_SECONDS, cwd=TESTS.parents[1]
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return False, f"{said[-TAIL:]}\nthe tests took more than {TEST_SECONDS} s"
    return done.returncode == 0, done.stdout[-TAIL:]


# -- the table -------------------------------------------------------------------------------------


def table(device: str, n_cells: int, n_tokens: int, repeats: int = REPEATS) -> Iterator[Measured | Failed]:
    """Each operation on a cache of ``n_cells`` f16 rows of 8 heads of 128, all but the last few cells used; as
    they are measured. One that fails leaves the others their turn."""
    try:
        bench = _Bench(device, n_cells, n_tokens, repeats)
    except Exception as error:
        yield Failed("filling a cache", repr(error))
        return
    for measure in (
        bench.k_shift, bench.defragmentation, bench.stream_copy, bench.attention, bench.indexer, bench.mask,
    ):  # fmt: skip
        try:
            yield measure()
        except Exception as error:
            yield Failed(measure.__name__, repr(error))


class _Bench:
    def __init__(self, device: str, n_cells: int, n_tokens: int, repeats: int) -> None:
        self.device, self.n_cells, self.n_tokens, self.repeats = (
            torch.device(device),
            n_cells,
            n_tokens,
            repeats,
        )
        layer = LayerParams(n_head_kv=8, n_embd_head_k=128, n_embd_head_v=128, n_rot=128)
        self.model = ModelParams("llama", (layer,), n_embd=4096, rope_type=RopeType.NORM)
        self.cache = self.make(n_cells, n_streams=1)
        self.layer = self.cache.spec.layers[0]
        self.cache.table.top[0] = self.cache.high = n_cells
        used = torch.arange(n_cells - n_tokens, dtype=torch.int32, device=self.device)
        self.cache.table.planes[0, 0, : len(used)] = used
        self.cache.table.seq[0, 0, : len(used)] = 1
        self.cache.table.ids[0] = {0}
        self.cache.exact_top = [False]
        self.cache.forget_ranges()
        self.view = self.place(n_tokens)

    def make(self, n_cells: int, n_streams: int) -> KVCache:
        params = ContextParams(
            n_ctx=n_cells * n_streams, n_batch=self.n_tokens, n_ubatch=self.n_tokens, n_seq_max=n_streams,
            kv_unified=n_streams == 1, flash_attn=True,
        )  # fmt: skip
        self.context = Context(self.model, params, leaves=EngineFactory(data=True, device=str(self.device)))
        cache = self.context.memory
        assert isinstance(cache, KVCache)
        return cache

    def place(self, n: int) -> KVView:
        context = self.context
        context.allocator.init(Batch.tokens_of(0, [0] * n), context.memory)
        prepared = context.memory.init_batch(context.allocator, n)
        prepared.apply()
        view = prepared.views["kv"]
        assert isinstance(view, KVView)
        return view

    def beside_copy(self, operation: str, n_bytes: int, step: Callable[[], object]) -> Measured:
        source = torch.ones(max(n_bytes, 1), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return Measured(operation, n_bytes, self.time(step), self.time(lambda: target.copy_(source)))

    def time(self, step: Callable[[], object]) -> float:
        """Median microseconds, by the device's own clock where it has one."""
        step()
        took = []
        for _ in range(self.repeats):
            if self.device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                step()
                end.record()
                end.synchronize()
                took.append(begin.elapsed_time(end) * 1e3)
            else:
                begun = time.perf_counter()
                step()
                took.append((time.perf_counter() - begun) * 1e6)
        return sorted(took)[len(took) // 2]

    def k_shift(self) -> Measured:
        shift = torch.full((1, self.n_cells), 7, dtype=torch.int32, device=self.device)
        n_bytes = self.n_cells * self.layer.row_k
        return self.beside_copy("K-shift, f16", n_bytes, lambda: self.cache.store.apply_shift(shift))

    def defragmentation(self) -> Measured:
        """Every other cell of the second half into the first."""
        half = self.n_cells // 2
        src = torch.arange(half, self.n_cells, 2, device=self.device)
        dst = torch.arange(0, half, 2, device=self.device)
        n_bytes = len(src) * (self.layer.row_k + self.layer.row_v)
        return self.beside_copy(
            "rows moved by a compaction", n_bytes, lambda: self.cache.store.move_cells(0, src, dst)
        )

    def stream_copy(self) -> Measured:
        store = self.make(self.n_cells // 2, n_streams=2).store
        n_bytes = self.n_cells // 2 * (self.layer.row_k + self.layer.row_v)
        return self.beside_copy("stream copy", n_bytes, lambda: store.copy_stream(0, 1))

    def attention(self) -> Measured:
        """One token over all cells."""
        q = torch.randn(1, 32, 128, dtype=torch.float16, device=self.device)
        mask = self.view.mask()[-1:]
        slot = self.view.slot
        view = KVView(self.cache, slot, self.view.ubatch)
        n_bytes = view.n_kv * (self.layer.row_k + self.layer.row_v)
        return self.beside_copy(
            "decode attention", n_bytes, lambda: attend(view, 0, q, mask, scale=128**-0.5)
        )

    def indexer(self) -> Measured:
        """Scores of one token's 64 index heads over all cells, and the best 2048 of them."""
        keys = torch.randn(self.n_cells, 128, dtype=torch.float16, device=self.device)
        q = torch.randn(1, 64, 128, dtype=torch.float16, device=self.device)
        weights = torch.rand(1, 64, dtype=torch.float16, device=self.device)
        visible = torch.ones(1, self.n_cells, dtype=torch.bool, device=self.device)

        def step() -> tuple[Tensor, Tensor]:
            return indexer.best_cells(indexer.index_scores(q, keys, weights, visible), 2048)

        return self.beside_copy("indexer, 64 heads and top 2048", keys.nbytes, step)

    def mask(self) -> Measured:
        n_bytes = self.n_tokens * self.view.n_kv
        return self.beside_copy(f"mask, {self.n_tokens} x {self.view.n_kv:,}", n_bytes, self.view.mask)


if __name__ == "__main__":
    sys.exit(main())
