"""Datasets that were kept beyond their jobs: where each is, whether it can be read, and until when it stays.

Takes: what ended jobs leave (`JobDatasets`), TaskManagers as they come and go, wishes of users. Gives: places for jobs
that read them, documents for people, what TaskManagers are to keep and to drop.

Rules:
- A dataset is on disk here before anybody hears of it, and its partitions are on the TaskManagers that wrote them. One
  that comes back says which it still has; what nobody here knows of is dropped there.
- A dataset of the same name replaces the older one. Where all of them together may not take more than so many bytes,
  the oldest go.
- One whose partitions are not all there stays in the list, and cannot be read; run the job that makes it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ..control.messages import DropDataset, KeepDataset
from ..errors import ConfigError, NetstackError
from ..runtime.threads import InThread
from ..schedule import events
from ..schedule.descriptors.shuffle import TaskManagerLocation
from ..schedule.graph.stream_graph import KEPT_DATASET
from ..schedule.scheduler import Scheduler
from ..shown import shown
from ..units import format_size
from .driver import JobDriver
from .store import JobStore
from .taskmanagers import ConnectedTaskManager, TaskManagers

if TYPE_CHECKING:
    from .job_tasks import Cluster


@final
@dataclass(frozen=True, slots=True)
class KeptPartition:
    """One partition of a dataset.

    Attributes:
        name: in the cluster.
        address: of the TaskManager that serves it.
        subpartitions: how many.
        bytes: of its records.
    """

    name: str
    address: str
    subpartitions: int
    bytes: int


@final
@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """One dataset.

    Attributes:
        dataset_id: its name.
        job_id: of the job that wrote it.
        job_name: likewise.
        created_at: seconds since 1970.
        format: of its records.
        partitions: all of them.
    """

    dataset_id: str
    job_id: str
    job_name: str
    created_at: float
    format: str
    partitions: tuple[KeptPartition, ...]

    @property
    def key(self) -> str:
        """What TaskManagers call it: two of one name differ."""
        return f"{self.job_id}/{self.dataset_id}"

    @property
    def bytes(self) -> int:
        """Of all records."""
        return sum(each.bytes for each in self.partitions)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> DatasetRecord:
        """The other way of `asdict`.

        Raises:
            KeyError, TypeError: it is none.
        """
        values = {name: document[name] for name in cls.__dataclass_fields__}
        names = KeptPartition.__dataclass_fields__
        values["partitions"] = tuple(
            KeptPartition(**{name: each[name] for name in names}) for each in document["partitions"]
        )
        return cls(**values)


@final
class Datasets:
    """Those of one JobManager.

    Args:
        store: its folder.
        taskmanagers: those that are there.
        in_thread: runs what blocks.
        most_bytes: of all of them together; None is no limit but that of the disks.
        log: told what is dropped, and why.
    """

    def __init__(
        self,
        store: JobStore,
        taskmanagers: TaskManagers,
        in_thread: InThread,
        *,
        most_bytes: int | None,
        log: Callable[[str], None],
    ) -> None:
        self._store = store
        self._taskmanagers = taskmanagers
        self._in_thread = in_thread
        self._most_bytes = most_bytes
        self._log = log
        self._datasets: dict[str, DatasetRecord] = {}
        self._at: dict[str, set[str]] = {}  # by key, addresses of TaskManagers that have their part of it

    async def recover(self) -> None:
        """Reads what another JobManager on the folder has left; where it is, TaskManagers say when they come."""
        for document in await self._in_thread(self._store.datasets):
            try:
                dataset = DatasetRecord.of(document)
            except (KeyError, TypeError) as error:
                self._log(f"a dataset cannot be read: {error!r}")
                continue
            self._datasets[dataset.dataset_id] = dataset
            self._at[dataset.key] = set()

    async def put(self, dataset: DatasetRecord) -> None:
        """A job has ended and left this; its TaskManagers keep it already.

        Raises:
            NetstackError: it cannot be stored, or is larger than all may be; it is dropped.
        """
        self._at[dataset.key] = {each.address for each in dataset.partitions}
        try:
            if self._most_bytes is not None and dataset.bytes > self._most_bytes:
                raise ConfigError(
                    f"dataset {dataset.dataset_id!r} has {format_size(dataset.bytes)}, and all together may have"
                    f" {format_size(self._most_bytes)}: it is not kept; give the JobManager a larger --datasets"
                )
            await self._in_thread(partial(self._store.put_dataset, dataset.dataset_id, asdict(dataset)))
        except NetstackError:
            self._drop(dataset)
            raise
        older = self._datasets.pop(dataset.dataset_id, None)
        self._datasets[dataset.dataset_id] = dataset
        if older is not None:
            self._drop(older)
        await self._make_room(dataset)

    async def release(self, dataset_id: str) -> DatasetRecord:
        """Nobody wants it any more.

        Raises:
            ConfigError: there is none of this name.
        """
        dataset = self._find(dataset_id)
        del self._datasets[dataset_id]
        self._drop(dataset)
        await self._in_thread(partial(self._store.forget_dataset, dataset_id))
        return dataset

    def places(self, dataset_id: str) -> DatasetRecord:
        """One that can be read now.

        Raises:
            ConfigError: there is none of this name, or a part of it is not there.
        """
        dataset = self._find(dataset_id)
        missing = self._missing(dataset)
        if missing:
            raise ConfigError(
                f"dataset {dataset_id!r} cannot be read: {len(missing)} of its TaskManagers are not there, or were"
                f" started again without it ({', '.join(sorted(missing))}); run job {dataset.job_name!r} again"
            )
        return dataset

    def documents(self) -> list[dict[str, Any]]:
        """All of them, the oldest first."""
        return [
            {
                "dataset_id": each.dataset_id,
                "job_id": each.job_id,
                "job_name": each.job_name,
                "created_at": each.created_at,
                "age_s": max(0.0, time.time() - each.created_at),
                "format": each.format,
                "bytes": each.bytes,
                "partitions": len(each.partitions),
                "taskmanagers": sorted({partition.address for partition in each.partitions}),
                "missing": sorted(self._missing(each)),
            }
            for each in self._datasets.values()
        ]

    def came(self, found: ConnectedTaskManager) -> None:
        """A TaskManager has registered, and says which datasets it has."""
        held = found.facts.get("datasets")
        keys = {each for each in held if type(each) is str} if type(held) is list else set()
        known = {dataset.key for dataset in self._datasets.values()}
        for key in sorted(keys - known):
            found.link.send(DropDataset(key))
        for dataset in self._datasets.values():
            if dataset.key in keys:
                self._at[dataset.key].add(found.location.address)
            else:  # it is another process at an old address
                self._at[dataset.key].discard(found.location.address)

    def lost(self, location: TaskManagerLocation) -> None:
        """A TaskManager has gone; it may come back with what it has."""
        for addresses in self._at.values():
            addresses.discard(location.address)

    def _find(self, dataset_id: str) -> DatasetRecord:
        dataset = self._datasets.get(dataset_id)
        if dataset is None:
            names = ", ".join(self._datasets) or "there is none"
            raise ConfigError(f"there is no dataset {shown(dataset_id, 80)}: {names}; `netstack datasets` lists them")
        return dataset

    def _missing(self, dataset: DatasetRecord) -> set[str]:
        here = self._at[dataset.key]
        return {each.address for each in dataset.partitions if each.address not in here}

    def _drop(self, dataset: DatasetRecord) -> None:
        """Has its TaskManagers drop it; those that are away do when they come back."""
        addresses = self._at.pop(dataset.key, set())
        for taskmanager in self._taskmanagers.all():
            if taskmanager.location.address in addresses:
                taskmanager.link.send(DropDataset(dataset.key))

    async def _make_room(self, newest: DatasetRecord) -> None:
        while self._most_bytes is not None and sum(each.bytes for each in self._datasets.values()) > self._most_bytes:
            oldest = min(self._datasets.values(), key=lambda each: (each is newest, each.created_at))
            self._log(
                f"dataset {oldest.dataset_id!r} of job {oldest.job_id} is dropped: {newest.dataset_id!r} needs its room"
            )
            await self.release(oldest.dataset_id)


def readers_of(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The operators of a job file that read kept datasets."""
    operators = document.get("operators")
    for operator in operators if isinstance(operators, list) else ():
        if isinstance(operator, dict) and operator.get("function") == KEPT_DATASET:
            operator.setdefault("parameters", {})
            yield operator


@final
class JobDatasets:
    """The datasets that one job leaves.

    Args:
        job_id: of the job.
        name: of the job.
        scheduler: of the job.
        driver: of the job.
        cluster: the rest of the world.
    """

    def __init__(self, job_id: str, name: str, scheduler: Scheduler, driver: JobDriver, cluster: Cluster) -> None:
        self._job_id = job_id
        self._name = name
        self._scheduler = scheduler
        self._driver = driver
        self._cluster = cluster
        self._has_some = any(dataset.type.is_persistent for dataset in scheduler.topology.job.datasets)
        self._written: dict[int, int] = {}

    def finished(self, event: events.TasksReported) -> None:
        """Tasks have told how much they wrote."""
        if self._has_some:
            self._written.update({partition: int(sizes.sum()) for partition, sizes in event.produced_bytes.items()})

    async def leave(self, clock: Callable[[], float]) -> list[str]:
        """The job has ended well, and is not closed yet.

        Args:
            clock: seconds since 1970.

        Returns:
            What became of each dataset, in words.
        """
        texts = []
        for number, places in self._scheduler.persistent().items():
            topology = self._scheduler.topology
            name = topology.job.datasets[number].name
            if len(places) < len(topology.partitions_of(number)):
                texts.append(f"dataset {name!r} is not kept: a TaskManager that had a part of it was lost")
                continue
            (edge, *_) = topology.edges_of(number)
            format, partitions = topology.job.edges[edge].format, tuple(self._partitions(number))
            dataset = DatasetRecord(name, self._job_id, self._name, clock(), format, partitions)
            names: dict[str, list[str]] = {}
            for (_, _, location), partition in zip(places, partitions, strict=True):
                names.setdefault(location.name, []).append(partition.name)
            for taskmanager, mine in names.items():
                self._cluster.send(taskmanager, KeepDataset(self._job_id, dataset.key, tuple(mine)))
            try:
                await self._cluster.keep_dataset(dataset)
            except NetstackError as error:
                texts.append(str(error))
            else:
                texts.append(f"dataset {name!r} is kept: {len(partitions)} partitions, {dataset.bytes} bytes")
        return texts

    def _partitions(self, number: int) -> Iterator[KeptPartition]:
        counts = self._scheduler.topology.subpartition_counts(number).tolist()
        places = self._scheduler.persistent()[number]
        for count, (partition, attempt, location) in zip(counts, places, strict=True):
            name = self._driver.partition_name(partition, attempt)
            yield KeptPartition(name, location.address, count, self._written.get(partition, 0))
