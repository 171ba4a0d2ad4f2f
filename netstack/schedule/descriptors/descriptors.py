"""The TaskDeploymentDescriptor: what a TaskManager runs, as plain data with a msgpack form.

Rules: parts that many tasks share (job information, task information, lists of shuffle descriptors) are inline or the
key of a blob. `loaded` fetches blobs; the channels of a gate can be read only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NewType, TypeAlias, final

import msgpack

from ...base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ...base.ids import ChannelDescriptor, ResultPartitionType
from ...base.text.bounded_msgpack import unpack_document
from .shuffle import ShuffleDescriptors, resolve

BlobKey = NewType("BlobKey", str)
"""The key of a blob in a `BlobStore`."""

MaybeOffloaded: TypeAlias = bytes | BlobKey
"""The bytes, or the key of their blob."""

_TYPES: Final = dict(enumerate(ResultPartitionType))
_TYPE_NUMBERS: Final = {result_type: number for number, result_type in _TYPES.items()}


@final
@dataclass(frozen=True, slots=True)
class ExecutionAttemptId:
    """One attempt of one subtask of a job vertex, by indices; attempts count from 0."""

    job: str
    vertex: int
    subtask: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}_{self.vertex}_{self.subtask}_{self.attempt}"


@final
@dataclass(frozen=True, slots=True)
class PartitionDescriptor:
    """A result partition that a task produces.

    Attributes:
        name: in partition requests; see `partition_name`.
        type: how it is kept and consumed.
        max_parallelism: number of key groups of its consumers.
    """

    name: str
    subpartitions: int
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED
    dataset: str = ""
    max_parallelism: int = 128


@final
@dataclass(frozen=True, slots=True)
class GateDescriptor:
    """An input gate with all its channels; a channel whose producer's location is unknown has an empty address.

    Attributes:
        channels: piece by piece, in the order of partitions, then of subpartitions.
        type: of the consumed dataset.
    """

    channels: tuple[ChannelDescriptor, ...]
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED


GatePiece: TypeAlias = tuple[int, int, int, int]
"""Partitions [first, stop) of a group, by position, and subpartitions [first, stop) of each of them."""


@final
@dataclass(frozen=True, slots=True)
class InputGateDescriptor:
    """An input gate as it is deployed, with the lists of shuffle descriptors that it shares with other consumers.

    Attributes:
        dataset: the consumed dataset.
        partitions: number of partitions of its group.
        pieces: what it reads of them: one piece, or several where data were skewed.
        groups: lists of shuffle descriptors; a later one overrides an earlier one.
        is_prompt: whether its channels use the connections of prompt channels.
    """

    dataset: str
    type: ResultPartitionType
    partitions: int
    pieces: tuple[GatePiece, ...]
    groups: tuple[MaybeOffloaded, ...]
    is_prompt: bool = False

    @property
    def number_of_channels(self) -> int:
        """One channel per partition for results that the scheduler releases, else one per subpartition."""
        if self.type.is_released_by_scheduler:
            return sum(stop - first for first, stop, _, _ in self.pieces)
        return sum((stop - first) * (last - start) for first, stop, start, last in self.pieces)

    def gate(
        self,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None = None,
        updates: Sequence[ShuffleDescriptors] = (),
    ) -> GateDescriptor:
        """The gate to open.

        Args:
            read: reads a list, such as `BlobReader.shuffle_descriptors`, which caches it for other consumers; None
                reads inline lists.
            updates: lists that came later, and override.

        Raises:
            LocalProtocolError: a list was offloaded and not loaded, or the lists lack a partition.
            RemoteProtocolError: a list is damaged.
        """
        places = resolve([*((read or _read_inline)(group) for group in self.groups), *updates], self.partitions)
        if self.type.is_released_by_scheduler:  # one channel reads any number of subpartitions of a kept partition
            ranges = tuple(
                entry.channel(row, start, last - start, self.is_prompt)
                for first, stop, start, last in self.pieces
                for entry, row in places[first:stop]
            )
            return GateDescriptor(ranges, self.type)
        channels = tuple(
            entry.channel(row, subpartition, 1, self.is_prompt)
            for first, stop, first_subpartition, stop_subpartition in self.pieces
            for entry, row in places[first:stop]
            for subpartition in range(first_subpartition, stop_subpartition)
        )
        return GateDescriptor(channels, self.type)


@final
@dataclass(frozen=True, slots=True)
class TaskDeploymentDescriptor:
    """Everything that a TaskManager needs to run one attempt of a subtask.

    Attributes:
        allocation: id of the slot.
        task_information: shared by all subtasks of the vertex.
        restore: the checkpoint to restore; None: begins empty.
        partitions: what it produces.
        gates: what it reads.
    """

    attempt: ExecutionAttemptId
    allocation: str
    job_information: MaybeOffloaded
    task_information: MaybeOffloaded
    restore: int | None = None
    partitions: tuple[PartitionDescriptor, ...] = ()
    gates: tuple[InputGateDescriptor, ...] = ()

    def pack(self) -> bytes:
        """Returns msgpack bytes."""
        packed: bytes = msgpack.packb(
            (
                (self.attempt.job, self.attempt.vertex, self.attempt.subtask, self.attempt.attempt),
                self.allocation,
                self.job_information,
                self.task_information,
                self.restore,
                [_plain_partition(partition) for partition in self.partitions],
                [_plain_gate(gate) for gate in self.gates],
            )
        )
        return packed

    @classmethod
    def parse(cls, data: bytes) -> TaskDeploymentDescriptor:
        """Parses what `pack` returned. Raises RemoteProtocolError if the bytes are no descriptor."""
        try:
            attempt, allocation, job, task, restore, partitions, gates = unpack_document(data)
            return cls(
                ExecutionAttemptId(*attempt),
                str(allocation),
                _shared(job),
                _shared(task),
                None if restore is None else int(restore),
                tuple(_partition(*plain) for plain in partitions),
                tuple(_gate(*plain) for plain in gates),
            )
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"no task deployment descriptor: {error}") from error


def _read_inline(part: MaybeOffloaded) -> ShuffleDescriptors:
    if isinstance(part, bytes):
        return ShuffleDescriptors.decompress(part)
    raise LocalProtocolError(f"blob {part} is not loaded; call loaded() of the task deployment descriptor first")


def _shared(value: object) -> MaybeOffloaded:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return BlobKey(value)
    raise TypeError(f"{type(value).__name__} is neither bytes nor the key of a blob")


def _plain_partition(partition: PartitionDescriptor) -> tuple[object, ...]:
    return (
        partition.name,
        partition.subpartitions,
        _TYPE_NUMBERS[partition.type],
        partition.dataset,
        partition.max_parallelism,
    )


def _partition(
    name: str, subpartitions: int, type_number: int, dataset: str, max_parallelism: int
) -> PartitionDescriptor:
    return PartitionDescriptor(name, subpartitions, _TYPES[type_number], dataset, max_parallelism)


def _plain_gate(gate: InputGateDescriptor) -> tuple[object, ...]:
    return (gate.dataset, _TYPE_NUMBERS[gate.type], gate.partitions, gate.pieces, gate.groups, gate.is_prompt)


def _gate(
    dataset: str, type_number: int, partitions: int, pieces: list[list[int]], groups: list[object], is_prompt: bool
) -> InputGateDescriptor:
    read = tuple((int(first), int(stop), int(start), int(last)) for first, stop, start, last in pieces)
    return InputGateDescriptor(
        dataset, _TYPES[type_number], partitions, read, tuple(_shared(group) for group in groups), bool(is_prompt)
    )
