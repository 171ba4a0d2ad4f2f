"""What a JobManager knows of one job.

Takes: nothing. Gives: `JobRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import trio

from ..checkpoint.storage import CheckpointStorage
from ..schedule.graph.job_generator import GeneratedJob
from ..schedule.scheduler import Scheduler
from ..schedule.slots.slot_sharing import FixedPlacement
from .job_master import JobMaster
from .job_tasks import JobCoordinator
from .store import StoredJob

if TYPE_CHECKING:
    pass


@final
@dataclass(slots=True)
class JobRecord:
    """What is known of a job, whether it runs or not.

    Attributes:
        stored: what was submitted.
        name: of the job.
        generated: its vertices, and why; None of one that cannot be read any more.
        network: settings of a network of its own; None shares that of the TaskManagers.
        information: what all of its tasks share, packed.
        storage: of its checkpoints; None takes none.
        named_folder: of its checkpoints, where the job names one of its own.
        placement: see `Jobs.submit`.
        coordinator: see `Jobs.submit`.
        scheduler: until it runs; then the master's.
        master: while it runs.
        end: how it ended.
        last: its details when it ended.
        waits_for: why it does not run, or its end is not told, though it has not ended.
        is_taken_up: whether another JobManager has run it before.
        is_canceled: whether it is never taken up, though its end may not be stored yet.
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
