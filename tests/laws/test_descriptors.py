"""Whatever is described comes back as it was; whatever is damaged is the peer's fault, and nothing else breaks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from netstack.base.errors import RemoteProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.descriptors import (
    BlobKey,
    ExecutionAttemptId,
    InputGateDescriptor,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from netstack.schedule.descriptors.shuffle import UNKNOWN, ShuffleDescriptors, TaskManagerLocation, compress

uint32 = st.integers(0, UNKNOWN - 1)
texts = st.text(max_size=8)
types = st.sampled_from(ResultPartitionType)
shared = st.binary(max_size=8) | texts.map(BlobKey)
rows = st.lists(st.tuples(uint32, uint32, uint32, st.integers(0, 3) | st.just(UNKNOWN)), max_size=20)
partitions = st.builds(PartitionDescriptor, texts, uint32, types, texts, uint32)
gates = st.builds(
    InputGateDescriptor,
    texts,
    types,
    uint32,
    st.lists(st.tuples(uint32, uint32, uint32, uint32), max_size=3).map(tuple),
    st.lists(shared, max_size=3).map(tuple),
    st.booleans(),
)
tasks = st.builds(
    TaskDeploymentDescriptor,
    st.builds(ExecutionAttemptId, texts, uint32, uint32, uint32),
    texts,
    shared,
    shared,
    st.none() | uint32,
    st.lists(partitions, max_size=3).map(tuple),
    st.lists(gates, max_size=3).map(tuple),
)
LOCATIONS = tuple(TaskManagerLocation(f"tm-{number}", f"tcp://tm-{number}:1", "h") for number in range(4))


def described(found: list[tuple[int, int, int, int]]) -> ShuffleDescriptors:
    index, partition, attempt, taskmanager = np.array(found, np.uint32).reshape(-1, 4).T
    return ShuffleDescriptors.of(
        "job",
        "words",
        LOCATIONS,
        index=index,
        partition=partition,
        attempt=attempt,
        taskmanager=taskmanager,
    )


@given(rows)
def test_shuffle_descriptors_come_back(found: list[tuple[int, int, int, int]]) -> None:
    before = described(found)
    after = ShuffleDescriptors.decompress(compress(before.serialised()))
    assert len(after) == len(found)
    for row, (index, partition, attempt, taskmanager) in enumerate(found):
        descriptor = after.descriptor(row)
        assert after.index[row] == index
        assert descriptor.partition == f"job/words/{partition}.{attempt}"
        assert descriptor.location == (None if taskmanager == UNKNOWN else LOCATIONS[taskmanager])


@given(tasks)
def test_task_deployment_descriptors_come_back(task: TaskDeploymentDescriptor) -> None:
    assert TaskDeploymentDescriptor.parse(task.pack()) == task


@given(tasks, rows, st.data())
def test_damage_is_refused_or_harmless(
    task: TaskDeploymentDescriptor, found: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    for whole, parse in (
        (task.pack(), TaskDeploymentDescriptor.parse),
        (described(found).serialised(), ShuffleDescriptors.parse),
        (compress(described(found).serialised()), ShuffleDescriptors.decompress),
    ):
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        del damaged[data.draw(st.integers(0, len(whole))) :]
        try:
            parse(bytes(damaged))
        except RemoteProtocolError:
            continue


@given(st.binary(max_size=60))
def test_any_bytes_at_all(data: bytes) -> None:
    for parse in (TaskDeploymentDescriptor.parse, ShuffleDescriptors.parse, ShuffleDescriptors.decompress):
        try:
            parse(data)
        except RemoteProtocolError:
            continue
