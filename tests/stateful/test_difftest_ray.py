"""A campaign on a Ray cluster of this machine: one worker is killed in the middle, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.testing.difftest import SESSION, Campaign, Shard, run
from kvsim.testing.report import Report

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvsim[cluster]'")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two worker processes, which find the subjects of these tests; the folder of :class:`DiesOnce`."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("KVSIM_TEST_DIED", str(folder / "died"))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
        try:
            yield folder
        finally:
            ray.shutdown()


def numbers(report: Report) -> dict[str, object]:
    return {key: value for key, value in report.to_json().items() if key not in ("seconds", "plan")}


def test_a_killed_worker_costs_only_time_and_a_run_goes_on(cluster: Path) -> None:
    campaign = Campaign("difftest_subjects:DiesOnce", memory="kv", config="tiny", seed=4)
    report = Report(campaign.plan)
    seen: list[int] = []
    assert run(campaign, report, 3 * SESSION, progress=lambda r: seen.append(r.ops), ray="local") is None
    assert (cluster / "died").exists(), "a worker was killed"
    assert seen == [SESSION, 2 * SESSION, 3 * SESSION], "sessions are counted in their order"
    assert run(campaign, report, 5 * SESSION, ray="local") is None
    here = Campaign("difftest_subjects:Same", memory="kv", config="tiny", seed=4)
    same = Report(here.plan)
    assert run(here, same, 5 * SESSION, Shard()) is None
    assert numbers(report) == numbers(same)


def test_the_first_difference_comes_back_from_the_cluster(cluster: Path) -> None:
    campaign = Campaign("difftest_subjects:KeepsLast", memory="kv", config="tiny", seed=3)
    far, near = (run(campaign, Report(campaign.plan), 20 * SESSION, ray=where) for where in ("local", ""))
    assert far is not None
    assert near is not None
    assert (far.session, str(far.error)) == (near.session, str(near.error))


def test_a_cluster_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    done = CliRunner().invoke(app, ["difftest", "--memory", "kv", "--ops", "400", "--ray", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "no Ray cluster at '127.0.0.1:1'" in done.output
