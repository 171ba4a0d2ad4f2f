"""Kept datasets: persistent partitions of ended jobs that later jobs read.

Takes: datasets of ended jobs (`job_datasets`), registrations and losses of TaskManagers, requests of users. Gives:
locations for jobs that read them, documents for people, keep and drop commands for TaskManagers.

Rules:
- A dataset's record is on disk before it becomes visible; its partitions are on the TaskManagers that wrote them. A
  TaskManager that registers again reports which datasets it still has; unknown ones are dropped there.
- A dataset replaces an older one of the same name. When all datasets together exceed the limit, the oldest are dropped.
- A dataset with missing partitions stays in the list but cannot be read; run the job that wrote it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, final

from ...base.errors import ConfigError, NetstackError
from ...base.text.safe_text import safe_repr
from ...base.units import first_of, format_size
from ...network.waiting.threads import InThread
from ...schedule.descriptors.shuffle import TaskManagerLocation
from ..control.messages import DropDataset
from .resource_manager.taskmanagers import ConnectedTaskManager, TaskManagers
from .store import JobStore
from .views.bounds import Entries

MAX_NAMED: Final = 1000
"""Maximum number of TaskManagers in the document of a dataset."""


@final
@dataclass(frozen=True, slots=True)
class KeptPartition:
    """One partition of a dataset."""

    name: str
    address: str
    subpartitions: int
    bytes: int


@final
@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """One dataset.

    Attributes:
        created_at: seconds since 1970.
        owner: owner of the job that wrote it (`StoredJob`).
    """

    dataset_id: str
    job_id: str
    job_name: str
    created_at: float
    format: str
    partitions: tuple[KeptPartition, ...]
    owner: str = ""

    @property
    def key(self) -> str:
        """Key of the dataset at TaskManagers, which differs between datasets of the same name."""
        return f"{self.job_id}/{self.dataset_id}"

    @property
    def bytes(self) -> int:
        """Bytes of all records."""
        return sum(each.bytes for each in self.partitions)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> DatasetRecord:
        """Returns the record of a document, the inverse of `asdict`.

        Raises:
            KeyError, TypeError: the document is malformed.
        """
        document = {"owner": "", **document}
        values = {name: document[name] for name in cls.__dataclass_fields__}
        names = KeptPartition.__dataclass_fields__
        values["partitions"] = tuple(
            KeptPartition(**{name: each[name] for name in names}) for each in document["partitions"]
        )
        return cls(**values)


@final
class Datasets:
    """The kept datasets of one JobManager.

    Args:
        most_bytes: limit for all datasets together; None: no limit.
        log: receives a message for each dropped dataset.
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
        self._at: dict[str, set[str]] = {}  # addresses of TaskManagers that have their partitions, by key

    async def recover(self) -> None:
        """Reads the records of an earlier JobManager; TaskManagers report the partitions when they register."""
        documents, damaged = await self._in_thread(self._store.datasets)
        for text in damaged:
            self._log(text)
        for document in documents:
            try:
                dataset = DatasetRecord.of(document)
            except (KeyError, TypeError, AttributeError) as error:
                self._log(f"the record of a dataset cannot be read: {error!r}")
                continue
            self._datasets[dataset.dataset_id] = dataset
            self._at[dataset.key] = set()

    async def put(self, dataset: DatasetRecord) -> None:
        """Adds the dataset of an ended job, which its TaskManagers already keep.

        Raises:
            NetstackError: it cannot be stored, exceeds the limit, or has the name of another user's dataset; it is
                dropped.
        """
        older = self._datasets.get(dataset.dataset_id)
        self._at[dataset.key] = {each.address for each in dataset.partitions}
        try:
            if older is not None and older.owner not in ("", dataset.owner):
                raise ConfigError(
                    f"dataset {dataset.dataset_id!r} is not kept: another user has one of this name; choose another"
                )
            if self._most_bytes is not None and dataset.bytes > self._most_bytes:
                raise ConfigError(
                    f"dataset {dataset.dataset_id!r} has {format_size(dataset.bytes)}, more than the limit of"
                    f" {format_size(self._most_bytes)}, and is dropped: start the JobManager with a larger --datasets"
                )
            await self._in_thread(partial(self._store.put_dataset, dataset.dataset_id, asdict(dataset)))
        except NetstackError:
            self._drop(dataset)
            raise
        older = self._datasets.pop(dataset.dataset_id, None)  # it may have been released meanwhile
        self._datasets[dataset.dataset_id] = dataset
        if older is not None:
            self._drop(older)
        await self._make_room(dataset)

    async def release(self, dataset_id: str) -> DatasetRecord:
        """Releases a dataset. Raises ConfigError if there is no dataset of this name."""
        dataset = self.find(dataset_id)
        del self._datasets[dataset_id]
        self._drop(dataset)
        await self._in_thread(partial(self._store.forget_dataset, dataset_id))
        return dataset

    def places(self, dataset_id: str) -> DatasetRecord:
        """Returns a dataset whose partitions are all available.

        Raises:
            ConfigError: there is no dataset of this name, or partitions are missing.
        """
        dataset = self.find(dataset_id)
        missing = self._missing(dataset)
        if missing:
            raise ConfigError(
                f"dataset {dataset_id!r} cannot be read: {len(missing)} of its TaskManagers are not registered, or were"
                f" restarted without it ({first_of(sorted(missing))}); run job {dataset.job_name!r} again"
            )
        return dataset

    def entries(self) -> Entries:
        """Returns the documents of all datasets as entries of pages."""
        return [
            ((float(each.created_at), each.dataset_id), partial(self._document, each))
            for each in self._datasets.values()
        ]

    def _document(self, dataset: DatasetRecord) -> dict[str, Any]:
        """Returns one dataset for people; of very many TaskManagers only the first ones."""
        return {
            "dataset_id": dataset.dataset_id,
            "job_id": dataset.job_id,
            "job_name": dataset.job_name,
            "created_at": dataset.created_at,
            "age_s": max(0.0, time.time() - dataset.created_at),
            "format": dataset.format,
            "bytes": dataset.bytes,
            "partitions": len(dataset.partitions),
            "taskmanagers": sorted({partition.address for partition in dataset.partitions})[:MAX_NAMED],
            "missing": sorted(self._missing(dataset))[:MAX_NAMED],
        }

    def registered(self, taskmanager: ConnectedTaskManager) -> None:
        """Compares the datasets that a newly registered TaskManager reports with the known ones."""
        held = taskmanager.facts.get("datasets")
        keys = {each for each in held if type(each) is str} if type(held) is list else set()
        known = {dataset.key for dataset in self._datasets.values()}
        for key in sorted(keys - known):
            if not self._store.may_have_dataset(key.partition("/")[2]):  # a record that cannot be read drops nothing
                taskmanager.link.send(DropDataset(key))
        for dataset in self._datasets.values():
            if dataset.key in keys:
                self._at[dataset.key].add(taskmanager.location.address)
            else:  # another process at a known address
                self._at[dataset.key].discard(taskmanager.location.address)

    def lost(self, location: TaskManagerLocation) -> None:
        """Marks the partitions of a lost TaskManager as missing; it may register again with them."""
        for addresses in self._at.values():
            addresses.discard(location.address)

    def find(self, dataset_id: str) -> DatasetRecord:
        """Returns a dataset. Raises ConfigError if there is none of this name."""
        dataset = self._datasets.get(dataset_id)
        if dataset is None:
            raise ConfigError(
                f"there is no dataset {safe_repr(dataset_id, 80)}; existing datasets: {first_of(self._datasets)}"
            )
        return dataset

    def _missing(self, dataset: DatasetRecord) -> set[str]:
        here = self._at[dataset.key]
        return {each.address for each in dataset.partitions if each.address not in here}

    def _drop(self, dataset: DatasetRecord) -> None:
        """Orders TaskManagers to drop a dataset; disconnected ones drop it when they register again."""
        addresses = self._at.pop(dataset.key, set())
        for taskmanager in self._taskmanagers.all():
            if taskmanager.location.address in addresses:
                taskmanager.link.send(DropDataset(dataset.key))

    async def _make_room(self, newest: DatasetRecord) -> None:
        while self._most_bytes is not None and sum(each.bytes for each in self._datasets.values()) > self._most_bytes:
            oldest = min(self._datasets.values(), key=lambda each: (each is newest, each.created_at))
            self._log(
                f"dataset {oldest.dataset_id!r} of job {oldest.job_id} is dropped to make room for"
                f" {newest.dataset_id!r}; the limit is --datasets {format_size(self._most_bytes)}"
            )
            await self.release(oldest.dataset_id)


def readers_of(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yields the operators of a job file that read kept datasets."""
    operators = document.get("operators")
    for operator in operators if isinstance(operators, list) else ():
        if not isinstance(operator, dict) or not isinstance(operator.get("parameters", {}), dict):
            continue
        if str(operator.get("function")).endswith(".task.kept_dataset:KeptDataset"):
            operator.setdefault("parameters", {})
            yield operator
