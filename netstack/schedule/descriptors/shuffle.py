"""Shuffle descriptors: the locations of the partitions of one group, as columns instead of an object each.

Rules: a known descriptor has the producer's TaskManager, its address, the partition and the producer's attempt; an
unknown one only the partition. The columns are split into byte planes before deflate: neighbours then differ in one
plane in four, and 10,000 descriptors take a few KiB.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, final

import msgpack
import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError, ErrorCode, LocalProtocolError, RemoteProtocolError
from ...base.ids import ChannelDescriptor, PartitionId, ResultPartitionType, partition_id
from ...base.text.bounded_msgpack import unpack_document

Uint32s: TypeAlias = npt.NDArray[np.uint32]
Bools: TypeAlias = npt.NDArray[np.bool_]

UNKNOWN: Final = 0xFFFF_FFFF
"""In the column of TaskManagers: the partition's location is unknown."""

_PARTITION_NAME: Final = re.compile(r"([^/]*)/(.*)/(\d+)\.(\d+)", re.DOTALL)
_MAX_DATASET_BYTES: Final = 200
_COLUMNS: Final = ("index", "partition", "attempt", "taskmanager")
_WIDTH: Final = 4
MAX_SERIALISED_BYTES: Final = 1 << 28
"""No list is larger; data that inflate to more are rejected."""


@final
@dataclass(frozen=True, slots=True)
class TaskManagerLocation:
    """The location of a TaskManager.

    Attributes:
        name: unique in the cluster; a restarted TaskManager has a new one.
        address: URL of its data port, such as `tcp://10.0.0.1:6121`.
        host: for placement near, but not on, the same TaskManager; empty if irrelevant.
        slot_addresses: URL of the data port of each slot, where each slot is a process: unsealed partitions are read
            there; empty: all use `address`.
    """

    name: str
    address: str
    host: str = ""
    slot_addresses: tuple[str, ...] = ()


def execution_name(job_id: str, life: int) -> str:
    """The prefix of the names of a job's partitions.

    Each JobManager on a folder counts attempts from 0. Its life is a part of the name, so that partitions which an
    earlier JobManager left behind have other names.

    Args:
        job_id: of the job; without `/` and `@`.
        life: how many JobManagers had the folder before.
    """
    return f"{job_id}@{life}" if life else job_id


def is_of_job(partition: str, job_id: str) -> bool:
    """Whether the name of a partition, or one derived from it, belongs to a job, in any life of the JobManager."""
    return partition.startswith((f"{job_id}/", f"{job_id}@"))


@lru_cache(maxsize=1 << 14)  # the consumers on a TaskManager need the same names, and keep them
def partition_name(execution: str, dataset: str, partition: int, attempt: int) -> PartitionId:
    """The name of the partition that one attempt of a producer writes; unique for attempt and job.

    Args:
        execution: see `execution_name`.
        dataset: of the partition.
        partition: the producer's subtask.
        attempt: of the producer.

    Raises:
        ConfigError: the name is too long.
    """
    return partition_id(f"{execution}/{dataset_part(dataset)}/{partition}.{attempt}")


def dataset_part(dataset: str) -> str:
    """The part of a partition's name that tells its dataset: the dataset's name, or its beginning and a digest.

    Names of operators may have 256 characters, the name of a partition 255 bytes.
    """
    encoded = dataset.encode(errors="surrogatepass")  # partition_id refuses lone surrogates
    if len(encoded) <= _MAX_DATASET_BYTES:
        return dataset
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return f"{encoded[: _MAX_DATASET_BYTES - len(digest) - 1].decode(errors='ignore')}~{digest}"


@final
@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """The parts of a partition's name; see `partition_name`."""

    execution: str
    dataset: str
    partition: int
    attempt: int


def partition_place(name: str) -> PartitionPlace:
    """Parses the name of a partition. Raises LocalProtocolError if `partition_name` did not make it."""
    match = _PARTITION_NAME.fullmatch(name)
    if match is None:
        raise LocalProtocolError(f"{name[:80]!r} is no partition of a job: execution/dataset/partition.attempt")
    return PartitionPlace(match[1], match[2], int(match[3]), int(match[4]))


def announceable(result_type: ResultPartitionType, is_produced: Bools, is_registered: Bools, is_alive: Bools) -> Bools:
    """Whether consumers may learn the location of each partition of a group.

    Args:
        result_type: of the dataset.
        is_produced: whether all data of the partition exist.
        is_registered: whether its attempt has a TaskManager.
        is_alive: whether its producer is scheduled, deploying, initializing, running or finished.
    """
    ready: Bools = is_registered & is_alive
    return ready if result_type.can_be_pipelined else ready & is_produced


@final
@dataclass(frozen=True, slots=True)
class ShuffleDescriptor:
    """The location of one partition; None: unknown."""

    partition: PartitionId
    location: TaskManagerLocation | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShuffleDescriptors:
    """Descriptors of partitions of one dataset; all columns have the same length.

    Attributes:
        execution: prefix of their names.
        locations: the TaskManagers that occur.
        index: position of each partition in its ConsumedPartitionGroup.
        partition: number of the partition in its dataset.
        attempt: of its producer.
        taskmanager: index into `locations`, or `UNKNOWN`.
    """

    execution: str
    dataset: str
    locations: tuple[TaskManagerLocation, ...]
    index: Uint32s
    partition: Uint32s
    attempt: Uint32s
    taskmanager: Uint32s

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def of(
        cls,
        execution: str,
        dataset: str,
        locations: Sequence[TaskManagerLocation],
        *,
        index: npt.ArrayLike,
        partition: npt.ArrayLike,
        attempt: npt.ArrayLike,
        taskmanager: npt.ArrayLike,
    ) -> ShuffleDescriptors:
        """Makes a list from arrays; keeps only those `locations` that occur.

        Raises:
            ConfigError: arrays of several lengths, or a TaskManager that `locations` does not have.
        """
        taskmanagers = np.asarray(taskmanager, np.uint32)
        indices, partitions, attempts = (np.asarray(column, np.uint32) for column in (index, partition, attempt))
        lengths = {len(column) for column in (indices, partitions, attempts, taskmanagers)}
        if len(lengths) != 1:
            raise ConfigError(f"shuffle descriptors of {dataset!r}: columns of lengths {sorted(lengths)}; give one")
        used, renumbered = np.unique(taskmanagers, return_inverse=True)
        used = used[used != UNKNOWN]
        if len(used) and used[-1] >= len(locations):
            raise ConfigError(f"shuffle descriptors of {dataset!r}: no location for TaskManager {used[-1]}")
        compact = np.where(taskmanagers == UNKNOWN, np.uint32(UNKNOWN), renumbered.astype(np.uint32))
        kept = tuple(locations[number] for number in used.tolist())
        return cls(execution, dataset, kept, indices, partitions, attempts, compact)

    def descriptor(self, row: int) -> ShuffleDescriptor:
        """One row as an object."""
        name = partition_name(self.execution, self.dataset, int(self.partition[row]), int(self.attempt[row]))
        where = int(self.taskmanager[row])
        location = None if where == UNKNOWN else self.locations[where]
        return ShuffleDescriptor(name, location)

    def channel(
        self, row: int, subpartition: int, subpartitions: int = 1, is_prompt: bool = False
    ) -> ChannelDescriptor:
        """The channel of a consumer; its address is empty while the location is unknown."""
        name = partition_name(self.execution, self.dataset, int(self.partition[row]), int(self.attempt[row]))
        where = int(self.taskmanager[row])
        address = "" if where == UNKNOWN else self.locations[where].address
        return ChannelDescriptor(address, name, subpartition, subpartitions, is_prompt)

    def serialised(self) -> bytes:
        """Serialises without compression."""
        columns = np.stack([getattr(self, name) for name in _COLUMNS]).astype("<u4", copy=False)
        planes = columns.view(np.uint8).reshape(len(_COLUMNS), len(self), _WIDTH).transpose(0, 2, 1)
        locations = [(location.name, location.address, location.host) for location in self.locations]
        packed: bytes = msgpack.packb((self.execution, self.dataset, locations, len(self), planes.tobytes()))
        return packed

    @classmethod
    def parse(cls, data: bytes) -> ShuffleDescriptors:
        """Parses what `serialised` returned. Raises RemoteProtocolError if the bytes are no such list."""
        try:
            execution, dataset, locations, count, planes = unpack_document(data)
            cut = np.frombuffer(planes, np.uint8).reshape(len(_COLUMNS), _WIDTH, count).transpose(0, 2, 1)
            columns = np.ascontiguousarray(cut).view("<u4").reshape(len(_COLUMNS), count).astype(np.uint32, copy=False)
            places = tuple(TaskManagerLocation(str(name), str(url), str(host)) for name, url, host in locations)
            index, partition, attempt, taskmanager = columns
            descriptors = cls(str(execution), str(dataset), places, index, partition, attempt, taskmanager)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"no list of shuffle descriptors: {error}") from error
        if np.any((descriptors.taskmanager >= len(places)) & (descriptors.taskmanager != UNKNOWN)):
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "shuffle descriptors name a TaskManager they lack")
        return descriptors

    @classmethod
    def decompress(cls, data: bytes) -> ShuffleDescriptors:
        """Parses a compressed list. Raises RemoteProtocolError if the bytes are no such list."""
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(data, MAX_SERIALISED_BYTES)
        except zlib.error as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"shuffle descriptors: {error}") from error
        if not inflater.eof:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"shuffle descriptors are cut, or more than {MAX_SERIALISED_BYTES} bytes"
            )
        return cls.parse(plain)


def compress(serialised: bytes) -> bytes:
    """Compresses a serialised list."""
    return zlib.compress(serialised)


def resolve(groups: Sequence[ShuffleDescriptors], channels: int) -> list[tuple[ShuffleDescriptors, int]]:
    """For every position of a ConsumedPartitionGroup its list and row; a later list overrides.

    Raises:
        LocalProtocolError: a position is in no list, or beyond the last one.
    """
    places: list[tuple[ShuffleDescriptors, int] | None] = [None] * channels
    for group in groups:
        for row, index in enumerate(group.index.tolist()):
            if index >= channels:
                raise LocalProtocolError(f"dataset {group.dataset!r}: partition {index} of a group of {channels}")
            places[index] = (group, row)
    complete: list[tuple[ShuffleDescriptors, int]] = [place for place in places if place is not None]
    if len(complete) < channels:
        raise LocalProtocolError(
            f"shuffle descriptors for {len(complete)} of {channels} partitions; load every group of the gate"
        )
    return complete
