"""A TaskManager: a port for data and control, slots and memory for jobs, nothing left of jobs that ended.

Takes: addresses, a secret, bounds (`config`). Gives: `TaskManager`; `runner.open_taskmanager` makes one.

A TaskManager with the address of a JobManager registers there (`registration`). One without waits until a JobManager
dials its port. It works for one JobManager at a time. After the proof of the secret, a connection names its purpose
(`control.routing`), so one port serves data, control and clients.

Rules: an error on one connection ends that connection at most.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, final

import trio

from ..control.blob_answers import BlobAnswers
from ..control.build import own_build
from ..control.codec import Message, Plain
from ..control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, MessageLink
from ..control.messages import AskDetails, AskStatistics, BlobPart, DropDataset, OpenJob
from ..control.reports import BlobKept, FetchBlob, PartitionSealed
from ..control.routing import check_job_id
from ..errors import (
    NetstackError,
    RequestRefused,
)
from ..ids import PartitionId
from ..limited_log import LimitedLog
from ..runtime.admission import Admission
from ..runtime.control_port import ControlPort
from ..runtime.dialling import connect_stream
from ..runtime.kept import KeptTogether
from ..runtime.statistics import NetworkStatistics, SlotStatistics
from ..schedule.descriptors.shuffle import partition_place
from ..shown import shown_text
from ..shuffle.files import SealedFiles
from ..transport import ByteStream, Listener
from ..version import __version__
from .blob_reader import BlobReader
from .blobs import BlobFetcher, BlobPlaces
from .code import AllowList, ShippedCode
from .config import TaskManagerConfig
from .datasets import KeptDatasets
from .details import details_document
from .environments import Environments
from .job_scope import JobScope, OnMade
from .memory import TaskMemory
from .registration import Registration
from .relay import RelayedJob
from .samples import sampled_loop
from .session import ControlSession, SessionJob, tell_statistics
from .slot_processes import SlotProcesses
from .slot_settings import config_of
from .statistics import job_document, merged, merged_details, merged_documents

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 1024
"""Open, or waiting for memory."""

JOBS_OF_A_HOST: Final = 768
"""However many connections it opens them by: others find room."""

ADOPTION_TIMEOUT_S: Final = 20.0
"""How long a JobManager waits for another one that the TaskManager works for: one that died is gone by then."""

_NAME_CHARACTERS: Final = 200


@final
class TaskManager:
    """Made by `open_taskmanager` (it is the `SessionHost` of its sessions).

    Attributes:
        config: its settings.
        address: URL that was really bound, for data and control.
        control_address: URL of the port for control.
        memory: what of it is free.
        environments: the networks of its jobs.
        datasets: what jobs have left here.
        registration: at its JobManager.
    """

    def __init__(
        self,
        config: TaskManagerConfig,
        listener: Listener,
        control: Listener | None,
        processes: SlotProcesses | None = None,
        on_made: OnMade | None = None,
        connect: Callable[[str], Awaitable[ByteStream]] = connect_stream,
    ) -> None:
        self.config = config
        self._processes = processes
        self._on_made = on_made
        self.address = listener.address
        self.control_address = self.address if control is None else control.address
        self.metrics_address: str | None = None
        """`host:port` at which Prometheus finds the metrics; None if they are not served."""
        self._has_control = control is not None
        self._build = own_build()  # now: files may be replaced while the old code runs
        self._session = secrets.token_hex(8)
        self.memory = TaskMemory(config.memory_bytes)
        self._allowed = AllowList(config.allow)
        self._shipped = ShippedCode() if config.allow_submitted else None
        self._blobs = BlobReader(config.blob_cache_bytes, directory=config.network.shuffle_directory)
        self.blob_places = BlobPlaces(config.name or socket.gethostname(), config.secret, config.handshake_timeout_s)
        self._admission = Admission(
            config.secret,
            max_connections=config.max_connections,
            max_unproven=config.max_unproven,
            timeout_s=config.handshake_timeout_s,
        )
        self.environments = Environments(
            self.address,
            config.network,
            self.memory if processes is None else TaskMemory(processes.settings.memory_bytes),
            secret=config.secret,
            connect=connect,
            on_stream_end=self._admission.left,
            together=self._together,
        )
        self.datasets = KeptDatasets(self.environments)
        self._port = ControlPort(
            self._admission,
            LOGGER,
            TASKMANAGER,
            self.facts,
            self._talk,
            name=config.name,
            handshake_timeout_s=config.handshake_timeout_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
        )
        self._log = LimitedLog(LOGGER, trio.current_time)
        self._jobs: dict[str, JobScope | RelayedJob] = {}
        self._adoption = trio.Lock()
        self._drivers: dict[MessageLink, None] = {}
        self._began_s = trio.current_time()
        self._jobs_ended = 0
        self._served = trio.Event()
        self.registration = Registration(config, self.facts, self.serve_driver, processes)

    async def serve(self, listener: Listener, *, takes_data: bool) -> None:
        """Accepts until cancelled.

        Args:
            listener: one of its ports.
            takes_data: whether data connections may come there.
        """
        await self._port.serve(listener, self.environments.accept if takes_data else None)

    @property
    def is_idle(self) -> bool:
        """Whether no job is open or waits."""
        return not self._jobs

    def close(self) -> None:
        """What jobs brought along is forgotten."""
        if self._shipped is not None:
            self._shipped.close()

    async def wait_served(self) -> None:
        """Waits until, for the first time, a JobManager has come and none is left. Cancellation: nothing changed."""
        await self._served.wait()

    async def serve_driver(self, link: MessageLink) -> None:
        """Works for the JobManager (or supervisor) at the other end of a link that has greeted, until it is gone.

        Cancellation: every job of the link is closed.
        """
        self._drivers[link] = None
        try:
            await ControlSession(link, self).serve()
        finally:
            del self._drivers[link]
            if not self._drivers:
                self._served.set()

    def make_job(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> JobScope | RelayedJob:
        """A job that `SessionJob.live` runs; its id is reserved.

        Raises:
            RequestRefused: its id is taken, or there are too many.
            ConfigError: its settings cannot work.
        """
        if check_job_id(message.job_id) in self._jobs:
            raise RequestRefused(f"job {message.job_id} exists already; choose another id")
        if len(self._jobs) >= JOBS_AT_MOST:
            raise RequestRefused(f"{JOBS_AT_MOST} jobs are open or wait here; try later")
        source = link.peer.rpartition(":")[0]
        if sum(job.source == source for job in self._jobs.values()) >= JOBS_OF_A_HOST:
            raise RequestRefused(f"{JOBS_OF_A_HOST} jobs of your host are open or wait here; close some first")
        network = None if message.network is None else config_of(message.network)
        job: JobScope | RelayedJob
        if self._processes is not None:
            job = RelayedJob(
                message,
                self._processes.slots,
                link.send,
                self._blobs,
                blobs.fetch,
                source,
                self.environments,
                self.datasets,
            )
        else:
            job = JobScope(
                message.job_id,
                shown_text(message.name, _NAME_CHARACTERS),
                network,
                message.data_address,
                memory=self.memory,
                environments=self.environments,
                memory_timeout_s=message.memory_timeout_s,
                host=self.config.name or socket.gethostname(),
                allowed=self._allowed,
                shipped=self._shipped,
                blobs=self._blobs,
                datasets=self.datasets,
                fetch=blobs.fetch,
                source=source,
                send=link.send,
                on_made=self._on_made,
            )
        self._jobs[job.job_id] = job
        self._log.log(logging.INFO, "opened", f"job {job.job_id} ({shown_text(job.name)}): its tasks may come")
        return job

    async def blob_part(self, ask: FetchBlob) -> BlobPart:
        """A part of a blob that is kept here, for another TaskManager."""
        return await self._blobs.part_of_kept(ask)

    def remove_job(self, job: SessionJob) -> None:
        """It is over."""
        del self._jobs[job.job_id]
        self._jobs_ended += 1
        text = f"job {job.job_id} ({shown_text(job.name)}) closed: {job.reason or 'over'}"
        self._log.log(logging.INFO, "closed", text)

    def drop_dataset(self, message: DropDataset) -> None:
        """Nobody needs a dataset any more."""
        self.datasets.drop(message.key)

    async def statistics(self) -> Plain:
        """Everything, as plain data.

        Returns:
            The facts of the greeting, and `uptime_s`, `cpu_s`, `jobs_ended`, `drivers`, `registrations`, `connections`,
            `unproven`, `refused` (by reason), `shared_memory_bytes` and `shared_used_bytes` (of the network that jobs
            share), `blobs` (`kept_bytes`, `fetched`, `evicted`), `jobs` (see `statistics.job_document`; see
            `statistics.shortened` too). Of slots that are processes it is what they say in time.

        Cancellation: answers of slots are dropped.
        """
        now_s = trio.current_time()
        admission = self._admission.statistics()
        shared = self.environments.shared
        document = {
            **self.facts(),
            "uptime_s": now_s - self._began_s,
            "cpu_s": time.process_time(),
            "jobs_ended": self._jobs_ended,
            "drivers": [link.peer for link in self._drivers],
            "registrations": self.registration.count,
            "connections": admission.connections,
            "unproven": admission.unproven,
            "refused": {reason.value: count for reason, count in admission.refused.items()},
            "jobs": [job_document(scope, now_s) for scope in self.scopes],
            "shared_memory_bytes": 0 if shared is None else shared.config.memory_bytes,
            "shared_used_bytes": 0 if shared is None else shared.used_memory_bytes,
            "blobs": {
                "kept_bytes": self._blobs.kept_bytes,
                "fetched": self._blobs.fetched,
                "evicted": self._blobs.evicted,
            },
        }
        if self._processes is None:
            await trio.lowlevel.checkpoint()
            return document
        return merged_documents(document, await self._processes.ask_all(AskStatistics))

    async def details(self) -> Plain:
        """What jobs are like at this moment, down to their channels, as far as that fits; see `details`.

        A slot that is a process and has not answered in time is left out.

        Cancellation: as `statistics`.
        """
        if self._processes is None:
            await trio.lowlevel.checkpoint()
            return details_document(self.scopes, self.environments.shared, self.memory)
        return merged_details(await self._processes.ask_all(AskDetails))

    def merged_statistics(self) -> NetworkStatistics:
        """All jobs as one network, for Prometheus; of a supervisor its slots, each of which serves its own jobs."""
        if self._processes is not None:
            slots = tuple(SlotStatistics(slot.number, slot.blocked_s) for slot in self._processes.slots)
            return replace(merged((), None, 0, self._admission.statistics()), slots=slots)
        return merged(self.scopes, self.environments.shared, self.config.memory_bytes, self._admission.statistics())

    async def stacks(self, job_id: str, sampled_s: float = 0.0) -> Plain:
        """The stacks of a job's tasks: of slots that answer from their event loop, of others from outside.

        Args:
            job_id: of the job.
            sampled_s: 0: at this moment; else sampled for so long.

        Returns:
            `tasks`: see `stacks.stack_row`; of a blocked slot one row, for the task whose code runs. Or see
            `samples`.

        Cancellation: as `statistics`.
        """
        if self._processes is not None:
            return {"tasks": await self._processes.stacks(job_id, sampled_s)}
        if sampled_s > 0:
            return {"tasks": await sampled_loop(threading.get_ident(), sampled_s)}
        await trio.lowlevel.checkpoint()
        job = self._jobs.get(job_id)
        return {"tasks": job.stacks(self.config.in_slot) if isinstance(job, JobScope) else []}

    @property
    def scopes(self) -> list[JobScope]:
        """The jobs that run in this process."""
        return [job for job in self._jobs.values() if isinstance(job, JobScope)]

    def _used_slots(self) -> int:
        """Slots that have tasks."""
        if self._processes is not None:
            return sum(1 for slot in self._processes.slots if slot.jobs)
        return min(self.config.slots, sum(scope.slots for scope in self.scopes))

    def facts(self) -> Plain:
        """The first message to a JobManager."""
        return {
            "version": __version__,
            "build": self._build,
            "session": self._session,
            "data": self.address,
            "control": self.control_address if self._has_control else "",
            "slots": self.config.slots,
            "free_slots": self.config.slots - self._used_slots(),
            "memory_bytes": self.memory.memory_bytes,
            "free_memory_bytes": self.memory.free_memory_bytes,
            "hostname": socket.gethostname(),
            "name": self.config.name or socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cpus": os.cpu_count() or 1,
            "datasets": list(self.datasets.keys),
            "slot_addresses": [] if self._processes is None else [slot.url for slot in self._processes.slots],
            "allow": list(self._allowed.prefixes),
            "allow_submitted": self.config.allow_submitted,
            "heartbeat_timeout_s": self.config.heartbeat_timeout_s,
            "platform": sys.platform,
        }

    def _together(self, environment: str) -> KeptTogether | None:
        """Where a network environment keeps partitions: those of a slot go to its supervisor when they are sealed."""
        if self._processes is not None:
            return self._processes.settings.together(environment)
        if self.config.in_slot is None:
            return None
        return KeptTogether(f"{self.config.kept_folder}-{environment}", self.config.kept_prefix, self._hand_over)

    def _hand_over(self, name: PartitionId, sealed: SealedFiles) -> None:
        job_id = partition_place(name).execution.partition("@")[0]
        for link in self._drivers:
            link.send(
                PartitionSealed(job_id, name, sealed.name, sealed.subpartitions, sealed.drain, sealed.stored_bytes)
            )

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role == JOBMANAGER:
            await self._adopted_by(link)
        elif greeting.role == CLIENT:
            await self._answer(link)
        else:
            raise RequestRefused(f"{link.peer} is a {greeting.role}, and this is a TaskManager: dial a JobManager")

    async def _adopted_by(self, link: ControlLink) -> None:
        """A JobManager has dialled: this works for it when it works for nobody else."""
        name = self.config.name or socket.gethostname()
        if self.config.in_slot is not None:
            raise RequestRefused(
                f"this port is slot {self.config.in_slot}'s of a TaskManager: dial the TaskManager. If you meant"
                " another one, it could not listen here: leave as many ports free behind one's own as it has slots"
            )
        if self.config.jobmanager is not None:
            raise RequestRefused(
                f"TaskManager {name} works for the JobManager at {self.config.jobmanager}: submit the job there, or"
                " start the TaskManager without --jobmanager"
            )
        with trio.move_on_after(ADOPTION_TIMEOUT_S) as waiting:
            await self._adoption.acquire()
        if waiting.cancelled_caught:
            peers = ", ".join(shown_text(other.peer) for other in self._drivers)
            raise RequestRefused(
                f"TaskManager {name} works for {peers}, and still did after {ADOPTION_TIMEOUT_S:g} s; wait until that"
                " has gone"
            )
        try:
            if self._processes is not None:
                await self._processes.wait_ready()
            await self.serve_driver(link)
        finally:
            self._adoption.release()

    async def _answer(self, link: ControlLink) -> None:
        """A client that looks, or another TaskManager that reads a blob which is kept here."""
        answers = BlobAnswers(link, self.blob_part)
        end: NetstackError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers.run)
            while end is None:
                try:
                    await self._answer_one(await link.receive(), link, answers)
                except NetstackError as error:  # leaves as it is, not inside this nursery's group
                    end = error
            nursery.cancel_scope.cancel()
        raise end

    async def _answer_one(self, message: Message, link: ControlLink, answers: BlobAnswers) -> None:
        match message:
            case AskStatistics():
                await tell_statistics(link, message.token, self.statistics)
            case FetchBlob():
                answers.enqueue(message)
            case BlobKept():
                pass  # it has read one here
            case _:
                raise RequestRefused(
                    f"a TaskManager shows clients its statistics, and takes {type(message).__name__} from a JobManager"
                    " only"
                )
