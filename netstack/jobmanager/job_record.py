"""The JobManager's record of one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import trio

from ..checkpoint.storage import CheckpointStorage
from ..schedule.graph.job_generator import GeneratedJob
from ..schedule.scheduler import Scheduler
from ..schedule.slots.slot_sharing import FixedPlacement
from .job_master import JobMaster
from .job_tasks import JobCoordinator
from .store import StoredJob


@final
@dataclass(slots=True)
class JobRecord:
    """The JobManager's record of one job, running or ended.

    Attributes:
        stored: the job as submitted.
        name: name of the job.
        generated: its vertices and their explanations; None if the job can no longer be read.
        network: settings of its own network environment; None: it shares the TaskManagers' environment.
        information: packed information that all of its tasks share.
        storage: storage of its checkpoints; None: it takes none.
        named_folder: checkpoint folder that the job names itself.
        placement: fixed placement (`Jobs.submit`).
        coordinator: coordinator in this process (`Jobs.submit`).
        scheduler: its scheduler until it runs; then the master has it.
        master: its master while it runs.
        end: how it ended.
        last: its details at its end.
        waits_for: why it does not run, or why its end is not stored yet.
        is_taken_up: whether an earlier JobManager ran it.
        is_canceled: whether it was canceled before it was taken up again.
    """

    stored: StoredJob
    name: str
    generated: GeneratedJob | None = None
    network: dict[str, Any] | None = None
    information: bytes = b""
    storage: CheckpointStorage | None = None
    named_folder: str | None = None
    placement: FixedPlacement | None = None
    coordinator: JobCoordinator | None = None
    scheduler: Scheduler | None = None
    master: JobMaster | None = None
    end: Mapping[str, Any] | None = None
    last: dict[str, Any] | None = None
    waits_for: str = ""
    is_taken_up: bool = False
    is_canceled: bool = False
    ended: trio.Event = field(default_factory=trio.Event)
