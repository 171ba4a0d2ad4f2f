"""Task deployment descriptors: bytes and back, and gates of what was offloaded."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from schedule.descriptors import loaded as load_parts

from netstack.base.errors import LocalProtocolError, RemoteProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.descriptors import (
    BlobKey,
    ExecutionAttemptId,
    InputGateDescriptor,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress

TYPE = ResultPartitionType.BLOCKING
LIST = compress(
    ShuffleDescriptors.of(
        "job",
        "words",
        [TaskManagerLocation("a", "tcp://a:1")],
        index=[0, 1],
        partition=[0, 1],
        attempt=[0, 0],
        taskmanager=[0, 0],
    ).serialised()
)
KEY = BlobKey("shuffle-1")


def descriptor(*groups: bytes | BlobKey) -> TaskDeploymentDescriptor:
    return TaskDeploymentDescriptor(
        ExecutionAttemptId("job", 2, 7, 1),
        "slot-3",
        b"job information",
        BlobKey("task-0"),
        5,
        (PartitionDescriptor("counts/7.1", 4, TYPE, "counts", 64),),
        (InputGateDescriptor("words", TYPE, 2, ((0, 2, 3, 5),), groups, is_prompt=True),),
    )


def test_bytes_and_back() -> None:
    original = descriptor(LIST, KEY)
    assert TaskDeploymentDescriptor.parse(original.pack()) == original
    assert str(original.attempt) == "job_2_7_1"


def test_what_is_kept_is_read_through_a_channel_for_each_partition() -> None:
    gate = descriptor(LIST).gates[0]
    channels = gate.gate().channels
    assert len(channels) == gate.number_of_channels == 2
    assert [(channel.partition_id, channel.subpartition, channel.subpartitions) for channel in channels] == [
        ("job/words/0.0", 3, 2),
        ("job/words/1.0", 3, 2),
    ]
    assert all(channel.is_prompt for channel in channels)


def test_a_gate_has_a_channel_for_each_partition_and_subpartition() -> None:
    gate = replace(descriptor(LIST).gates[0], type=ResultPartitionType.PIPELINED_BOUNDED)
    channels = gate.gate().channels
    assert len(channels) == gate.number_of_channels == 4
    assert [(channel.partition_id, channel.subpartition) for channel in channels] == [
        ("job/words/0.0", 3),
        ("job/words/0.0", 4),
        ("job/words/1.0", 3),
        ("job/words/1.0", 4),
    ]
    assert {channel.address for channel in channels} == {"tcp://a:1"}
    assert all(channel.is_prompt for channel in channels)


def test_what_was_offloaded_is_loaded_before_it_is_read() -> None:
    original = descriptor(KEY)
    with pytest.raises(LocalProtocolError, match="shuffle-1 is not loaded"):
        original.gates[0].gate()
    loaded = load_parts(original, {"task-0": b"task", KEY: LIST}.__getitem__)
    assert (loaded.task_information, loaded.job_information) == (b"task", b"job information")
    assert len(loaded.gates[0].gate().channels) == 2


def test_a_gate_may_be_read_in_pieces() -> None:
    pieces = ((1, 2, 0, 2), (0, 1, 4, 5))
    kept = InputGateDescriptor("words", TYPE, 2, pieces, (LIST,))
    assert [(channel.partition_id, channel.subpartitions) for channel in kept.gate().channels] == [
        ("job/words/1.0", 2),
        ("job/words/0.0", 1),
    ]
    gate = InputGateDescriptor("words", ResultPartitionType.PIPELINED, 2, pieces, (LIST,))
    assert gate.number_of_channels == 3
    assert [(channel.partition_id, channel.subpartition) for channel in gate.gate().channels] == [
        ("job/words/1.0", 0),
        ("job/words/1.0", 1),
        ("job/words/0.0", 4),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgpack.packb([1, 2]),
        msgpack.packb((("job", 0, 0), "a", b"", b"", None, [], [])),
        msgpack.packb((("job", 0, 0, 0), "a", 7, b"", None, [], [])),
        msgpack.packb((("job", 0, 0, 0), "a", b"", b"", None, [("p", 1, 99, "d", 1, 0)], [])),
        descriptor(LIST).pack()[:-1],
    ],
)
def test_damaged_bytes_are_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no task deployment descriptor"):
        TaskDeploymentDescriptor.parse(data)
