"""The JobManager's record of one job, and its creation from the stored job."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import trio

from ...base.errors import ConfigError
from ...base.text.bounded_msgpack import memory_bytes
from ...base.text.safe_text import safe_text
from ...base.units import format_size
from ...schedule.checkpoint.storage import CheckpointStorage
from ...schedule.descriptors.blob_store import CODE_KEY
from ...schedule.descriptors.information import JobInformation
from ...schedule.failover.restart import restart_strategy
from ...schedule.graph.job_file import check_size, job_of, shortened_name
from ...schedule.graph.job_generator import GeneratedJob, generate_job
from ...schedule.graph.stream_graph import StreamGraph
from ...schedule.scheduler import Scheduler, SchedulerSettings
from ...schedule.slots.slot_pool import SlotPoolSettings
from ...schedule.slots.slot_sharing import FixedPlacement
from ...schedule.strategies.scheduling_types import InputConstraint, SchedulingType, check_scheduling
from .job_master.job_master import JobMaster
from .job_services import JobCoordinator, JobManagerParts
from .store import StoredJob

MAX_SUBTASKS_OF_ALL: Final = 1 << 20
"""Subtasks of all jobs that have not ended."""

MAX_DEFINITIONS_BYTES: Final = 1 << 30
"""Memory for the documents of all jobs that have not ended."""

MAX_REMEMBERED_BYTES: Final = 256 << 20
"""Memory for the documents, details and results of all ended jobs."""


@final
@dataclass(frozen=True, slots=True)
class JobSize:
    """What a job costs a JobManager until it ends.

    Attributes:
        subtasks: their number; vertices whose parallelism is decided at run time count as 1.
        definition_bytes: memory for its document.
    """

    subtasks: int = 0
    definition_bytes: int = 0


@final
class JobBudget:
    """The jobs of one JobManager that have not ended, with their sizes: their number and memory are limited.

    Args:
        max_jobs: how many jobs may be there at a time.
    """

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._sizes: dict[str, JobSize] = {}
        self._subtasks = 0
        self._bytes = 0

    def admit(self, job_id: str, size: JobSize) -> None:
        """Counts a submitted job.

        Raises:
            ConfigError: there is no room for it until other jobs have ended.
        """
        for what, there, more, most in (
            ("jobs", len(self._sizes), 1, self._max_jobs),
            ("subtasks", self._subtasks, size.subtasks, MAX_SUBTASKS_OF_ALL),
        ):
            if there + more > most:
                self._refuse(f"{there:,} {what}", f"{more:,} more", f"{most:,}")
        if self._bytes + size.definition_bytes > MAX_DEFINITIONS_BYTES:
            self._refuse(
                f"definitions of {format_size(self._bytes)}",
                f"{format_size(size.definition_bytes)} more",
                format_size(MAX_DEFINITIONS_BYTES),
            )
        self.take_up(job_id, size)

    def take_up(self, job_id: str, size: JobSize) -> None:
        """Counts a job of an earlier JobManager, which is never refused."""
        self._sizes[job_id] = size
        self._subtasks += size.subtasks
        self._bytes += size.definition_bytes

    def leave(self, job_id: str) -> None:
        """Forgets a job that has ended, or was refused."""
        size = self._sizes.pop(job_id, None)
        if size is not None:
            self._subtasks -= size.subtasks
            self._bytes -= size.definition_bytes

    def _refuse(self, there: str, more: str, most: str) -> None:
        raise ConfigError(
            f"the JobManager has {there} that have not ended, and the job has {more}; the maximum is {most}: submit it"
            " when others have ended (`netstack jobs` lists them)"
        )


@final
class RememberedJobs:
    """The ended jobs of one JobManager, in the order of their ends."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def add(self, job_id: str, size_bytes: int) -> None:
        """Adds the job that ended last, with the memory that it takes."""
        self._sizes[job_id] = size_bytes

    def forget(self, most_jobs: int) -> list[str]:
        """Removes jobs beyond the limits, and returns them; never the one that ended last.

        Of too many, the first to have ended are removed. If the rest takes too much memory, the largest are, so that a
        client with large jobs does not make the JobManager forget small ones of others.
        """
        forgotten = [*self._sizes][: max(0, len(self._sizes) - most_jobs)]
        left = [*self._sizes][len(forgotten) : -1]
        excess_bytes = sum(self._sizes[each] for each in [*self._sizes][len(forgotten) :]) - MAX_REMEMBERED_BYTES
        for each in sorted(left, key=lambda job_id: -self._sizes[job_id]):
            if excess_bytes <= 0:
                break
            excess_bytes -= self._sizes[each]
            forgotten.append(each)
        for each in forgotten:
            del self._sizes[each]
        return forgotten


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
    root = root_of(settings.checkpoint_folder, parts.config.checkpoint_roots)
    generated = replace(generated, job=replace(generated.job, checkpoint_folder=folder, checkpoint_root=root))
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
        None if folder is None else _storage(folder, root, generated.job.keep, stored),
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


def root_of(folder: str | None, roots: Iterable[str]) -> str | None:
    """Returns the root above a checkpoint folder; None if it lies below none of them."""
    for root in map(os.path.abspath, roots):
        if folder is not None and os.path.abspath(folder).startswith(os.path.join(root, "")):
            return root
    return None


def _storage(folder: str, root: str | None, keep: int, stored: StoredJob) -> CheckpointStorage:
    storage = CheckpointStorage(folder, keep=keep, root=root)
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
