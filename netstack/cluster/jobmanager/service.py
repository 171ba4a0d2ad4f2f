"""The JobManager: a port for TaskManagers and clients, one JobMaster for each job, a folder that survives restarts.

Takes: addresses, a secret, a folder. Gives: `open_jobmanager`, which serves until it is cancelled.

TaskManagers connect and register their slots, or the JobManager connects to them (`JobManager.adopt`); heartbeats
detect their loss. Jobs receive slots in the order of submission. Submitted jobs are stored in the folder before they
are visible; after a crash the next JobManager on the folder continues every unfinished job from its newest checkpoint.

Rules: a faulty peer loses its own connection only. An internal error of one job fails that job only.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from ...base.contained import run_contained
from ...base.errors import ConnectionLost, ErrorCode, RemoteProtocolError, RequestRefused
from ...base.scratch import scratch_folder
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_text
from ...base.transport import Listener, full_url, transport_for, url_parts
from ...base.units import counted
from ...base.version import __version__
from ...network.connection.admission import Admission
from ...network.connection.authentication import Secret, prove_dialler
from ...network.waiting.threads import InThread, background_tasks, in_thread
from ...schedule.descriptors.blob_store import MemoryBlobStore
from ...schedule.slots.slots import PhysicalSlot, SlotDemand
from ..control.blob_answers import BlobAnswers
from ..control.codec import Message
from ..control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, dial
from ..control.messages import Refused
from ..control.port import ERROR_CHARACTERS, ControlPort, answer_questions
from ..control.reports import BlobKept, FetchBlob, JobClosed, JobOpened, JobRefused, Stacks, Statistics
from .blobs import BlobServer, Upload, Uploads
from .config import JobManagerConfig
from .datasets import DatasetRecord, Datasets
from .dispatcher import Dispatcher
from .folder_lock import RENEW_S, sign_of_life
from .job_master.stacks import StackQueries
from .job_services import JobManagerParts
from .queries import ClientQueries
from .resource_manager.resource_manager import ResourceManager
from .resource_manager.slot_manager import SlotManager
from .resource_manager.taskmanagers import ConnectedTaskManager, TaskManagers
from .store import JobStore, JobStoreFenced, open_job_store
from .stored_files import JobStoreError
from .views.cluster_snapshots import ClusterSnapshots

LEASE_S: Final = 5.0
"""Silence after which the folder is taken over: five missed touches."""

_WATCH_S: Final = 0.5


async def wait_for_folder(folder: str, in_thread: InThread) -> bool:
    """Waits until the folder is free or its owner silent. Returns whether it must be taken from an owner.

    The owner touches its lock every `RENEW_S`. A standby compares successive observations by its own clock, so clocks
    need not agree. A lock is free as soon as its process dies; a lock that is not touched for `LEASE_S` is taken over.
    A JobManager that resumes and finds that it was replaced ends; until then it can complete no checkpoint and publish
    no end of a job (`store`, `schedule.checkpoint.fence`).
    """
    seen, since_s = None, trio.current_time()
    LOGGER.info("standby: waiting for folder %s", folder)
    while True:
        sign = await in_thread(partial(sign_of_life, folder))
        if sign is None:
            return False
        if sign != seen:
            seen, since_s = sign, trio.current_time()
        elif trio.current_time() - since_s > LEASE_S:
            LOGGER.warning(
                "standby: the JobManager on folder %s has been silent for %g s; taking over", folder, LEASE_S
            )
            return True
        await trio.sleep(_WATCH_S)


async def keep_folder(store: JobStore, in_thread: InThread) -> None:
    """Touches the lock of the folder until cancelled. Raises JobStoreFenced if another JobManager took over."""
    while True:
        try:
            await in_thread(store.renew)
        except JobStoreFenced:
            raise
        except JobStoreError as error:
            LOGGER.error("the lock of the folder cannot be touched, so a standby may take over: %s", error)
        await trio.sleep(RENEW_S)


LOGGER: Final = logging.getLogger("netstack.jobmanager")


ADOPTION_TIMEOUT_S: Final = 30.0
"""How long an adopted TaskManager may still work for another JobManager; longer than its own limit."""


@final
class JobManager:
    """A JobManager; created by `open_jobmanager`. It implements `JobServices` for its jobs.

    Attributes:
        blob_server: serves offloaded data and packages to TaskManagers.
        snapshots: takes snapshots of the cluster.
        server_failures: failures of the page's server and of the metrics' server, which were started again.
    """

    def __init__(
        self, config: JobManagerConfig, address: str, store: JobStore, nursery: trio.Nursery, in_thread: InThread
    ) -> None:
        self.address = address
        self.config = config
        self.slots = SlotManager(config.load_balance, self._demand_of)
        self.taskmanagers = TaskManagers(require_tls=config.require_tls)
        self.blobs = MemoryBlobStore()
        self.datasets = Datasets(
            store, self.taskmanagers, in_thread, most_bytes=config.datasets_bytes, log=LOGGER.warning
        )
        self.parts = JobManagerParts(config, store, self.slots, self.taskmanagers, self.blobs, self.datasets, in_thread)
        self.blob_server = BlobServer(store, self.blobs, in_thread, is_shared=config.is_folder_shared)
        self.dispatcher = Dispatcher(self.parts, self, nursery, self._job_left, self.prune_packages)
        self._nursery = nursery
        self._resources = ResourceManager(self.parts, self.dispatcher, nursery)
        self.snapshots = ClusterSnapshots(self.parts, self.dispatcher.records)
        self.stacks = StackQueries(self.taskmanagers)
        self._uploads = Uploads(store, in_thread, self.dispatcher.packages)
        self._log = LimitedLog(LOGGER, trio.current_time)
        self._registrations = LimitedLog(LOGGER, trio.current_time, per_second=10.0, burst=2000)
        self.server_failures = {"page": 0, "metrics": 0}
        self._session = secrets.token_hex(8)
        self._port = ControlPort(
            Admission(
                config.secret,
                client_secret=config.client_secret,
                max_connections=config.max_connections,
                max_unproven=config.max_unproven,
                timeout_s=config.handshake_timeout_s,
            ),
            LOGGER,
            JOBMANAGER,
            self._facts,
            self._talk,
            handshake_timeout_s=config.handshake_timeout_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
        )

    def count_failure(self, server: str) -> None:
        """Counts a failure of a side server."""
        self.server_failures[server] += 1

    def send(self, taskmanager: str, message: Message) -> None:
        """Sends a message to a TaskManager (`JobServices`)."""
        self.taskmanagers.send(taskmanager, message)

    async def wait_room(self, taskmanager: str) -> None:
        """Waits until the link of a TaskManager has room (`JobServices`)."""
        await trio.lowlevel.checkpoint()
        connected = self.taskmanagers.get(taskmanager)
        if connected is not None:
            await connected.link.wait_room()

    def require(self, job_id: str, total: int) -> None:
        """Sets the number of slots that a job is to be offered in all (`JobServices`)."""
        self._resources.require(job_id, total)

    def _demand_of(self, job_id: str) -> SlotDemand | None:
        master = self.dispatcher.running.get(job_id)
        return None if master is None else master.scheduler.slot_demand()

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """Returns slots that a job no longer needs (`JobServices`)."""
        self._resources.give_back(job_id, slots)

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """Sets the TaskManagers of which a job accepts no more slots (`JobServices`)."""
        self._resources.block(job_id, taskmanagers)

    def heard_s(self, taskmanager: str) -> float | None:
        """Returns when a TaskManager was last heard (`JobServices`)."""
        return self.taskmanagers.heard_s(taskmanager)

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Pings TaskManagers (`JobServices`)."""
        for name in taskmanagers:
            self.taskmanagers.ping(name)

    async def put_committing(self, job_id: str) -> None:
        """Stores that a job begins to commit (`JobServices`)."""
        await self.dispatcher.put_committing(job_id)

    async def keep_dataset(self, dataset: DatasetRecord) -> None:
        """Keeps a dataset of a finished job (`JobServices`)."""
        await self.datasets.put(replace(dataset, owner=self.dispatcher.records[dataset.job_id].stored.owner))

    def describe_slots(self) -> str:
        """Describes the existing slots in words (`JobServices`)."""
        return self.slots.describe()

    async def prune_packages(self) -> None:
        """Removes packages that no job uses."""
        await self._uploads.prune()

    def _job_left(self, job_id: str) -> None:
        """Frees the slots and blobs of an ended job."""
        self.blob_server.job_left(job_id)
        self._resources.job_left(job_id)

    async def serve(self, listener: Listener) -> None:
        """Accepts connections until cancelled."""
        await self._port.serve(listener)

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role == TASKMANAGER:
            await self._serve_taskmanager(self._registered(link, greeting))
        elif greeting.role == CLIENT:
            upload = Upload(self._uploads, link.place.rpartition(":")[0])
            try:
                is_bound = link.is_client_only and not self.config.is_shared
                queries = ClientQueries(
                    self.parts,
                    self.dispatcher,
                    self.snapshots,
                    self.stacks,
                    upload=upload,
                    client=link.peer,
                    is_bound=is_bound,
                )
                await answer_questions(
                    link, queries.answers, self._log, who="this JobManager", max_asks=self.config.max_asks
                )
            finally:
                upload.give_way()
        else:
            raise RequestRefused("this is a JobManager: only TaskManagers and clients may connect to it")

    async def adopt(
        self,
        address: str,
        *,
        secret: Secret | None = None,
        slots: int | None = None,
        connect_timeout_s: float = 10.0,
    ) -> ConnectedTaskManager:
        """Connects to a TaskManager that was started without a JobManager, and registers it here.

        It is lost with its connection, like any other TaskManager, and is not reconnected.

        Args:
            address: `host:port` or URL of its control or only port.
            secret: secret shared with it.
            slots: number of its slots to use; None: all.
            connect_timeout_s: limit for connect, proof and greetings.

        Raises:
            ConnectionLost: the address does not answer, or the TaskManager works for another JobManager.
            AuthenticationFailed: the secrets differ, or only one end has one.
            RequestRefused: the peer runs another release, is not a TaskManager, or has fewer slots, or its address has
                no TLS although that is required.
            RemoteProtocolError: the address is not a control port, or it requires a secret.

        Cancellation: releases the TaskManager.
        """
        for each in address.split(",") if self.config.require_tls else ():
            if "tls" not in url_parts(full_url(each)).scheme.split("+"):
                raise RequestRefused(
                    f"{safe_text(each)} does not use TLS, which this JobManager requires: adopt"
                    " tls+tcp://ADDR:PORT, where the TaskManager listens"
                )
        link, greeting = await dial(
            address,
            role=JOBMANAGER,
            name=self.config.name or socket.gethostname(),
            facts=self._facts(),
            prove=None if secret is None else partial(prove_dialler, secret=secret),
            heartbeat_timeout_s=self.config.heartbeat_timeout_s,
            connect_timeout_s=connect_timeout_s,
        )
        try:
            if greeting.role != TASKMANAGER:
                raise RequestRefused(f"{link.place} is a {greeting.role}, not a TaskManager")
            taskmanager = self._registered(link, greeting, slots)
        except BaseException:
            link.close()
            raise
        scope = trio.CancelScope()
        self._nursery.start_soon(self._serve_adopted, taskmanager, scope)
        try:
            with trio.move_on_after(ADOPTION_TIMEOUT_S + self.config.heartbeat_timeout_s) as patience:
                await link.ping()  # answered once it works for this JobManager
            if patience.cancelled_caught:
                raise ConnectionLost(
                    f"TaskManager {link.peer} did not become available within {ADOPTION_TIMEOUT_S:g} s"
                )
        except ConnectionLost as error:
            scope.cancel()
            raise ConnectionLost(taskmanager.lost_because or str(error)) from None
        except BaseException:
            scope.cancel()
            raise
        return taskmanager

    async def _serve_adopted(self, found: ConnectedTaskManager, scope: trio.CancelScope) -> None:
        link = found.link

        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                await self._serve_taskmanager(found)
                nursery.cancel_scope.cancel()

        try:
            with scope:
                await run_contained(serve, f"the connection to TaskManager {found.location.name}", self._log)
        finally:
            link.fail_pings()
            link.close()

    async def _serve_blobs(self, found: ConnectedTaskManager, blobs: BlobAnswers) -> None:
        if await run_contained(blobs.run, f"sending packages to TaskManager {found.location.name}", self._log):
            found.link.close()

    def _registered(self, link: ControlLink, greeting: Greeting, slots: int | None = None) -> ConnectedTaskManager:
        """Registers a TaskManager; the caller runs `_serve_taskmanager` next."""
        taskmanager = self.taskmanagers.register(link, greeting, slots)
        name = taskmanager.location.name
        self.slots.register(name, taskmanager.slots)
        self.datasets.registered(taskmanager)
        slot_count = counted(taskmanager.slots, "slot")
        text = f"TaskManager {name} registered, at {taskmanager.location.address} with {slot_count}"
        self._registrations.log(logging.INFO, "registered", text)
        return taskmanager

    async def _serve_taskmanager(self, found: ConnectedTaskManager) -> None:
        link, name = found.link, found.location.name
        reason = "the JobManager is stopping"
        blobs = BlobAnswers(link, partial(self.blob_server.answer, name))
        self._nursery.start_soon(self._serve_blobs, found, blobs)
        try:
            self._resources.offer()
            while True:
                message = await link.receive()
                found.heard_s = trio.current_time()
                if isinstance(message, FetchBlob):
                    blobs.enqueue(message)
                else:
                    self._on_taskmanager_message(name, link, message)
        except (ConnectionLost, RemoteProtocolError) as error:
            reason = str(error)
        finally:
            blobs.stop()
            found.lost_because = reason
            self.snapshots.lost(name, reason)
            self.taskmanagers.remove(name)
            self.blob_server.lost(name)
            self.datasets.lost(found.location)
            self._resources.lost(found)
            self._registrations.log(logging.INFO, "lost", f"TaskManager {name} lost: {reason}")
            for master in [*self.dispatcher.running.values()]:
                master.lost(name, reason)
            self._resources.offer()

    def _on_taskmanager_message(self, name: str, link: ControlLink, message: Message) -> None:
        if isinstance(message, BlobKept):
            taskmanager = self.taskmanagers.get(name)
            if taskmanager is not None:
                self.blob_server.kept(name, taskmanager.control_address, message)
            return
        if isinstance(message, Refused):
            raise ConnectionLost(safe_text(message.text, ERROR_CHARACTERS))
        if isinstance(message, Stacks):
            self.stacks.on_answer(name, message)
            return
        if isinstance(message, Statistics):
            try:
                self.snapshots.on_details(name, message.document)
            except ValueError as error:
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME, f"{link.peer} sent malformed details: {error}"
                ) from error
            return
        job_id = getattr(message, "job_id", None)
        if job_id is None:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{link.peer} sent {type(message).__name__}, which TaskManagers do not send",
            )
        master = self.dispatcher.running.get(job_id)
        taskmanager = self.taskmanagers.get(name)
        if master is None or taskmanager is None:
            return
        if isinstance(message, JobOpened):
            self._resources.opened(taskmanager, message.job_id, master)
        elif isinstance(message, JobRefused):
            self._resources.refused(taskmanager, message, master)
        else:
            if isinstance(message, JobClosed):
                taskmanager.jobs.discard(message.job_id)  # it must open the job again before it gets tasks
            master.on_message(name, message, taskmanager.budget.charge(link.message_bytes))

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "session": self._session,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "heartbeat_timeout_s": self.config.heartbeat_timeout_s,
            "name": self.config.name or socket.gethostname(),
            "has_owners": self.config.client_secret is not None and not self.config.is_shared,
        }


@contextmanager
def _temporary_folder() -> Iterator[str]:
    with scratch_folder(prefix="netstack-jobmanager-") as folder:
        yield os.path.join(folder, "jobs")  # the folder's own lock is not the store's


@asynccontextmanager
async def open_jobmanager(config: JobManagerConfig, *, in_thread: InThread = in_thread) -> AsyncIterator[JobManager]:
    """Opens a JobManager that serves while the block runs.

    Raises:
        OSError: the address cannot be bound; the text names it.
        ConfigError: another JobManager uses the folder.
        JobStoreError: the folder cannot be used, or (`JobStoreFenced`, at any time) another JobManager took it over.

    Cancellation, like the end of the block, makes TaskManagers close the jobs; their files stay in the folder, and the
    next JobManager on it continues them.
    """
    with nullcontext(config.folder) if config.folder else _temporary_folder() as folder:
        steal = config.is_standby and await wait_for_folder(folder, in_thread)
        with open_job_store(Path(folder), steal=steal) as store:
            listener = await transport_for(config.listen).listen(config.listen)
            try:
                async with background_tasks() as nursery:
                    manager = JobManager(config, listener.address, store, nursery, in_thread)
                    await manager.datasets.recover()
                    await manager.dispatcher.recover()
                    await manager.prune_packages()
                    nursery.start_soon(manager.serve, listener)
                    nursery.start_soon(manager.snapshots.run)
                    if config.folder is not None:
                        nursery.start_soon(keep_folder, store, in_thread)
                    yield manager
            finally:
                listener.close()
