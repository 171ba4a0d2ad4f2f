"""Queued markers and barriers: for which edges a marker's age counts, and how much data is in front of a barrier."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from netstack.cluster.jobmanager.progress import data_ahead
from netstack.cluster.jobmanager.views.documents import named_latencies
from netstack.cluster.task.queued import NO_BARRIER, Queued, output_place
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.job_graph import JobGraph

SOURCE, LEFT, RIGHT, SINK = range(4)
OUT = output_place(0)


def diamond() -> JobGraph:
    """One source, whose records reach the sink in two ways: left and right."""
    env = StreamEnvironment("diamond", parallelism=2, settings=StreamSettings(is_chaining_enabled=False))
    source = env.source("builtins:list", name="source")
    left = source.rebalance().map("builtins:str", name="left")
    right = source.rebalance().map("builtins:str", name="right")
    left.rebalance().union(right.rebalance()).sink("builtins:print", name="sink")
    job = generate_job(env.stream_graph()).job
    assert [vertex.name for vertex in job.vertices] == ["source", "left", "right", "sink"]
    return job


JOB = diamond()


def queued(**rows: list[list[int]]) -> Queued:
    return {"markers": [], "barriers": [], **rows}


def told(at: dict[int, Queued], measured: dict[int, dict[str, list[int]]] | None = None) -> dict[str, Any]:
    return {
        f"{row['from']} to {JOB.vertices[vertex].name}": (row["count"], row["waiting"], row["max_us"], row["at_least"])
        for vertex, rows in named_latencies(JOB, measured or {}, at).items()
        for row in rows
    }


ALL = ["p50_us", "p99_us", "max_us"]


def test_a_marker_in_front_of_a_task_counts_for_its_edge_and_for_all_tasks_behind() -> None:
    at_left = told({LEFT: queued(markers=[[0, SOURCE, 20, 20]])})
    assert at_left == {"source to left": (0, 1, 20, ALL), "source to sink": (0, 1, 20, ALL)}
    at_producer = told({SOURCE: queued(markers=[[output_place(1), SOURCE, 30, 30]])})
    assert at_producer == {"source to right": (0, 1, 30, ALL), "source to sink": (0, 1, 30, ALL)}
    at_sink = told({LEFT: queued(markers=[[OUT, SOURCE, 5, 34]]), SINK: queued(markers=[[1, SOURCE, 6, 36]])})
    assert at_sink == {
        "left to sink": (0, 1, 5, ALL),
        "right to sink": (0, 1, 6, ALL),
        "source to sink": (0, 2, 36, ALL),
    }


def test_measured_markers_stand_beside_the_waiting_ones() -> None:
    actual = told({LEFT: queued(markers=[[0, SOURCE, 34, 34]])}, {LEFT: {"input 0": [1, 2, 3]}, SINK: {"input 0": [4]}})
    assert actual["source to left"] == (3, 1, 34, ["p99_us", "max_us"])
    assert actual["left to sink"] == (1, 0, 4, []), "nothing waits there"


@given(st.integers(1, 9), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_data_ahead_is_that_of_the_waiting_tasks_and_the_same_checkpoint(
    checkpoint_id: int, sent: int, received: int, rest: int
) -> None:
    at = {
        LEFT: queued(barriers=[[OUT, checkpoint_id, sent], [OUT, checkpoint_id + 1, 1000], [0, checkpoint_id, 1000]]),
        SINK: queued(barriers=[[0, checkpoint_id, received], [1, NO_BARRIER, rest]]),
    }
    every = [("sink", 0), ("sink", 1)]
    assert data_ahead(JOB, at, checkpoint_id, every) == sent + received + rest
    assert data_ahead(JOB, at, checkpoint_id, every[:1]) == sent + received, "the rest may be behind a barrier"
    assert data_ahead(JOB, at, checkpoint_id, [("right", 0)]) == 0
