"""All jobs of a JobManager: accepts, runs and remembers them, and takes them up again after a restart.

Takes: documents of jobs. Gives: a running `JobMaster` for each job, a record of each ended job.

Rules: a job is stored in the folder before its submission is answered, and its end is stored before it is visible. The
record of a job that cannot be taken up again contains the reason; the other jobs run.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

import trio

from ...base.causes import cause_text, root_cause
from ...base.errors import CheckpointFenced, ConfigError, NetstackError
from ...base.text.bounded_msgpack import memory_bytes
from ...base.text.safe_text import safe_error
from ...schedule.checkpoint.coordinator import CheckpointCoordinator
from ...schedule.commit_phase import COMMITTED
from ...schedule.execution import JobState
from ...schedule.graph.job_file import check_counts, check_limits, job_of, shortened_name
from ...schedule.slots.slot_sharing import FixedPlacement
from ..disk_retries import FIRST_PAUSE_S, LONGEST_PAUSE_S, until_stored
from .datasets import readers_of
from .job_master.checkpoints import CheckpointOwners
from .job_master.job_master import JobMaster
from .job_master.savepoints import adopt_savepoint
from .job_record import MAX_REMEMBERED_BYTES, JobBudget, JobRecord, RememberedJobs, read_job
from .job_services import JobCoordinator, JobManagerParts, JobServices
from .log import FailureHistory, failure_documents
from .store import StoredJob
from .views.bounds import fit_job
from .views.documents import COUNTS, job_document

ENDED_SUBTASKS: Final = 1000
SMALL_BYTES: Final = 256 << 10
"""Memory for the document of a job that is read at once, whatever others submit: about 500 operators."""

MAX_ENDED_BYTES: Final = 1 << 20
"""How much is kept of each ended job, in memory and until the JobManager ends; results are kept beside it."""

LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class Dispatcher:
    """The jobs of one JobManager.

    Attributes:
        records: records of all jobs by id, oldest first.
        running: masters of the running jobs by id.
    """

    def __init__(
        self,
        parts: JobManagerParts,
        services: JobServices,
        nursery: trio.Nursery,
        on_left: Callable[[str], None],
        prune_packages: Callable[[], Awaitable[None]],
    ) -> None:
        """Starts without jobs.

        Args:
            parts: the JobManager's parts.
            services: what the masters of the jobs use.
            nursery: runs the jobs.
            on_left: called with the id of a job that has ended: frees its slots and blobs.
            prune_packages: removes packages that no job uses.
        """
        self.records: dict[str, JobRecord] = {}
        self.running: dict[str, JobMaster] = {}
        self._parts = parts
        self._services = services
        self._nursery = nursery
        self._on_left = on_left
        self._prune_packages = prune_packages
        self._in_thread = parts.in_thread
        self._budget = JobBudget(parts.config.max_jobs)
        self._remembered = RememberedJobs()
        self._reading = trio.StrictFIFOLock()
        self._owners = CheckpointOwners(parts.config.checkpoint_roots, parts.in_thread)

    async def submit(
        self,
        document: Mapping[str, Any],
        *,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        code: Mapping[str, str] | None = None,
        builds: Mapping[str, str] | None = None,
        owner: str = "",
        placement: FixedPlacement | None = None,
        coordinator: JobCoordinator | None = None,
    ) -> str:
        """Accepts a job and starts it.

        Args:
            document: job file from `schedule.graph.job_file.write_job`.
            from_savepoint: folder of the savepoint or checkpoint from which the job starts.
            allow_non_restored_state: whether state of operators that the job does not have may be dropped.
            code: package -> SHA-256 of its uploaded archive.
            builds: package -> source fingerprint at the client.
            owner: hash of the client's key (`StoredJob`).
            placement: fixed TaskManager of each subtask; lost when this process ends.
            coordinator: coordinator in this process; lost when this process ends.

        Returns:
            The id of the job.

        Raises:
            ConfigError: the job is invalid, reads a missing dataset, names a checkpoint folder that another job uses or
                that lies outside the allowed roots, or there are too many jobs (`JobBudget`).
            StateMismatch: the savepoint does not fit the job; the text contains the difference.
            NetstackError: the job cannot be stored, or the savepoint cannot be read.

        Cancellation: the job may or may not have been accepted; `records` shows which.
        """
        job_id = secrets.token_hex(8)
        async with self._turn_of(document):
            copied = await self._in_thread(partial(_checked_copy, document))
            for operator in readers_of(copied):
                parameters = operator["parameters"]
                dataset = self._parts.datasets.places(str(parameters.get("dataset")))
                pieces = sum(each.subpartitions for each in dataset.partitions)
                operator["source_size"] = {"bytes": dataset.bytes, "splits": pieces}
                parameters |= {"format": dataset.format, "partitions": [asdict(each) for each in dataset.partitions]}
            folder = copied.get("checkpoint_folder")
            if isinstance(folder, str):
                copied["checkpoint_folder"] = await self._owners.canonical(folder)
            stored = StoredJob(job_id, copied, time.time(), None, dict(code or {}), dict(builds or {}), owner=owner)
            record = await self._read(stored, placement, coordinator)
        for digest in record.stored.code.values():
            await self._in_thread(partial(self._parts.store.code_bytes, digest))
        if from_savepoint is not None:
            if record.storage is None:
                why = record.generated.warning if record.generated is not None else ""
                raise ConfigError(
                    f"job {record.name!r} cannot start from a savepoint: "
                    + (why or "it has no checkpoint settings; set `checkpoints`")
                )
            await self._owners.check_place(from_savepoint)
        if record.named_folder is not None:
            await self._owners.check_place(record.named_folder)
        self._budget.admit(job_id, record.size)
        try:
            await self._own(record)
            if record.storage is not None:
                first = await self._in_thread(record.storage.next_id)
                restore: int | None = None
                left: tuple[str, ...] = ()
                if from_savepoint is not None:
                    assert record.generated is not None
                    restore, left = await self._in_thread(
                        partial(
                            adopt_savepoint,
                            from_savepoint,
                            record.storage,
                            job_of(copied),
                            record.generated.job,
                            allow_missing=allow_non_restored_state,
                        )
                    )
                record.storage.own_from(first)
                record.stored = replace(record.stored, restore=restore, not_restored=left, first_checkpoint=first)
            with trio.CancelScope(shield=True):
                await self._in_thread(partial(self._parts.store.put, record.stored))
                await self._start(record, record.stored.restore)
        except BaseException:
            if record.master is None:
                self._budget.leave(job_id)
                self._disown(record)
            raise
        if record.generated is not None and record.generated.warning:
            LOGGER.info("job %s: %s", job_id, record.generated.warning)  # its client has warned
        if record.stored.not_restored:
            LOGGER.warning(
                "job %s (%s) starts without the state of %s, which are not among its operators",
                job_id,
                record.name,
                ", ".join(record.stored.not_restored),
            )
        return job_id

    async def recover(self) -> None:
        """Takes up the jobs that an earlier JobManager on the folder has left, or ends them (`takes_up_jobs`)."""
        stored_jobs, damaged = await self._in_thread(self._parts.store.jobs)
        for text in damaged:
            LOGGER.error("%s", text)
        for stored in stored_jobs:
            name = shortened_name(str(stored.document.get("name", "job")))
            self.records[stored.job_id] = JobRecord(stored, name, end=stored.end)
        await self._remember()
        for record in [*self.records.values()]:
            stored = record.stored
            if stored.end is not None:
                record.ended.set()
                continue
            try:
                await self._recover(record)
            except Exception as error:  # of this job only
                if not isinstance(error, NetstackError):
                    LOGGER.exception("job %s (%s) cannot be read", stored.job_id, record.name)
                    error = ConfigError(f"the JobManager cannot read it: {safe_error(error)}")
                record = self.records[stored.job_id]
                if isinstance(error.__cause__, OSError) and self._parts.config.takes_up_jobs:
                    self._wait_for_disk(record, error)
                    self._nursery.start_soon(self._take_up_later, record)
                else:
                    self._cannot_go_on(record, error)

    async def _remember(self) -> None:
        ended = [(record, record.end) for record in self.records.values() if record.end is not None]
        for record, end in sorted(ended, key=lambda each: float(each[1]["ended_at"])):
            self._remembered.add(record.stored.job_id, await self._in_thread(partial(_remembered_bytes, record, end)))

    async def _recover(self, record: JobRecord) -> None:
        if record.stored.is_committing:
            raise ConfigError(f"the JobManager ended while {COMMITTED}")
        record = await self._read(record.stored)
        self.records[record.stored.job_id] = record
        self._budget.take_up(record.stored.job_id, record.size)
        if not self._parts.config.takes_up_jobs:
            await self._leave(record)
            return
        record.is_taken_up = True
        await self._take_up(record)

    def _turn_of(self, document: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Large jobs are read one after the other: each may take seconds of a thread, and much memory."""
        is_small = memory_bytes(dict(document), SMALL_BYTES) <= SMALL_BYTES
        return nullcontext() if is_small else self._reading

    async def _read(
        self, stored: StoredJob, placement: FixedPlacement | None = None, coordinator: JobCoordinator | None = None
    ) -> JobRecord:
        """Creates the record of a job in a thread: that of a large job takes seconds."""
        return await self._in_thread(
            partial(read_job, stored, self._parts, placement, coordinator, now_s=trio.current_time())
        )

    async def _take_up(self, record: JobRecord) -> None:
        await self._in_thread(partial(self._parts.store.put_taken_up, record.stored.job_id))
        restore = await self._newest(record)
        if record.is_canceled:  # meanwhile
            self._disown(record)
            return
        await self._start(record, record.stored.restore if restore is None else restore)
        record.waits_for = ""
        LOGGER.info("job %s (%s) taken up again", record.stored.job_id, record.name)

    async def _take_up_later(self, record: JobRecord) -> None:
        """Retries to take up a job while its disk is full or unavailable, instead of failing it."""
        pause_s = FIRST_PAUSE_S
        while True:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if record.is_canceled:  # meanwhile
                return
            try:
                await self._take_up(record)
                return
            except NetstackError as error:
                if not isinstance(error.__cause__, OSError):
                    self._cannot_go_on(record, error)
                    return
                self._wait_for_disk(record, error)

    def _wait_for_disk(self, record: JobRecord, error: NetstackError) -> None:
        record.waits_for = f"taking up the job again, which is retried: {error}"
        LOGGER.error("job %s (%s) cannot be taken up again now: %s", record.stored.job_id, record.name, error)

    async def _leave(self, record: JobRecord) -> None:
        """Ends a job of an earlier run, and says from which checkpoint it can be started again."""
        newest = await self._newest(record)
        self._disown(record)
        path = "" if newest is None or record.storage is None else record.storage.path(newest)
        text = f"an earlier run was ended before it; {f'start it from {path}' if path else 'it has no checkpoint'}"
        LOGGER.warning("job %s (%s) is not continued: %s", record.stored.job_id, record.name, text)
        self._nursery.start_soon(self._put_end, record, JobState.CANCELED, text, {})

    def _cannot_go_on(self, record: JobRecord, error: NetstackError) -> None:
        self._disown(record)
        LOGGER.error("job %s (%s) cannot be taken up again: %s", record.stored.job_id, record.name, error)
        text = f"the job could not be taken up again: {error}"
        self._nursery.start_soon(self._put_end, record, JobState.FAILED, text, {})

    async def cancel(self, record: JobRecord) -> None:
        """Cancels a job and waits for its end. Cancellation: the job is canceled anyway."""
        if record.master is not None:
            record.master.cancel()
        elif record.end is None and record.last is None and not record.is_canceled:  # waiting to be taken up again
            record.is_canceled = True
            self._disown(record)
            reason = "the job was canceled before it was taken up again"
            self._nursery.start_soon(self._put_end, record, JobState.CANCELED, reason, {})
        await record.ended.wait()

    def packages(self) -> set[str]:
        """Returns the SHA-256 of all packages of jobs that have not ended."""
        codes = (record.stored.code.values() for record in self.records.values() if record.end is None)
        return {digest for digests in codes for digest in digests}

    async def put_committing(self, job_id: str) -> None:
        """Stores that a job begins to commit (`JobServices`)."""
        await self._in_thread(partial(self._parts.store.put_committing, job_id))

    def find(self, job_id: str) -> JobRecord:
        """Returns the job with this id or unique id prefix.

        Raises:
            ConfigError: no job, or more than one job, matches.
        """
        matches = [each for each in self.records if each.startswith(job_id)] if job_id else []
        if job_id in self.records:
            matches = [job_id]
        if len(matches) != 1:
            what = f"{len(matches)} jobs have an id that begins with" if matches else "there is no job"
            raise ConfigError(f"{what} {job_id[:40]!r}; `netstack jobs` lists them")
        return self.records[matches[0]]

    async def _own(self, record: JobRecord) -> None:
        """Claims the checkpoint folder for the job.

        Raises:
            ConfigError: another job of this JobManager uses it.
            CheckpointFenced: a live JobManager elsewhere uses it.
        """
        if record.storage is not None:
            await self._owners.claim(record.storage.folder, record.stored.job_id, record.name)
            is_stolen = record.is_taken_up and self._parts.store.is_stolen
            await self._in_thread(partial(record.storage.take_over, steal=is_stolen))

    def _disown(self, record: JobRecord) -> None:
        if record.storage is not None:
            record.storage.close()
        self._owners.leave(record.stored.job_id)

    async def _newest(self, record: JobRecord) -> int | None:
        """Returns the newest checkpoint of a job that ran before, and fences its previous JobManager."""
        await self._own(record)
        if record.storage is None:
            return None
        checkpoint = await self._in_thread(partial(record.storage.newest, of_job=True))
        return None if checkpoint is None else checkpoint.checkpoint_id

    async def _start(self, record: JobRecord, restore: int | None) -> None:
        assert record.generated is not None
        assert record.scheduler is not None
        job_id = record.stored.job_id
        job = record.generated.job
        checkpoints = job.checkpoints

        def make_coordinator(tasks: Any, first_id: int) -> CheckpointCoordinator:
            assert checkpoints is not None
            return CheckpointCoordinator(tasks, checkpoints, first_id=first_id, now_s=trio.current_time())

        record.master = JobMaster(
            job_id,
            record.name,
            record.scheduler,
            self._services,
            make_coordinator=None if checkpoints is None else make_coordinator,
            storage=record.storage,
            restore=restore,
            patience_s=1.2 * self._parts.config.heartbeat_timeout_s,
            coordinator=record.coordinator,
            in_thread=self._in_thread,
        )
        record.scheduler = None
        self.records[job_id] = record
        self.running[job_id] = record.master
        self._parts.slots.job_came(job_id)
        self._nursery.start_soon(self._run, record, record.master)

    async def _run(self, record: JobRecord, master: JobMaster) -> None:
        """Runs a job to its end; an internal error fails this job only."""
        try:
            await self._run_to_its_end(record, master)
        finally:
            self._disown(record)

    async def _run_to_its_end(self, record: JobRecord, master: JobMaster) -> None:
        job_id = record.stored.job_id
        try:
            end = await master.run()
            state, reason = end.state, end.reason
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise  # cancelled: the JobManager is closing, and the job stays as it is on disk
            if isinstance(root, CheckpointFenced):
                state, reason = JobState.FAILED, str(root)
            else:
                LOGGER.exception("job %s (%s) failed with an internal error of the JobManager", job_id, record.name)
                state, reason = JobState.FAILED, f"internal error of the JobManager, see its log: {cause_text(root)}"
        finally:
            try:
                record.last = job_document(record, self._parts, ENDED_SUBTASKS)
                kept = record.last.pop("results")
                fit_job(record.last, MAX_ENDED_BYTES)
                record.last["results"] = kept
            except Exception:  # a job that cannot be described must not end the JobManager
                LOGGER.exception("job %s (%s): its details cannot be stored", job_id, record.name)
                record.last = {"state": "running"}
            record.master = None
            del self.running[job_id]
            self._on_left(job_id)
        results = {
            operator: {str(subtask): value for subtask, value in sorted(values.items())}
            for operator, values in master.tasks.results.items()
        }
        is_finished = state is JobState.FINISHED
        is_kept = record.retain == "always" or (record.retain == "unless_finished" and not is_finished)
        if not is_kept:
            record.last["last_checkpoint"] = _newest_savepoint(master)
        summary: dict[str, Any] = {
            name: record.last[name] for name in (*COUNTS, "last_checkpoint") if name in record.last
        }
        await self._put_end(record, state, reason, results, master.failures, summary)
        if record.storage is not None and not is_kept:
            with trio.CancelScope(shield=True):
                await self._in_thread(record.storage.remove_all)

    async def _put_end(
        self,
        record: JobRecord,
        state: JobState,
        reason: str,
        results: Mapping[str, Any],
        failures: FailureHistory | None = None,
        summary: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        end: dict[str, Any] = {"state": state.value, "reason": reason, "ended_at": time.time()}
        end |= {"duration_s": record.age_s, "results": results, **summary}
        end |= failure_documents(failures)
        job_id = record.stored.job_id

        def waits(why: str) -> None:
            record.waits_for = why and f"storing its end ({state.value}): {why}"
            if why:
                LOGGER.error("job %s (%s): %s", job_id, record.name, record.waits_for)

        await until_stored(
            partial(self._in_thread, partial(self._parts.store.put_end, job_id, end)),
            waits,
        )
        size_bytes = await self._in_thread(partial(_remembered_bytes, record, end))
        record.end = end
        self._budget.leave(job_id)
        self._remembered.add(job_id, size_bytes)
        record.ended.set()
        LOGGER.info("job %s (%s): %s%s", record.stored.job_id, record.name, state.value, reason and f": {reason}")
        self._forget_old()
        if record.stored.code:
            self._nursery.start_soon(self._prune_packages)

    def _forget_old(self) -> None:
        for job_id in self._remembered.forget(self._parts.config.max_ended_jobs):
            del self.records[job_id]
            self._nursery.start_soon(self._in_thread, partial(self._parts.store.forget, job_id))


def _checked_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a job file's document. Raises ConfigError if the job is too large."""
    check_counts(document)
    check_limits(document)
    return copy.deepcopy(dict(document))


def _remembered_bytes(record: JobRecord, end: Mapping[str, Any]) -> int:
    """Returns the memory that an ended job takes."""
    details = {name: value for name, value in (record.last or {}).items() if name != "results"}  # these are in `end`
    definition = [] if record.size.definition_bytes else record.stored.document
    return record.size.definition_bytes + memory_bytes([definition, details, end], MAX_REMEMBERED_BYTES)


def _newest_savepoint(master: JobMaster) -> dict[str, Any] | None:
    """Returns the newest savepoint of this run, which stays when the checkpoints of a job are removed."""
    for report in reversed(master.history):
        if report.is_complete and report.is_savepoint:
            return {"checkpoint_id": report.checkpoint_id, "path": master.path_of(report.checkpoint_id)}
    return None
