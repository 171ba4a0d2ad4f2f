"""`netstack-bench jobs`: its document, its flags, and real processes."""

from __future__ import annotations

import json

import pytest

from netstack.base.errors import ConfigError
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.plan.plan import make_plan
from netstack_bench.cli import main
from netstack_bench.jobs.operators import RESULT, chain, in_one_process, two_pipelines, wide
from netstack_bench.jobs.spec import JobsSpec

CONTRACT = {"deploy", "all_to_all", "recover", "chain", "delivered", "settings", "host", "version", "warnings"}
WAYS = {"one_process", "chained", "unchained", "unchained_tcp"}


def test_the_ways_of_the_chain_are_what_they_are_called() -> None:
    def tasks(*, is_chained: bool, is_spread: bool) -> list[list[int]]:
        job = chain(10, 3, is_chained=is_chained, is_spread=is_spread)
        plan = make_plan(job.stream_graph(), taskmanagers=2 if is_spread else 1, slots=1)
        assert plan.placement is not None
        return [plan.placement.taskmanagers_of(vertex).tolist() for vertex in range(len(plan.job.vertices))]

    assert tasks(is_chained=True, is_spread=False) == [[0]]
    assert tasks(is_chained=False, is_spread=False) == [[0]] * 5
    assert tasks(is_chained=False, is_spread=True) == [[0], [1], [0], [1], [0]]
    assert chain(10, 3, is_chained=True, is_spread=False).stream_graph().nodes[-1].name == RESULT


def test_the_other_jobs() -> None:
    job = generate_job(wide(20).stream_graph()).job
    assert [vertex.parallelism for vertex in job.vertices] == [10, 10]
    plan = make_plan(two_pipelines(1.0).stream_graph(), taskmanagers=2, slots=1)
    assert sum(sum(region.sizes.values()) for region in plan.regions) == 2
    assert in_one_process(1000, 2) > 0


@pytest.mark.parametrize(
    "wrong", [{"tasks": (3,)}, {"tasks": (0,)}, {"kills": -1}, {"records": 0}, {"rounds": -1}, {"all_to_all": (0,)}]
)
def test_what_cannot_be_measured(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"give|the minimum is"):
        JobsSpec(**wrong)  # type: ignore[arg-type]


@pytest.mark.whole
def test_real_processes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", "4", "--taskmanagers", "1", "--kills", "0", "--records", "2000", "--rounds", "1", "--json"]
    words += ["--all-to-all", "3"]
    assert main(["jobs", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == CONTRACT
    assert [row["tasks"] for row in result["deploy"]] == [4]
    (row,) = result["all_to_all"]
    assert (row["tasks"], row["channels"], row["records"], row["lost"], row["spread"]) == (6, 9, 9, 0, [6, 6])
    assert row["cpu_s"] > 0
    assert row["memory_mib"] > 0
    assert result["recover"] is None
    assert result["chain"]["records_per_s"].keys() == WAYS
    assert all(rate > 0 for rate in result["chain"]["records_per_s"].values())
    assert result["delivered"] is True


@pytest.mark.long
def test_regions_that_are_killed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", "4,8", "--kills", "3", "--records", "2000", "--rounds", "1", "--all-to-all", "2"]
    assert main(["jobs", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recover"]["kills"] == 3
    assert 0 < result["recover"]["recovery_ms"]["p50"] <= result["recover"]["recovery_ms"]["max"]
    assert result["deploy"][1]["growth"] > 0
    assert main(["jobs", *words[:2], "--kills", "1", *words[4:]]) == 0
    displayed = capsys.readouterr().out
    assert "its region recovered after" in displayed
    assert "chained: one task" in displayed
    assert main(["jobs", "--tasks", "4", "--kills", "0", "--rounds", "0", "--all-to-all", "2"]) == 0
    displayed = capsys.readouterr().out
    assert "2 x 2" in displayed
    assert "chained" not in displayed
