"""A job written down and read again is the same job, and so are the documents that tasks are deployed with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError, RemoteProtocolError
from netstack.exchange.record.formats import FORMATS
from netstack.schedule import (
    ChainingStrategy,
    DataStream,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    ResourceProfile,
    StreamEnvironment,
    StreamGraph,
    StreamSettings,
    generate_job,
)
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.descriptors.information import EdgeId, JobInformation, TaskInformation
from netstack.schedule.graph.job_file import job_of, read_job, write_job
from netstack.schedule.graph.job_graph import OperatorKind
from netstack.schedule.graph.settings import KINDS, RestartSettings
from netstack.schedule.graph.stream_graph import StreamNode

PARAMETERS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
SECONDS = st.sampled_from([0.0, 0.25, 3.0])
PARTITIONERS = [Partitioner.REBALANCE, Partitioner.HASH, Partitioner.BROADCAST, Partitioner.CUSTOM, None]


@st.composite
def jobs(draw: st.DrawFn) -> StreamGraph:
    """Any job that the builder makes: up to six operators, each of which reads some of those before it."""
    settings = StreamSettings(
        is_chaining_enabled=draw(st.booleans()),
        shares_slots_by_default=draw(st.none() | st.booleans()),
        exchange_mode=draw(st.none() | st.just(GlobalExchangeMode.ALL_EDGES_PIPELINED)),
        checkpoints=draw(
            st.none() | st.builds(CheckpointSettings, interval_s=st.none() | st.just(0.5), unaligned=st.booleans())
        ),
        checkpoint_folder=draw(st.none() | st.just("/tmp/checkpoints")),
        keep=draw(st.integers(1, 5)),
        latency_interval_s=draw(SECONDS),
        restart=draw(st.none() | st.builds(RestartSettings, kind=st.sampled_from(KINDS), attempts=st.integers(1, 3))),
        network=draw(st.none() | st.builds(NetworkConfig, exclusive_buffers_per_channel=st.integers(0, 4))),
    )
    job = StreamEnvironment(
        draw(st.text("abc ", min_size=1, max_size=5)),
        parallelism=2,
        buffer_timeout_s=draw(st.none() | st.sampled_from([0.1, 0.0, 3.0])),
        settings=settings,
    )
    streams: list[DataStream] = []
    for index in range(draw(st.integers(1, 6))):
        chosen = draw(st.lists(st.sampled_from(streams), max_size=2)) if streams else []
        inputs = [changed(draw, stream) for stream in chosen]
        kind = draw(st.sampled_from([OperatorKind.MAP, OperatorKind.SINK, OperatorKind.INVOKABLE]))
        strategy = ChainingStrategy.NEVER if kind is OperatorKind.INVOKABLE else draw(st.sampled_from(ChainingStrategy))
        if not inputs and kind is not OperatorKind.INVOKABLE:
            kind = OperatorKind.SOURCE
        node = StreamNode(
            name=f"operator {index}",
            kind=kind,
            function=draw(st.sampled_from(["", "package.module:function"])),
            max_parallelism=draw(st.none() | st.integers(4, 200)),
            co_location_group=None if settings.is_chaining_enabled else f"place {index}",
            strategy=strategy,
            is_source=not inputs,
            is_yielding=draw(st.booleans()),
            parameters=draw(PARAMETERS),
        )
        if len(inputs) == 2 and draw(st.booleans()):
            inputs = [inputs[0].union(inputs[1])]
        stream = job.add(node, *inputs)
        if draw(st.booleans()):
            stream.set_buffer_timeout(draw(st.none() | SECONDS))
        if draw(st.booleans()):
            stream.slot_sharing_group(draw(st.sampled_from(["default", "other"])))
        if draw(st.booleans()):
            stream.set_profile(ResourceProfile("concrete", 0.5, 1 << 20))
        streams += [stream, stream.side_output("late")]
    return job.stream_graph()


def changed(draw: st.DrawFn, stream: DataStream) -> DataStream:
    partitioner = draw(st.sampled_from(PARTITIONERS))
    if partitioner is not None:
        takes_function = partitioner in (Partitioner.HASH, Partitioner.CUSTOM)
        stream = stream.partition_by(partitioner, "package.module:key" if takes_function else "")
    if draw(st.booleans()):
        stream = stream.with_format(draw(st.sampled_from(sorted(FORMATS))))
    if draw(st.booleans()):
        stream = stream.with_buffer_timeout(draw(st.none() | SECONDS))
    if draw(st.booleans()):
        stream = stream.prompt()
    if draw(st.booleans()):
        stream = stream.exchange(ExchangeMode.PIPELINED)
    return stream


@given(jobs())
def test_a_job_that_was_written_is_read_as_it_was(graph: StreamGraph) -> None:
    assert read_job(json.dumps(write_job(graph))) == graph


@given(jobs())
def test_what_tasks_are_told_arrives_as_it_was(graph: StreamGraph) -> None:
    job = generate_job(graph).job
    reported = JobInformation.of("job-1", job, builds={"package": "1.0"}, code=[("package", "blob")])
    assert JobInformation.parse(reported.pack()) == reported
    assert sorted(reported.operators) == sorted(node.name for node in graph.nodes)
    edges: list[EdgeId] = []
    for vertex, plan in enumerate(job.vertices):
        task = TaskInformation.of(job, vertex, lambda index: job.vertices[index].parallelism)
        assert TaskInformation.parse(task.pack()) == task
        assert [operator.name for operator in task.operators] == list(plan.operators)
        assert (len(task.inputs), len(task.outputs)) == (len(job.inputs_of(vertex)), len(job.outputs_of(vertex)))
        edges += [given.edge for given in task.inputs]
        assert len(edges) == len(set(edges))
    # Together with those inside the chains these are all edges, and each is named once.
    assert len(edges) + sum(len(plan.chained) for plan in job.vertices) == len(graph.edges)
    for edge in edges:
        assert EdgeId.of_partition(edge.partition(7, "int64")) == (edge, 7, "int64")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 2), "is a tuple"),
        (b"x", "is a bytes"),
        ({1: 2}, "key 1 is not a string"),
        (float("nan"), "no such number"),
        (1 << 64, r"parameters.*deep.*is 18446744073709551616, which does not fit 64 bits"),
    ],
)
def test_a_parameter_that_json_would_change_is_refused(value: Any, says: str) -> None:
    job = StreamEnvironment()
    job.source("package:function", parameters={"deep": [value]})
    with pytest.raises(ConfigError, match=says):
        write_job(job.stream_graph())


def test_a_dynamic_job_is_read_as_it_was() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source("package:read").map("package:f").key_by("package:key", is_consecutive=True).sink("package:g")
    graph = job.stream_graph()
    assert job_of(write_job(graph)) == graph


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x01" * 100])
def test_bytes_that_are_no_information_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no job information"):
        JobInformation.parse(data)
    with pytest.raises(RemoteProtocolError, match="no task information"):
        TaskInformation.parse(data)
