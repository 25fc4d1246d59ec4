"""Which operators CUDA has a kernel for, and for which numbers: by the table that torch tests itself with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from functools import cache

import torch

TABLE = """
import json
from torch.testing._internal.common_methods_invocations import op_db

kernels = {}
for op in op_db:
    for name in {op.name, op.aten_name, *(alias.name for alias in op.aliases)}:
        kernels.setdefault(name.split(".")[-1], set()).update(str(dtype) for dtype in op.dtypesIfCUDA)
print(json.dumps({name: sorted(dtypes) for name, dtypes in kernels.items()}))
"""

ALL = {"_to_copy", "copy_", "detach", "_unsafe_view", "rand", "randperm"}
"""Operators that the table leaves out, which move or make numbers of every kind."""

LISTED_AS = {
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_unique2": "unique",
}

CONVERTED = {("cumsum", torch.bool)}
"""What the table leaves out because it is made another kind of number first."""


@cache
def table() -> dict[str, frozenset[str]]:
    """By operator, the dtypes. Read by a process of its own: the module that has it changes what torch lets be set."""
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TABLE], capture_output=True, text=True, check=True
    ).stdout
    return {name: frozenset(dtypes) for name, dtypes in json.loads(printed).items()}


def without_kernel(name: str, dtypes: Iterable[torch.dtype]) -> str:
    """What CUDA cannot do there; empty if it can do it all."""
    if name in ALL:
        return ""
    known = table()
    listed = next((n for n in (LISTED_AS.get(name, name), name.rstrip("_")) if n in known), None)
    if listed is None:
        return f"{name} is not among the operators that torch tests"
    missing = sorted({str(d) for d in dtypes if str(d) not in known[listed] and (listed, d) not in CONVERTED})
    return f"{name} has no kernel on CUDA for {', '.join(missing)}" if missing else ""
