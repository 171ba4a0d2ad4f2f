"""What a checkpoint gives to a subtask is that subtask's own, however often it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from job_shapes import job_graph

from netstack.base.errors import StateMismatch
from netstack.cluster.task.recovery import RestoredCheckpoint
from netstack.schedule.checkpoint.snapshot import TaskSnapshot
from netstack.schedule.descriptors.information import JobInformation, TaskInformation
from netstack.schedule.graph.stream_builder import StreamEnvironment

plain = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 3), inner, max_size=3),
    max_leaves=8,
)


def ruin(value: Any) -> None:
    """Changes everything that can be changed, as an operator may with its state."""
    if isinstance(value, dict):
        for inner in value.values():
            ruin(inner)
        value["ruined"] = True
    elif isinstance(value, list):
        for inner in value:
            ruin(inner)
        value.append("ruined")


@given(st.dictionaries(st.integers(0, 50), plain, min_size=1, max_size=5), plain)
def test_an_attempt_that_changes_its_state_changes_no_other_attempts(counts: dict[int, Any], own: Any) -> None:
    job = StreamEnvironment("job", max_parallelism=128)
    job.source("a:b", name="source").key_by("a:key").sink("a:c", name="sink")
    graph = job_graph(job.stream_graph())
    information = JobInformation.of("id", graph)
    task = TaskInformation.of(graph, 1, lambda vertex: graph.vertices[vertex].parallelism)
    states = {"sink": {"own": [own], "keyed": {"counts": counts}}}
    checkpoint = RestoredCheckpoint([TaskSnapshot("sink", 0, states), TaskSnapshot("source", 0, {"source": {}})])
    before = repr(states)
    first = checkpoint.of(information, task, 0, lambda name: None)
    kept = repr((first.own, first.keyed))
    ruin(first.own)
    ruin(first.keyed)
    again = checkpoint.of(information, task, 0, lambda name: None)
    assert repr((again.own, again.keyed)) == kept
    assert repr(states) == before


def test_a_checkpoint_that_cannot_be_shared_out_is_the_same_at_every_attempt() -> None:
    job = StreamEnvironment("job", max_parallelism=128)
    job.source("a:b", name="source").key_by("a:key").sink("a:c", name="sink")
    graph = job_graph(job.stream_graph())
    task = TaskInformation.of(graph, 1, lambda vertex: graph.vertices[vertex].parallelism)
    twice = [TaskSnapshot("sink", subtask, {"sink": {"keyed": {"counts": {"a": 1}}}}) for subtask in range(2)]
    with pytest.raises(StateMismatch, match="value for key 'a'"):
        RestoredCheckpoint(twice).of(JobInformation.of("id", graph), task, 0, lambda name: None)
