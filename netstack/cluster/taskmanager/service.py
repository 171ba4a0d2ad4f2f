"""The TaskManager: a port for data and control, slots and memory for jobs.

Takes: addresses, a secret, limits (`config`). Gives: `TaskManager`, which `runner.open_taskmanager` creates.

A TaskManager with the address of a JobManager registers there (`registration`); one without waits until a JobManager
connects. It works for one JobManager at a time. After the proof of the secret, a connection sends its route
(`cluster.control.routing`), so one port serves data, control and clients.

Rules: an error on one connection ends that connection only. An ended job leaves nothing behind.
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

from ...base import build
from ...base.errors import NetstackError, RequestRefused
from ...base.host import congestion_control
from ...base.ids import PartitionId
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_text
from ...base.transport import ByteStream, Listener
from ...base.version import __version__
from ...exchange.stored.files import SealedFiles
from ...network.connection.admission import Admission
from ...network.connection.handshake import connect_stream
from ...network.connection.statistics import NetworkStatistics, SlotStatistics
from ...network.kept_partitions import KeptTogether
from ...schedule.descriptors.shuffle import partition_place
from ..control.blob_answers import BlobAnswers
from ..control.build import own_build
from ..control.codec import Message, Plain
from ..control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, MessageLink
from ..control.messages import AskDetails, AskStatistics, OpenJob
from ..control.port import ControlPort
from ..control.reports import BlobKept, FetchBlob, PartitionSealed
from ..control.routing import check_job_id
from .blob_reader import BlobReader
from .blobs import BlobFetcher, BlobPlaces
from .code import AllowList, ShippedCode
from .config import TaskManagerConfig
from .datasets import KeptDatasets
from .details import details_document
from .environments import Environments
from .job_in_process import JobInProcess
from .job_in_slots import JobInSlots
from .memory import TaskMemory
from .samples import sampled_loop
from .session import ControlSession, Registration, SessionJob, tell_statistics
from .slot_pool import SlotProcesses
from .slot_settings import config_of
from .statistics import job_document, merged, merged_details, merged_documents
from .tasks import OnMade

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 1024
"""Maximum number of jobs that are open or wait for memory."""

JOBS_OF_A_HOST: Final = 768
"""Maximum number of jobs of one host, over all of its connections, so that other hosts find room."""

ADOPTION_TIMEOUT_S: Final = 20.0
"""How long a JobManager that connects waits for the current one; a dead one is detected by then."""


@final
class TaskManager:
    """A TaskManager; created by `open_taskmanager`. It implements `SessionHost` for its sessions.

    Attributes:
        address: bound URL for data and control.
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
        """`host:port` of the Prometheus metrics; None if they are not served."""
        self._has_control = control is not None
        self._build = own_build()  # read now, since files may be replaced while this process runs
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
            ready=self._ready,
            name=config.name,
            handshake_timeout_s=config.handshake_timeout_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
        )
        self._log = LimitedLog(LOGGER, trio.current_time)
        self._jobs: dict[str, JobInProcess | JobInSlots] = {}
        self._adoption = trio.Lock()
        self._drivers: dict[MessageLink, None] = {}
        self._began_s = trio.current_time()
        self._jobs_ended = 0
        self._served = trio.Event()
        self.registration = Registration(config, self.facts, self.serve_driver, processes)

    async def serve(self, listener: Listener, *, takes_data: bool) -> None:
        """Accepts connections until cancelled.

        Args:
            listener: listener of one of the ports.
            takes_data: whether the port accepts data connections.
        """
        await self._port.serve(listener, self.environments.accept if takes_data else None)

    @property
    def is_idle(self) -> bool:
        """Whether no job is open or waits for memory."""
        return not self._jobs

    def close(self) -> None:
        """Removes the packages that jobs shipped."""
        if self._shipped is not None:
            self._shipped.close()

    async def wait_served(self) -> None:
        """Waits until the first JobManager has connected and left. Cancellation: changes nothing."""
        await self._served.wait()

    async def serve_driver(self, link: MessageLink) -> None:
        """Serves the JobManager or supervisor at the other end of a link until the link is lost.

        Cancellation: closes every job of the link.
        """
        self._drivers[link] = None
        try:
            await ControlSession(link, self).serve()
        finally:
            del self._drivers[link]
            if not self._drivers:
                self._served.set()

    def make_job(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> JobInProcess | JobInSlots:
        """Creates a job for `SessionJob.live` and reserves its id.

        Raises:
            RequestRefused: the id is taken, or there are too many jobs.
            ConfigError: its settings are invalid.
        """
        if check_job_id(message.job_id) in self._jobs:
            raise RequestRefused(f"job {message.job_id} exists already at this TaskManager")
        if len(self._jobs) >= JOBS_AT_MOST:
            raise RequestRefused(
                f"{JOBS_AT_MOST} jobs are open or wait at this TaskManager, the maximum; wait until some end"
            )
        source = link.peer.rpartition(":")[0]
        if sum(job.source == source for job in self._jobs.values()) >= JOBS_OF_A_HOST:
            raise RequestRefused(
                f"{JOBS_OF_A_HOST} jobs of your host are open or wait at this"
                " TaskManager, the maximum; close some first"
            )
        network = None if message.network is None else config_of(message.network)
        job: JobInProcess | JobInSlots
        if self._processes is not None:
            job = JobInSlots(
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
            job = JobInProcess(
                message,
                network,
                memory=self.memory,
                environments=self.environments,
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
        self._log.log(logging.INFO, "opened", f"job {job.job_id} ({safe_text(job.name)}) opened")
        return job

    def remove_job(self, job: SessionJob) -> None:
        """Removes an ended job."""
        del self._jobs[job.job_id]
        self._jobs_ended += 1
        text = f"job {job.job_id} ({safe_text(job.name)}) closed: {job.reason or 'it has ended'}"
        self._log.log(logging.INFO, "closed", text)

    async def statistics(self) -> Plain:
        """Returns the statistics of this TaskManager as plain data.

        Returns:
            The facts of the greeting, and `uptime_s`, `cpu_s`, `jobs_ended`, `drivers`, `registrations`, `connections`,
            `unproven`, `refused` (by reason), `shared_memory_bytes` and `shared_used_bytes` (of the shared network),
            `blobs` (`kept_bytes`, `fetched`, `evicted`), `jobs` (`statistics.job_document`). Slot processes that do not
            answer in time are left out.

        Cancellation: drops the answers of slots.
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
            "jobs": [job_document(job, now_s) for job in self.jobs_in_process],
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
        """Returns the details of all jobs, down to their channels (`details`).

        Slot processes that do not answer in time are left out.

        Cancellation: drops the answers of slots.
        """
        if self._processes is None:
            await trio.lowlevel.checkpoint()
            return details_document(self.jobs_in_process, self.environments.shared, self.memory)
        return merged_details(await self._processes.ask_all(AskDetails))

    def merged_statistics(self) -> NetworkStatistics:
        """Returns all jobs as one network for Prometheus; a supervisor reports its slots only."""
        if self._processes is not None:
            slots = tuple(SlotStatistics(slot.number, slot.blocked_s) for slot in self._processes.slots)
            return replace(merged((), None, 0, self._admission.statistics()), slots=slots)
        return merged(
            self.jobs_in_process, self.environments.shared, self.config.memory_bytes, self._admission.statistics()
        )

    async def stacks(self, job_id: str, sampled_s: float = 0.0) -> Plain:
        """Returns the stacks of a job's tasks; those of blocked slots are read from outside.

        Args:
            job_id: id of the job.
            sampled_s: 0: the current stacks; else the sampling time.

        Returns:
            `tasks`: rows of `stacks.stack_row`, for a blocked slot one row of the running task; or rows of `samples`.

        Cancellation: drops the answers of slots.
        """
        if self._processes is not None:
            return {"tasks": await self._processes.stacks(job_id, sampled_s)}
        if sampled_s > 0:
            return {"tasks": await sampled_loop(threading.get_ident(), sampled_s)}
        await trio.lowlevel.checkpoint()
        job = self._jobs.get(job_id)
        return {"tasks": job.stacks(self.config.in_slot) if isinstance(job, JobInProcess) else []}

    @property
    def jobs_in_process(self) -> list[JobInProcess]:
        """The jobs that run in this process."""
        return [job for job in self._jobs.values() if isinstance(job, JobInProcess)]

    def _used_slots(self) -> int:
        if self._processes is not None:
            return sum(1 for slot in self._processes.slots if slot.jobs)
        return min(self.config.slots, sum(job.slots for job in self.jobs_in_process))

    def facts(self) -> Plain:
        """Returns the facts for the greeting."""
        return {
            "version": __version__,
            "build": self._build,
            "netstack_build": build.kind,
            "why_python": build.reason,
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
            "congestion_control": congestion_control(),
            "datasets": list(self.datasets.keys),
            "slot_addresses": [] if self._processes is None else [slot.url for slot in self._processes.slots],
            "allow": list(self._allowed.prefixes),
            "allow_submitted": self.config.allow_submitted,
            "heartbeat_timeout_s": self.config.heartbeat_timeout_s,
            "platform": sys.platform,
        }

    def _together(self, environment: str) -> KeptTogether | None:
        """Returns where an environment stores partitions; a slot hands sealed ones over to its supervisor."""
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

    async def _ready(self, role: str) -> None:
        """Waits for the slots before a JobManager receives their addresses, which a taken port may still change."""
        if role == JOBMANAGER and self._processes is not None:
            await self._processes.wait_ready()

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role == JOBMANAGER:
            await self._adopted_by(link)
        elif greeting.role == CLIENT:
            await self._answer(link)
        else:
            raise RequestRefused(
                f"{link.peer} is a {greeting.role}, but this is a TaskManager: connect to a JobManager"
            )

    async def _adopted_by(self, link: ControlLink) -> None:
        """Serves a JobManager that has connected, after the previous one has left."""
        name = self.config.name or socket.gethostname()
        if self.config.in_slot is not None:
            raise RequestRefused(
                f"this port belongs to slot {self.config.in_slot} of a TaskManager: connect to the TaskManager's own"
                " port. Each TaskManager uses its port and one more for each slot, so leave that many between two"
            )
        if self.config.jobmanager is not None:
            raise RequestRefused(
                f"TaskManager {name} works for the JobManager at {self.config.jobmanager}: submit the job there, or"
                " start the TaskManager without --jobmanager"
            )
        with trio.move_on_after(ADOPTION_TIMEOUT_S) as waiting:
            await self._adoption.acquire()
        if waiting.cancelled_caught:
            peers = ", ".join(safe_text(other.peer) for other in self._drivers)
            raise RequestRefused(
                f"TaskManager {name} has worked for {peers} for the last {ADOPTION_TIMEOUT_S:g} s; wait until that"
                " JobManager ends"
            )
        try:
            await self.serve_driver(link)
        finally:
            self._adoption.release()

    async def _answer(self, link: ControlLink) -> None:
        """Serves a client that reads statistics, or another TaskManager that reads a cached blob."""
        answers = BlobAnswers(link, self._blobs.part_of_kept)
        end: NetstackError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers.run)
            while end is None:
                try:
                    await self._answer_one(await link.receive(), link, answers)
                except NetstackError as error:  # propagates unwrapped, not in this nursery's group
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
                pass  # sent after the last part
            case _:
                raise RequestRefused(
                    f"a TaskManager accepts {type(message).__name__} only from a JobManager; clients may read"
                    " statistics"
                )
