from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.cli import main
from netstack_bench.scheduler import measure as measuring
from netstack_bench.scheduler.measure import descriptor_sizes, peak_bytes
from netstack_bench.scheduler.trials import BATCH, SLOTS_PER_TASKMANAGER, STEPS, STREAMING, Cluster, Trial, scheduler_of

CONTRACT = {
    "parallelism",
    "init_ms",
    "regions_ms",
    "failover_ms",
    "deploy_ms",
    "topology_bytes",
    "descriptor_bytes",
    "descriptor_compressed_bytes",
    "task_descriptor_bytes",
    "growth",
    "steps_ms",
    "longest_step_ms",
    "longest_ms",
    "memory_bytes",
    "work",
    "results",
    "delivered",
    "warnings",
    "settings",
    "host",
    "version",
}
SOME = ("build_execution_graph", "build_regions_batch", "restart_set_batch", "deploy_tasks_streaming", "finish_sinks")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some steps, once."""
    steps = {name: STEPS[name] for name in SOME}
    monkeypatch.setattr(measuring, "measure", functools.partial(measuring.measure, steps=steps, repeats=(1, 1)))


@pytest.mark.parametrize("name", STEPS)
def test_every_step_comes_to_what_it_should(name: str) -> None:
    trial = STEPS[name](10)
    assert trial.work() == trial.expected


def test_the_work_of_the_headline_job() -> None:
    facts = {name: STEPS[name](1000).work() for name in ("build_execution_graph", "build_regions_batch", *SOME[2:3])}
    assert facts == {
        "build_execution_graph": {"subtasks": 2000, "groups": 2},
        "build_regions_batch": {"regions": 2000},
        "restart_set_batch": {"restart_set": 1001},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "--parallelism", "10", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == CONTRACT
    assert result["delivered"] is True
    assert result["warnings"] == []
    assert set(result["growth"]) == set(result["steps_ms"]) == set(SOME)
    assert set(result["longest_ms"]) == set(SOME) - {"deploy_tasks_streaming"}
    assert result["longest_step_ms"] == max(result["longest_ms"].values())
    assert result["failover_ms"] == result["steps_ms"]["restart_set_batch"]
    assert result["topology_bytes"] == result["memory_bytes"]["topology"]
    assert result["work"] == {"subtasks": 20, "groups": 2, "regions": 20, "restart_set": 11}
    assert result["results"]["finish_sinks"] == {"partitions_released": 10, "releases": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "--parallelism", "10"]) == 0
    text = capsys.readouterr().out
    assert "source -> sink, all-to-all, 10 subtasks each" in text
    assert "growth from 5" in text
    assert "build regions batch" in text
    assert "Flink" not in text  # what is published is for another parallelism


@pytest.mark.slow
def test_flinks_figures_stand_beside_their_parallelism(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result: dict[str, Any] = measuring.measure(
        measuring.SchedulerSpec(parallelism=2), steps={SOME[0]: STEPS[SOME[0]]}, repeats=(1, 1)
    )
    monkeypatch.setattr(measuring, "measure", lambda spec, on_step: {**result, **spec.as_dict()})
    assert main(["scheduler"]) == 0
    text = capsys.readouterr().out
    assert "10,000 subtasks each" in text
    assert "17,183" in text
    assert "4 MiB" in text


@pytest.mark.parametrize("parallelism", [0, 7, 32_770])
def test_a_parallelism_that_cannot_be_halved_or_made_is_refused(
    parallelism: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scheduler", "--parallelism", str(parallelism)]) == 2
    assert f"--parallelism {parallelism}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="even number"):
        measuring.SchedulerSpec(parallelism=parallelism)


@pytest.mark.slow
def test_a_step_that_comes_to_something_else_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"wrong": lambda parallelism: Trial(lambda: {"subtasks": 1}, {"subtasks": parallelism})}
    monkeypatch.setattr(measuring, "measure", functools.partial(measuring.measure, steps=wrong, repeats=(1, 1)))
    assert main(["scheduler", "--parallelism", "4"]) == 1
    assert "wrong: {'subtasks': 1}, expected {'subtasks': 4}" in capsys.readouterr().err


@pytest.mark.slow
def test_one_wrong_repeat_is_enough() -> None:
    results = iter([3, 4, 3, 4, 3, 3])
    actual = measuring.time_step(lambda _: Trial(lambda: {"made": next(results)}, {"made": 3}), (1, 2), (3, 3))
    assert [timing.facts for timing in actual] == [{"made": 3}, {"made": 4}]


def test_a_cluster_times_every_step_and_counts_what_it_carries_out() -> None:
    cluster = Cluster(scheduler_of(6, STREAMING), 12, 6)
    before = len(cluster.done.step_ns)
    assert before == 2 * -(-6 // SLOTS_PER_TASKMANAGER)
    cluster.start()
    assert cluster.done.deployed == 12
    assert cluster.done.deployed_bytes > 12
    assert len(cluster.done.step_ns) > before


def test_long_work_is_cut() -> None:
    cluster = Cluster(scheduler_of(1000, BATCH), 2000, 1000)
    before = len(cluster.done.step_ns)
    cluster.start()
    assert len(cluster.done.step_ns) - before > 2


@pytest.mark.slow
def test_memory_and_bytes_are_those_of_arrays() -> None:
    assert peak_bytes(1000)["topology"] < 1000 * 100
    sizes = descriptor_sizes(100)
    assert 0 < sizes.compressed < sizes.plain
    assert sizes.tasks > 0
