"""Many simulations: configurations times workloads times seeds, resumable, with one table of results.

A sweep is described in YAML::

    workloads: [azure_llm_2023_conv.csv.gz]      beside the file, or absolute
    requests: 2000                               of each; left out: all
    base: {arch: gemma3-4b, n_ctx: 65536}        the names of a Setup
    grid: {parallel: [4, 8, 16], unified: [true, false]}

Instead of ``grid``, ``random: {n: 20, seed: 1, choices: {...}}`` draws combinations. ``fitted: 1000`` with
``seeds: [0, 1]`` makes up workloads that are like those given, one for each seed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import CacheUsageError
from kvsim.spread import over_processes, over_ray
from kvsim.workload.read import Workload
from kvsim.workload.setup import LARGEST, Setup
from kvsim.workload.synthetic import fit

_KEYS = {"workloads", "requests", "fitted", "seeds", "base", "grid", "random"}
NEEDED = "pip install 'kvsim[cluster]'"
TABLE = "results.parquet"

LONGEST = 256 << 10
"""Characters of a description."""

MOST_COMBINATIONS = 100_000


@dataclass(frozen=True)
class Job:
    """One simulation: ``requests`` 0 is all of the workload, ``fitted`` 0 is the workload itself."""

    workload: str
    setup: Setup
    requests: int = 0
    fitted: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        """The same for the same job, whenever it is made."""
        text = json.dumps({**asdict(self), "workload": Path(self.workload).name}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_spec(path: Path) -> list[Job]:
    """The jobs of a sweep. Raises CacheUsageError naming the file and what is wrong in it."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise CacheUsageError(f"a sweep is read with PyYAML: {NEEDED}") from None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise CacheUsageError(f"{path}: longer than {LONGEST >> 10} KiB: no sweep")
        spec = yaml.safe_load(text)
    except OSError as error:
        raise CacheUsageError(f"{path}: cannot be opened: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise CacheUsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise CacheUsageError(f"{path}: nested too deeply") from None
    try:
        return list(_jobs(spec, path.parent))
    except CacheUsageError as error:
        raise CacheUsageError(f"{path}: {error}") from None


def _jobs(spec: Any, folder: Path) -> Iterator[Job]:
    if not isinstance(spec, dict) or not set(spec) <= _KEYS:
        wrong = sorted(map(str, set(spec) - _KEYS)) if isinstance(spec, dict) else "no mapping"
        raise CacheUsageError(f"{wrong}: a sweep has some of {', '.join(sorted(_KEYS))}")
    workloads = _list(spec, "workloads", str)
    seeds = _list(spec, "seeds", int) if "seeds" in spec else [0]
    requests, fitted = (_number(spec, name) for name in ("requests", "fitted"))
    for seed in seeds:
        _number({"seeds": seed}, "seeds")
    if seeds != [0] and not fitted:
        raise CacheUsageError("seeds make a difference only for made-up workloads: set fitted too")
    base = spec.get("base", {})
    if not isinstance(base, dict):
        raise CacheUsageError("base is not a mapping of settings")
    for workload, changes, seed in product(workloads, _combinations(spec), seeds):
        setup = Setup.from_mapping({**base, **changes})
        setup.config()
        setup.cost()
        yield Job(str(folder / workload), setup, requests, fitted, seed)


def _list(spec: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = spec.get(name)
    if not isinstance(values, list) or not values or not all(type(value) is kind for value in values):
        raise CacheUsageError(f"{name} is not a list of {kind.__name__}")
    return values


def _number(spec: Mapping[str, Any], name: str) -> int:
    value = spec.get(name, 0)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise CacheUsageError(f"{name} = {value!r} is not a number from 0 to {LARGEST}")
    return value


def _combinations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "grid" in spec and "random" in spec:
        raise CacheUsageError("give grid or random, not both")
    if "random" not in spec:
        choices = _choices(spec.get("grid", {}), "grid")
        _check_number(prod(map(len, choices.values())))
        return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    drawn = spec["random"]
    if not isinstance(drawn, dict) or not set(drawn) <= {"n", "seed", "choices"}:
        raise CacheUsageError("random has n, seed and choices")
    choices = _choices(drawn.get("choices"), "random.choices")
    _check_number(_number(drawn, "n"))
    random = np.random.default_rng(_number(drawn, "seed"))
    found = [
        {name: values[int(random.integers(len(values)))] for name, values in choices.items()}
        for _ in range(_number(drawn, "n"))
    ]
    return list({json.dumps(each): each for each in found}.values())


def _check_number(n: int) -> None:
    if n > MOST_COMBINATIONS:
        raise CacheUsageError(f"{n:,} combinations are too many: {MOST_COMBINATIONS:,} are possible")


def _choices(choices: Any, where: str) -> dict[str, list[Any]]:
    if not isinstance(choices, dict) or not all(isinstance(v, list) and v for v in choices.values()):
        raise CacheUsageError(f"{where} is not a mapping from settings to lists of values")
    return choices


def run_job(job: Job) -> dict[str, Any]:
    """Simulate, and return one flat row of results."""
    workload = Workload(job.workload, job.requests or None)
    made = fit(workload, job.fitted, job.seed) if job.fitted else workload
    account = job.setup.run(made, sample_every=60.0)
    times = {
        f"{name}_{part}": value
        for name in ("wait", "first_token", "latency")
        for part, value in getattr(account, name).to_json().items()
        if part != "n"
    }
    return {
        "key": job.key,
        "workload": Path(job.workload).name,
        "requests_asked": job.requests,
        "fitted": job.fitted,
        "seed": job.seed,
        **asdict(job.setup),
        "bytes": job.setup.memory_bytes(),
        **asdict(account.totals),
        "prefix_hits": account.hits,
        "peak_used": sum(account.peak.values()),
        **times,
    }


def sweep(
    jobs: list[Job],
    out: Path,
    processes: int = 1,
    ray: str = "",
    report: Callable[[Job], object] = lambda job: None,
    work: Callable[[Job], dict[str, Any]] = run_job,
) -> Path:
    """Do all jobs that have no result in the folder ``out`` yet, and write the table of all results.

    A result is kept as soon as it is there, so a sweep that was broken off goes on where it was. Returns the
    path of the table. Raises SpreadError, or whatever a simulation raises.
    """
    rows = out / "rows"
    try:
        rows.mkdir(parents=True, exist_ok=True)
        if not os.access(rows, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CacheUsageError(f"{out}: results cannot be kept there: {error.strerror}") from None
    left = [job for job in {job.key: job for job in jobs}.values() if not (rows / f"{job.key}.json").exists()]
    spread = partial(over_ray, address=ray) if ray else partial(over_processes, processes=processes)
    for job, row in spread(work, left):
        path = rows / f"{job.key}.json"
        path.with_suffix(".part").write_text(json.dumps(row))
        os.replace(path.with_suffix(".part"), path)
        report(job)
    return write_table([rows / f"{job.key}.json" for job in jobs], out / TABLE)


def write_table(rows: list[Path], path: Path) -> Path:
    """All rows as one Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise CacheUsageError(f"the table is written with pyarrow: {NEEDED}") from None
    unique = dict.fromkeys(rows)
    pq.write_table(pa.Table.from_pylist([_read_row(row) for row in unique]), path)
    return path


def _read_row(path: Path) -> dict[str, Any]:
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise CacheUsageError(f"{path} is damaged: remove it, and its simulation is done again")
    return row
