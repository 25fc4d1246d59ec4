"""The devices the engine is tested on. Without torch there is no engine to test: pip install 'kvsim[engine]'."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*.py"]


@pytest.fixture(params=["cpu", "pretended", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A CPU; a GPU that is not there, which finds what a real one would refuse; a real one."""
    import torch
    from engine_recordings import PRETENDED
    from pretended_gpu import pretended_gpu

    if request.param == "pretended":
        with pretended_gpu():
            yield PRETENDED
    elif request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    else:
        yield request.param
