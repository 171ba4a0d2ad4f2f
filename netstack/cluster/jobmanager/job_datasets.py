"""The datasets that one job keeps: its persistent partitions, recorded when the job has finished.

Takes: sizes that finished tasks report. Gives: records of datasets to the JobManager, and a sentence about each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import final

from ...base.errors import NetstackError
from ...schedule import events
from ...schedule.scheduler import Scheduler
from ..control.messages import KeepDataset
from .datasets import DatasetRecord, KeptPartition
from .job_master.attempt_translator import AttemptTranslator
from .job_services import JobServices


@final
class JobDatasets:
    """The datasets that one job keeps.

    Args:
        services: the JobManager's interface for jobs.
    """

    def __init__(
        self, job_id: str, name: str, scheduler: Scheduler, translator: AttemptTranslator, services: JobServices
    ) -> None:
        self._job_id = job_id
        self._name = name
        self._scheduler = scheduler
        self._translator = translator
        self._services = services
        self._has_some = any(dataset.type.is_persistent for dataset in scheduler.topology.job.datasets)
        self._written: dict[int, int] = {}

    def finished(self, event: events.TasksReported) -> None:
        """Records how much finished tasks wrote."""
        if self._has_some:
            self._written.update({partition: int(sizes.sum()) for partition, sizes in event.produced_bytes.items()})

    async def leave(self) -> list[str]:
        """Keeps the datasets of a finished job, before TaskManagers close it.

        Returns:
            One sentence for each dataset: whether it is kept.
        """
        texts = []
        for number, places in self._scheduler.persistent().items():
            topology = self._scheduler.topology
            name = topology.job.datasets[number].name
            if len(places) < len(topology.partitions_of(number)):
                texts.append(f"dataset {name!r} is not kept: a TaskManager that stored a part of it was lost")
                continue
            (edge, *_) = topology.edges_of(number)
            format, partitions = topology.job.edges[edge].format, tuple(self._partitions(number))
            dataset = DatasetRecord(name, self._job_id, self._name, time.time(), format, partitions)
            names: dict[str, list[str]] = {}
            for (_, _, location), partition in zip(places, partitions, strict=True):
                names.setdefault(location.name, []).append(partition.name)
            for taskmanager, mine in names.items():
                self._services.send(taskmanager, KeepDataset(self._job_id, dataset.key, tuple(mine)))
            try:
                await self._services.keep_dataset(dataset)
            except NetstackError as error:
                texts.append(str(error))
            else:
                texts.append(f"dataset {name!r} is kept: {len(partitions)} partitions, {dataset.bytes} bytes")
        return texts

    def _partitions(self, number: int) -> Iterator[KeptPartition]:
        counts = self._scheduler.topology.subpartition_counts(number).tolist()
        places = self._scheduler.persistent()[number]
        for count, (partition, attempt, location) in zip(counts, places, strict=True):
            name = self._translator.partition_name(partition, attempt)
            yield KeptPartition(name, location.address, count, self._written.get(partition, 0))
