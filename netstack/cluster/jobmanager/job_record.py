"""The JobManager's record of one job, and its creation from the stored job."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import trio

from ...base.errors import ConfigError
from ...base.text.bounded_msgpack import memory_bytes
from ...base.text.safe_text import safe_text
from ...schedule.checkpoint.storage import CheckpointStorage
from ...schedule.descriptors.blob_store import CODE_KEY
from ...schedule.descriptors.information import JobInformation
from ...schedule.failover.restart import restart_strategy
from ...schedule.graph.job_file import job_of
from ...schedule.graph.job_generator import GeneratedJob, generate_job
from ...schedule.graph.job_limits import check_size, shortened_name
from ...schedule.graph.stream_graph import StreamGraph
from ...schedule.scheduler import Scheduler, SchedulerSettings
from ...schedule.slots.slot_pool import SlotPoolSettings
from ...schedule.slots.slot_sharing import FixedPlacement
from ...schedule.strategies.scheduling_types import InputConstraint, SchedulingType, check_scheduling
from .job_budget import MAX_DEFINITIONS_BYTES, JobSize
from .job_master.job_master import JobMaster
from .job_services import JobCoordinator
from .parts import JobManagerParts
from .store import StoredJob


@final
@dataclass(slots=True)
class JobRecord:
    """The JobManager's record of one job, running or ended.

    Attributes:
        stored: the job as submitted.
        generated: its vertices and their explanations; None if the job can no longer be read.
        network: settings of its own network environment; None: it shares the TaskManagers' environment.
        information: packed information that all of its tasks share.
        storage: storage of its checkpoints; None: it takes none.
        named_folder: checkpoint folder that the job names itself.
        retain: after which ends its checkpoints are kept (`StreamSettings`).
        placement: fixed placement (`Dispatcher.submit`).
        coordinator: coordinator in this process (`Dispatcher.submit`).
        scheduler: its scheduler until it runs; then the master has it.
        last: its details at its end.
        waits_for: why it does not run, or why its end is not stored yet.
        is_taken_up: whether an earlier JobManager ran it.
        is_canceled: whether it was canceled before it was taken up again.
        size: what it costs until it ends; nothing for jobs that cannot be read.
        made_s: when it was submitted, on trio's clock.
    """

    stored: StoredJob
    name: str
    generated: GeneratedJob | None = None
    network: dict[str, Any] | None = None
    information: bytes = b""
    storage: CheckpointStorage | None = None
    named_folder: str | None = None
    retain: str = "always"
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
    size: JobSize = field(default_factory=JobSize)
    made_s: float = field(default_factory=trio.current_time)

    def __post_init__(self) -> None:
        """Takes the age of a stored job from the clock of the host, once; later it cannot jump."""
        self.made_s -= max(0.0, time.time() - self.stored.submitted_at)

    @property
    def age_s(self) -> float:
        """Seconds since the job was submitted."""
        return trio.current_time() - self.made_s


def read_job(
    stored: StoredJob,
    parts: JobManagerParts,
    placement: FixedPlacement | None = None,
    coordinator: JobCoordinator | None = None,
    *,
    now_s: float,
) -> JobRecord:
    """Creates the record of a stored job. May run in a thread: it uses neither trio nor other jobs.

    Args:
        stored: the job.
        parts: the JobManager's parts.
        placement: see `JobRecord`.
        coordinator: see `JobRecord`.
        now_s: the time on trio's clock.

    Raises:
        ConfigError: the job cannot run.
    """
    graph = job_of(stored.document)
    generated = generate_job(graph)
    subtasks = check_size(len(graph.nodes), (each.parallelism for each in generated.job.vertices))
    settings = graph.settings
    folder = None
    takes_checkpoints = generated.job.checkpoints is not None
    if takes_checkpoints:
        folder = settings.checkpoint_folder or parts.store.checkpoint_folder(stored.job_id)
    generated = replace(generated, job=replace(generated.job, checkpoint_folder=folder))
    missing = next((node.name for node in graph.nodes if not node.function), None)
    if missing is not None:
        raise ConfigError(
            f"job {graph.name!r}: operator {missing!r} has no function and cannot run; only `netstack plan` accepts"
            " such a job"
        )
    record = JobRecord(
        stored,
        shortened_name(graph.name),
        generated,
        None if settings.network is None else dataclasses.asdict(settings.network),
        JobInformation.of(stored.job_id, generated.job, builds=stored.builds, code=_code_of(stored)).pack(),
        None if folder is None else _storage(folder, generated.job.keep, stored),
        settings.checkpoint_folder if takes_checkpoints else None,
        settings.retain,
        placement,
        coordinator,
        size=JobSize(subtasks, memory_bytes(stored.document, MAX_DEFINITIONS_BYTES)),
        made_s=now_s,
    )
    if graph.settings.scheduling is not None:
        check_scheduling(generated.job, SchedulingType(graph.settings.scheduling))
    record.scheduler = _scheduler(record, graph, parts)  # raises if the job cannot be scheduled
    return record


def _storage(folder: str, keep: int, stored: StoredJob) -> CheckpointStorage:
    storage = CheckpointStorage(folder, keep=keep)
    storage.own_from(stored.first_checkpoint)
    return storage


def _scheduler(record: JobRecord, graph: StreamGraph, parts: JobManagerParts) -> Scheduler:
    assert record.generated is not None
    config = parts.config
    return Scheduler(
        record.generated.job,
        record.stored.job_id,
        restart=restart_strategy(graph.settings.restart_settings, lambda: random.uniform(-1, 1)),
        store=parts.blobs,
        settings=SchedulerSettings(
            mode=config.load_balance,
            placement=record.placement,
            slots=SlotPoolSettings(request_timeout_s=config.slot_timeout_s, idle_timeout_s=config.slot_idle_timeout_s),
            offload=config.offload,
            builds=record.stored.builds,
            code=_code_of(record.stored),
            life=parts.store.life,
            adaptive=graph.settings.adaptive or config.adaptive,
            speculation=graph.settings.speculation,
            scheduling=None if graph.settings.scheduling is None else SchedulingType(graph.settings.scheduling),
            constraint=InputConstraint(graph.settings.input_constraint),
        ),
    )


def _code_of(stored: StoredJob) -> tuple[tuple[str, str], ...]:
    """Returns the shipped packages of a job with the keys of their blobs."""
    return tuple((package, f"{CODE_KEY}{digest}") for package, digest in stored.code.items())


_AUDIT: Final = logging.getLogger("netstack.audit")


def audit(what: str, record: JobRecord, who: str) -> None:
    """Logs a request to the audit log; its result is in the job's log.

    Args:
        what: `submit`, `cancel`, `savepoint`, `savepoint and stop`.
        record: record of the job.
        who: name and address of the client, as far as known.
    """
    _AUDIT.info("%s of job %s (%s) by %s", what, record.stored.job_id, safe_text(record.name), safe_text(who))
