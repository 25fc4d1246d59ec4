"""Jobs on a Ray cluster: worker processes of this machine, one of which is killed in the middle."""

from __future__ import annotations

from pathlib import Path

import dying_workers
import pytest

from kvsim.spread import SpreadError, over_ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvsim[cluster]'")


def test_a_killed_worker_costs_only_time(tmp_path: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    ray.cloudpickle.register_pickle_by_value(dying_workers)  # workers do not see the folders of the tests
    try:
        items = [str(tmp_path / name) for name in ("a", "b.kill", "c", "d")]
        assert dict(over_ray(dying_workers.die_once, items, "local")) == {item: len(item) for item in items}
        assert (tmp_path / "b.kill").exists()
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:" + "9" * 5000, "x" * 100 + ":1", "\udcff:1"]
)
def test_an_address_that_cannot_be_is_said(address: str) -> None:
    with pytest.raises(SpreadError, match="no Ray cluster at "):
        list(over_ray(len, ["x"], address))


def test_no_cluster_is_said() -> None:
    """At once: Ray itself would wait for minutes."""
    with pytest.raises(SpreadError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        list(over_ray(len, ["x"], "127.0.0.1:1"))
