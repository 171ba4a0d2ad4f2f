"""A TaskManager as a service: a port for data and control, slots and memory for jobs, nothing left of those that ended.

Takes: addresses, a secret, bounds. Gives: `open_taskmanager`, which serves until it is cancelled.

Two ways lead to work. A TaskManager dials the JobManager it is told of, and registers: for ever, anew after every loss,
over a link in a thread of its own, so that user code that computes for long costs no sign of life. And one that is told
of none waits to be adopted: a JobManager dials its port (a benchmark's does). Who dialled makes no difference from then
on; one JobManager at a time. One port serves everything: after the proof of the secret, if there is one, a connection
says what it is for (`control.routing`).

Rules: what one connection says ends that connection at most.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, final

import trio

from ..config import MIB, NetworkConfig
from ..control.blob_answers import BlobAnswers
from ..control.build import own_build
from ..control.codec import Plain
from ..control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, MessageLink, dial
from ..control.messages import (
    AskDetails,
    AskStacks,
    AskStatistics,
    BlobKept,
    BlobPart,
    DropDataset,
    FetchBlob,
    Message,
    OpenJob,
    PartitionSealed,
)
from ..control.routing import check_job_id
from ..control.threaded import open_threaded
from ..errors import (
    ConfigError,
    NetstackError,
    RequestRefused,
)
from ..ids import PartitionId
from ..limited_log import LimitedLog
from ..runtime.admission import Admission
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.causes import root_cause
from ..runtime.control_port import ControlPort
from ..runtime.dialling import connect_stream
from ..runtime.kept import KeptTogether
from ..runtime.statistics import NetworkStatistics, SlotStatistics
from ..runtime.threads import background_tasks, in_thread
from ..schedule.descriptors.shuffle import partition_place
from ..shown import shown_error, shown_text
from ..shuffle.files import SealedFiles, remove_leftovers
from ..transport import ByteStream, Listener, is_private, transport_for
from ..version import __version__
from .blob_reader import CACHE_BYTES, BlobReader
from .blobs import BlobFetcher, BlobPlaces
from .code import AllowList, ShippedCode
from .datasets import KeptDatasets
from .details import details_document
from .environments import Environments
from .job_scope import JobScope, OnMade
from .memory import TaskMemory
from .neighbours import Neighbours
from .relay import RelayedJob
from .samples import sampled_loop, sampled_slots
from .session import ControlSession, SessionJob, tell_statistics
from .slot import Slot
from .slot_processes import SlotProcesses
from .slot_settings import config_of
from .stacks import stack_row
from .statistics import job_document, merged, merged_details, merged_documents

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 1024
"""Open, or waiting for memory."""

JOBS_OF_A_HOST: Final = 768
"""However many connections it opens them by: others find room."""

CONNECT_TIMEOUT_S: Final = 60.0
"""In the network that jobs share: a TaskManager in which a thousand tasks begin answers late; of one that is gone the
JobManager hears by its link."""

ADOPTION_TIMEOUT_S: Final = 20.0
"""How long a JobManager waits for another one that the TaskManager works for: one that died is gone by then."""

CANCELLATION_TIMEOUT_S: Final = 30.0
"""Flink's `task.cancellation.timeout` is 180 s."""

SLOTS_AT_MOST: Final = 1 << 20

_NAME_CHARACTERS: Final = 200
_LEAST_BACKOFF_S: Final = 0.1
_MOST_BACKOFF_S: Final = 5.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerConfig:
    """How a TaskManager serves.

    Attributes:
        listen: URL of the port for data and, unless `control` is given, for control: `tcp://0.0.0.0:6121`.
        control: URL of a port of its own for control; None has none.
        jobmanager: where to register, `host:port` or a URL; None waits for one that dials in.
        link_in_thread: whether the link to the JobManager has a thread of its own; only tests in virtual time do
            without.
        name: of this TaskManager in reports; the host's if empty.
        slots: how many subtasks of each task it holds at once; a slot holds one subtask of every task of a job.
        memory_bytes: network buffers of all jobs together.
        network: settings of the network that jobs share, but for its memory.
        secret: shared with everybody who may come in; None lets everybody in, and needs a loopback address.
        allow: prefixes of names that may be run beside those that installed packages declare; `*` is everything.
        allow_submitted: whether jobs may bring packages along.
        max_connections: at once, control and data together.
        max_unproven: connections that have not proven the secret yet.
        handshake_timeout_s: for the proof, and for saying what the connection is for.
        heartbeat_timeout_s: a JobManager that is silent for so long is gone, and its jobs are closed.
        cancellation_timeout_s: a slot process whose tasks have not stopped so long after they were cancelled is killed.
        shared_memory: whether slots that are processes of one host reach each other through shared memory.
        in_slot: the slot whose process this is; None: it is no slot's process.
        kept_folder: of a slot's process: see `SlotSettings.folder`.
        kept_prefix: of a slot's process: what the names of its files there begin with.
        blob_cache_bytes: the most that each process keeps of what was offloaded, and of packages of jobs.

    Raises:
        ConfigError: a number that cannot be, or an address that others reach and no secret.
    """

    listen: str = "tcp://127.0.0.1:6121"
    name: str = ""
    control: str | None = None
    jobmanager: str | None = None
    link_in_thread: bool = True
    slots: int = field(default_factory=lambda: max(1, os.cpu_count() or 1))
    memory_bytes: int = 256 * MIB
    network: NetworkConfig = field(default_factory=partial(NetworkConfig, connect_timeout_s=CONNECT_TIMEOUT_S))
    secret: Secret | None = None
    allow: tuple[str, ...] = ()
    allow_submitted: bool = False
    max_connections: int = 1024
    max_unproven: int = 64
    handshake_timeout_s: float = 10.0
    heartbeat_timeout_s: float = 10.0
    cancellation_timeout_s: float = CANCELLATION_TIMEOUT_S
    shared_memory: bool = True
    in_slot: int | None = None
    kept_folder: str = ""
    kept_prefix: str = ""
    blob_cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        """Refuses what cannot work or would be open to everybody."""
        if not 1 <= self.slots <= SLOTS_AT_MOST:
            raise ConfigError(f"--slots {self.slots}: give 1 to {SLOTS_AT_MOST}")
        if self.blob_cache_bytes < 1:
            raise ConfigError(f"--blob-cache {self.blob_cache_bytes}: the least is 1")
        if self.memory_bytes < MIB:
            raise ConfigError(f"--memory {self.memory_bytes}: the least is 1MiB")
        for name in ("handshake_timeout_s", "heartbeat_timeout_s", "cancellation_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: give a number of seconds above 0")
        for url in filter(None, (self.listen, self.control)):
            if self.secret is None and not is_private(url):
                raise ConfigError(
                    f"{url} can be reached from other hosts, and there is no secret: give --secret-file FILE"
                    " (make one with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or listen on 127.0.0.1"
                )


@final
class TaskManager:
    """See `open_taskmanager`, which makes one (it is the `SessionHost` of its sessions).

    Attributes:
        config: its settings.
        address: URL that was really bound, for data and control.
        control_address: URL of the port for control.
        memory: what of it is free.
        environments: the networks of its jobs.
        datasets: what jobs have left here.
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
        self._registrations = 0
        self._registered = trio.Event()

    async def serve(self, listener: Listener, *, takes_data: bool) -> None:
        """Accepts until cancelled.

        Args:
            listener: one of its ports.
            takes_data: whether data connections may come there.
        """
        await self._port.serve(listener, self.environments.accept if takes_data else None)

    async def serve_jobmanager(self, address: str) -> None:
        """Registers at a JobManager and works for it; when it is lost, again, until cancelled."""
        backoff_s = _LEAST_BACKOFF_S
        while True:
            began_s = trio.current_time()
            try:
                await self._work_for(address)
            except BaseException as error:
                root = root_cause(error)
                if not isinstance(root, Exception):
                    raise
                if not isinstance(root, NetstackError | OSError):
                    self._log.log(
                        logging.ERROR, "jobmanager broke", f"JobManager {address}: a mistake here", error=root
                    )
                self._log.log(
                    logging.WARNING, "jobmanager", f"JobManager {address}: {shown_error(root)}; it is dialled again"
                )
            if trio.current_time() - began_s > _MOST_BACKOFF_S:
                backoff_s = _LEAST_BACKOFF_S
            await trio.sleep(backoff_s * random.uniform(0.8, 1.2))  # many TaskManagers do not dial at one moment
            backoff_s = min(2 * backoff_s, _MOST_BACKOFF_S)

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

    async def wait_registered(self) -> None:
        """Waits until it has registered at its JobManager for the first time. Cancellation: nothing changed."""
        await self._registered.wait()

    async def serve_driver(self, link: MessageLink) -> None:
        """Works for the JobManager (or supervisor) at the other end of a link that has greeted, until it is gone.

        Cancellation: every job of the link is closed.
        """
        with self._driven_by(link):
            await ControlSession(link, self).serve()

    # For sessions.

    def make_job(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> JobScope | RelayedJob:
        """A job that lives when it is told to; its id is taken.

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
            "registrations": self._registrations,
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
        return merged_documents(document, await self._ask_slots(self._processes, AskStatistics))

    async def details(self) -> Plain:
        """What jobs are like at this moment, down to their channels, as far as that fits; see `details`.

        A slot that is a process and has not answered in time is left out.

        Cancellation: as `statistics`.
        """
        if self._processes is None:
            await trio.lowlevel.checkpoint()
            return details_document(self.scopes, self.environments.shared, self.memory)
        return merged_details(await self._ask_slots(self._processes, AskDetails))

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
        if sampled_s > 0:
            if self._processes is None:
                return {"tasks": await sampled_loop(threading.get_ident(), sampled_s)}
            return {"tasks": await sampled_slots(self._slots_of(job_id), sampled_s)}
        if self._processes is None:
            await trio.lowlevel.checkpoint()
            job = self._jobs.get(job_id)
            return {"tasks": job.stacks(self.config.in_slot) if isinstance(job, JobScope) else []}
        rows = []
        for slot in self._slots_of(job_id):
            answer = await slot.ask(partial(AskStacks, job_id=job_id))
            if answer is not None:
                rows += answer.get("tasks", [])
                continue
            frames, where = await slot.stack()
            attempt = (0, int(where.get("subtask", -1)), 0)
            rows.append(stack_row(attempt, where.get("task", ""), slot.number, frames, is_blocked=True))
        return {"tasks": rows}

    def _slots_of(self, job_id: str) -> list[Slot]:
        return [slot for slot in (() if self._processes is None else self._processes.slots) if job_id in slot.jobs]

    async def _ask_slots(self, processes: SlotProcesses, make: type[AskStatistics] | type[AskDetails]) -> list[Plain]:
        """Asks all slots at once; gives the answers that came in time, by slot."""
        answers: list[tuple[int, Plain]] = []

        async def ask(slot: Slot) -> None:
            answer = await slot.ask(make)
            if answer is not None:
                answers.append((slot.number, answer))

        async with trio.open_nursery() as nursery:
            for slot in processes.slots:
                nursery.start_soon(ask, slot)
        return [answer for _, answer in sorted(answers, key=lambda answer: answer[0])]

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
        """What a JobManager is told first."""
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

    # Connections.

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
                answers.want(message)
            case BlobKept():
                pass  # it has read one here
            case _:
                raise RequestRefused(
                    f"a TaskManager shows clients its statistics, and takes {type(message).__name__} from a JobManager"
                    " only"
                )

    @contextmanager
    def _driven_by(self, link: MessageLink) -> Iterator[None]:
        self._drivers[link] = None
        try:
            yield
        finally:
            del self._drivers[link]
            if not self._drivers:
                self._served.set()

    async def _work_for(self, address: str) -> None:
        """One registration, from dialling to the loss of the JobManager."""
        secret = self.config.secret
        connect = partial(
            dial,
            address,
            role=TASKMANAGER,
            name=self.config.name or socket.gethostname(),
            facts=self.facts(),
            prove=None if secret is None else partial(prove_dialler, secret=secret),
            heartbeat_timeout_s=self.config.heartbeat_timeout_s,
            connect_timeout_s=self.config.handshake_timeout_s,
        )
        if self._processes is not None:
            await self._processes.wait_ready()
        elif self.config.link_in_thread:
            async with open_threaded(connect) as threaded:
                await self._registered_at(threaded, threaded.greeting.role)
            return
        link, greeting = await connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await self._registered_at(link, greeting.role)
            nursery.cancel_scope.cancel()

    async def _registered_at(self, link: MessageLink, role: str) -> None:
        if role != JOBMANAGER:
            raise RequestRefused(f"{link.peer} is no JobManager; give the address of one to --jobmanager")
        self._registrations += 1
        self._registered.set()
        LOGGER.info("registered at %s", shown_text(link.peer))
        await self.serve_driver(link)


@asynccontextmanager
async def open_taskmanager(
    config: TaskManagerConfig,
    *,
    metrics_address: str | None = None,
    processes: SlotProcesses | None = None,
    on_made: OnMade | None = None,
) -> AsyncIterator[TaskManager]:
    """Opens a TaskManager that serves while the block runs.

    Args:
        config: how it serves.
        metrics_address: where Prometheus may read `/metrics`: `host:port`, or over TLS `tls+tcp://host:port`; None
            serves none.
        processes: the slots, each a process; None runs all tasks here, in this event loop.
        on_made: is told of each task that is made here; None where nobody wants to know.

    Raises:
        OSError: an address cannot be bound; the text names it.
        ConfigError: a setting cannot work.

    Cancellation, and the end of the block: every job is closed, every connection ended.
    """
    listeners = [await transport_for(config.listen).listen(config.listen)]
    control: Listener | None = None
    manager: TaskManager | None = None
    connect = connect_stream
    try:
        if config.control is not None:
            control = await transport_for(config.control).listen(config.control)
        if (config.in_slot is not None or processes is not None) and config.shared_memory:
            neighbours = Neighbours()
            connect = neighbours.connect
            near = await neighbours.listen(listeners[0].address)
            listeners += [] if near is None else [near]
        manager = TaskManager(config, listeners[0], control, processes, on_made, connect)
        async with background_tasks() as nursery:
            if metrics_address is not None:
                await _serve_metrics(manager, metrics_address, nursery)
            if config.link_in_thread:  # in virtual time there are no threads
                nursery.start_soon(_remove_leftovers, config.network.shuffle_directory)
            nursery.start_soon(manager.environments.run)
            if processes is not None:
                nursery.start_soon(processes.run)
            for listener in listeners:
                nursery.start_soon(partial(manager.serve, listener, takes_data=True))
            if control is not None:
                nursery.start_soon(partial(manager.serve, control, takes_data=False))
            if config.jobmanager is not None:
                nursery.start_soon(manager.serve_jobmanager, config.jobmanager)
            yield manager
    finally:
        for listener in (*listeners, *(() if control is None else (control,))):
            listener.close()
        if manager is not None:
            manager.close()
        if processes is not None:  # what slots left that had to be killed at the end
            with suppress(OSError):
                remove_leftovers(config.network.shuffle_directory or tempfile.gettempdir())


async def _remove_leftovers(folder: str | None) -> None:
    """What TaskManagers that were killed have left on the disk."""
    try:
        for path in await in_thread(partial(remove_leftovers, folder or tempfile.gettempdir())):
            LOGGER.info("%s was left by a process that is dead, and is removed", path)
    except OSError as error:
        LOGGER.warning("what killed processes left cannot be looked for: %s", error)


async def _serve_metrics(manager: TaskManager, address: str, nursery: trio.Nursery) -> None:
    from ..runtime.prometheus import bind_guarded  # only who asks for it needs prometheus_client

    server = await bind_guarded(address, manager.config.secret)
    manager.metrics_address = server.address

    async def serve() -> None:
        try:
            await server.serve(manager.merged_statistics)
        finally:
            server.close()

    nursery.start_soon(serve)
