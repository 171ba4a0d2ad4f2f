"""What a job leaves behind when it has ended well: its TaskManagers keep it, the JobManager knows where.

Takes: how large partitions became, the end of the job. Gives: messages to TaskManagers, datasets for the JobManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from ..control.messages import KeepDataset
from ..errors import NetstackError
from ..schedule import events
from ..schedule.scheduler import Scheduler
from .datasets import DatasetRecord, KeptPartition
from .driver import JobDriver
from .job_tasks import Cluster


@final
class JobDatasets:
    """See the module.

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
        told = []
        for number, places in self._scheduler.persistent().items():
            topology = self._scheduler.topology
            name = topology.job.datasets[number].name
            if len(places) < len(topology.partitions_of(number)):
                told.append(f"dataset {name!r} is not kept: a TaskManager that had a part of it was lost")
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
                told.append(str(error))
            else:
                told.append(f"dataset {name!r} is kept: {len(partitions)} partitions, {dataset.bytes} bytes")
        return told

    def _partitions(self, number: int) -> Iterator[KeptPartition]:
        counts = self._scheduler.topology.subpartition_counts(number).tolist()
        places = self._scheduler.persistent()[number]
        for count, (partition, attempt, location) in zip(counts, places, strict=True):
            name = self._driver.partition_name(partition, attempt)
            yield KeptPartition(name, location.address, count, self._written.get(partition, 0))
