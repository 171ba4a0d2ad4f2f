"""The JobManager: a port for TaskManagers and clients, one JobMaster for each job, a folder that survives it.

Takes: addresses, a secret, a folder. Gives: `open_jobmanager`, which serves until it is cancelled.

TaskManagers dial in and say how many slots they have, or are dialled (`JobManager.adopt`); they are watched by the
signs of life of their links. A job gets slots in the order of submission. What was submitted is in the folder before
anybody learns of it; after a kill the next JobManager on the folder goes on with every job that had not ended, from its
newest checkpoint.

Rules: what one connection says ends that connection at most. A job that breaks in here fails, and the others go on.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from ..control.blob_answers import BlobAnswers
from ..control.codec import Message
from ..control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, dial
from ..control.messages import CloseJob, OpenJob, Refused
from ..control.reports import BlobKept, FetchBlob, JobClosed, JobOpened, JobRefused, Stacks, Statistics
from ..errors import (
    ConnectionLost,
    ErrorCode,
    RemoteProtocolError,
    RequestRefused,
)
from ..runtime.admission import Admission
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.control_port import ERROR_CHARACTERS, ControlPort, answer_questions
from ..runtime.threads import InThread, background_tasks, in_thread
from ..schedule.descriptors.blob_store import MemoryBlobStore
from ..schedule.slots.slots import PhysicalSlot, SlotDemand
from ..shown import shown_text
from ..transport import Listener, transport_for
from ..version import __version__
from .blobs import BlobServer, Upload, Uploads
from .config import JobManagerConfig
from .datasets import DatasetRecord, Datasets
from .job_master import JobMaster
from .jobs import Jobs
from .queries import ClientQueries
from .slots import ClusterSlots
from .stacks import StackQueries
from .standby import keep_folder, wait_for_folder
from .store import JobStore, open_job_store
from .taskmanagers import ConnectedTaskManager, TaskManagers
from .watch import ClusterWatch

LOGGER: Final = logging.getLogger("netstack.jobmanager")

BARRED_S: Final = 10.0
"""A TaskManager that has refused a job is not asked again for so long."""

ORDER_PATIENCE_S: Final = 0.5
"""How long the slots of one TaskManager wait for those of others that were asked before it."""

ADOPTION_TIMEOUT_S: Final = 30.0
"""How long a TaskManager that is adopted may work for another JobManager before: longer than it waits itself."""

MEMORY_TIMEOUT_S: Final = 30.0
"""How long a TaskManager waits until others give network memory back that a job needs."""


@final
class JobManager:
    """Made by `open_jobmanager` (it is the `Cluster` of its jobs).

    Attributes:
        config: its settings.
        address: URL that was really bound.
        slots: who has which slot.
        taskmanagers: those that are there.
        blob_server: sends TaskManagers what was offloaded, and packages.
        datasets: what jobs have left.
        jobs: all jobs, also those that have ended.
        store: its folder.
        watch: looks at all of it.
    """

    def __init__(
        self, config: JobManagerConfig, address: str, store: JobStore, nursery: trio.Nursery, in_thread: InThread
    ) -> None:
        self.config = config
        self.address = address
        self.store = store
        self.slots = ClusterSlots(config.load_balance, self._demand_of)
        self.taskmanagers = TaskManagers(require_tls=config.require_tls)
        self.blobs = MemoryBlobStore()
        self.blob_server = BlobServer(store, self.blobs, in_thread, is_shared=config.is_folder_shared)
        self.datasets = Datasets(
            store, self.taskmanagers, in_thread, most_bytes=config.datasets_bytes, log=LOGGER.warning
        )
        self.jobs = Jobs(self, nursery, in_thread)
        self.in_thread = in_thread
        self._nursery = nursery
        self.watch = ClusterWatch(self)
        self.stacks = StackQueries(self)
        self._uploads = Uploads(store, in_thread, self.jobs.packages)
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

    # For jobs (`Cluster`).

    def send(self, taskmanager: str, message: Message) -> None:
        """Implements `Cluster.send`."""
        self.taskmanagers.send(taskmanager, message)

    async def wait_room(self, taskmanager: str) -> None:
        """Implements `Cluster.wait_room`."""
        await trio.lowlevel.checkpoint()
        connected = self.taskmanagers.get(taskmanager)
        if connected is not None:
            await connected.link.wait_room()

    def require(self, job_id: str, missing: int) -> None:
        """Implements `Cluster.require`."""
        under_way = sum(len(taskmanager.opening.get(job_id, ())) for taskmanager in self.taskmanagers.all())
        self.slots.require(job_id, max(0, missing - under_way))
        self.offer()

    def _demand_of(self, job_id: str) -> SlotDemand | None:
        master = self.jobs.running.get(job_id)
        return None if master is None else master.scheduler.slot_demand()

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """Implements `Cluster.give_back`."""
        for slot in slots:
            self.slots.give_back(job_id, slot.location.taskmanager, slot.index)
        self.offer()

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """Implements `Cluster.block`."""
        self.slots.block(job_id, taskmanagers)
        self.offer()

    def heard_s(self, taskmanager: str) -> float | None:
        """Implements `Cluster.heard_s`."""
        return self.taskmanagers.heard_s(taskmanager)

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Implements `Cluster.ask_for_life`."""
        for name in taskmanagers:
            self.taskmanagers.ping(name)

    async def put_committing(self, job_id: str) -> None:
        """Implements `Cluster.put_committing`."""
        await self.jobs.put_committing(job_id)

    async def keep_dataset(self, dataset: DatasetRecord) -> None:
        """Implements `Cluster.keep_dataset`."""
        await self.datasets.put(dataset)

    def describe_slots(self) -> str:
        """Implements `Cluster.describe_slots`."""
        return self.slots.describe()

    def offer(self) -> None:
        """Gives free slots to jobs that lack some."""
        for offer in self.slots.offers():
            master = self.jobs.running.get(offer.job_id)
            taskmanager = self.taskmanagers.get(offer.taskmanager)
            if master is None or taskmanager is None:
                continue
            if offer.job_id in taskmanager.opening:
                taskmanager.opening[offer.job_id] += offer.slots
            elif offer.job_id in taskmanager.jobs:
                master.offered(taskmanager.location, offer.slots)
            else:
                taskmanager.opening[offer.job_id] = offer.slots
                job = self.jobs.records[offer.job_id]
                taskmanager.link.send(
                    OpenJob(
                        offer.job_id,
                        master.name,
                        MEMORY_TIMEOUT_S,
                        taskmanager.location.address,
                        job.network,
                        job.information,
                    )
                )

    def _opened(self, found: ConnectedTaskManager, job_id: str, master: JobMaster) -> None:
        """A TaskManager has made room for a job: now its slots are of use."""
        found.jobs.add(job_id)
        if all(job_id in each.jobs or job_id not in each.opening for each in self.taskmanagers.all()):
            self._offer_opened(job_id, master)
        else:
            self._nursery.start_soon(self._offer_later, job_id, master)

    async def _offer_later(self, job_id: str, master: JobMaster) -> None:
        await trio.sleep(ORDER_PATIENCE_S)
        self._offer_opened(job_id, master)

    def _offer_opened(self, job_id: str, master: JobMaster) -> None:
        """In the order of registration, which decides between places that are equally good: what the plan says."""
        if self.jobs.running.get(job_id) is not master:
            return
        for taskmanager in self.taskmanagers.all():
            if job_id in taskmanager.jobs and (slots := taskmanager.opening.pop(job_id, ())):
                master.offered(taskmanager.location, slots)

    def _refused(self, found: ConnectedTaskManager, refusal: JobRefused, master: JobMaster) -> None:
        """A TaskManager does not take a job: others get its slots, and it is asked again after a while."""
        self.slots.missed(refusal.job_id, len(found.opening.pop(refusal.job_id, ())))
        found.jobs.discard(refusal.job_id)
        master.refused(found.location.name, refusal.text)
        self.slots.bar(refusal.job_id, found.location.name)
        self._offer_opened(refusal.job_id, master)
        self._nursery.start_soon(self._ask_again, refusal.job_id, found.location.name)
        self.offer()

    async def _ask_again(self, job_id: str, taskmanager: str) -> None:
        await trio.sleep(BARRED_S)
        self.slots.unbar(job_id, taskmanager)
        self.offer()

    async def prune_packages(self) -> None:
        """Removes packages that no job has named, some time after they came."""
        await self._uploads.prune()

    def job_left(self, job_id: str) -> None:
        """A job has ended: its slots and blobs are free."""
        self.slots.job_left(job_id)
        for taskmanager in self.taskmanagers.all():
            taskmanager.jobs.discard(job_id)
            if taskmanager.opening.pop(job_id, None) is not None:  # the job never knew of it
                taskmanager.link.send(CloseJob(job_id))
        self.blob_server.job_left(job_id)
        self.offer()

    # Connections.

    async def serve(self, listener: Listener) -> None:
        """Accepts until cancelled."""
        await self._port.serve(listener)

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role == TASKMANAGER:
            await self._serve_taskmanager(self._registered(link, greeting))
        elif greeting.role == CLIENT:
            upload = Upload(self._uploads, link.place.rpartition(":")[0])
            try:
                is_bound = link.is_client_only and not self.config.is_shared
                answers = ClientQueries(self, upload, link.peer, is_bound=is_bound).answers
                await answer_questions(link, answers, LOGGER, who="this JobManager", max_asks=self.config.max_asks)
            finally:
                upload.give_way()
        else:
            raise RequestRefused("this is a JobManager: TaskManagers and clients dial it")

    async def adopt(
        self,
        address: str,
        *,
        secret: Secret | None = None,
        slots: int | None = None,
        connect_timeout_s: float = 10.0,
        adoption_timeout_s: float = ADOPTION_TIMEOUT_S,
    ) -> ConnectedTaskManager:
        """Dials a TaskManager that was started without a JobManager, and has it work for this one from now on.

        It is lost when its link is, like any other, and is not dialled again.

        Args:
            address: `host:port` or URL of its control or only port.
            secret: shared with it.
            slots: how many of its slots are used; None: all.
            connect_timeout_s: for dialling, proof and greetings.
            adoption_timeout_s: how long it may work for another JobManager until then.

        Raises:
            ConnectionLost: nobody answers, or it works for another JobManager; the text says which.
            AuthenticationFailed: the secrets differ, or only one end has one.
            RequestRefused: it is another release, no TaskManager, or has fewer slots.
            RemoteProtocolError: it is no control port, or one that wants a secret.

        Cancellation: it is let go.
        """
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
                raise RequestRefused(f"{link.place} is no TaskManager but a {greeting.role}")
            taskmanager = self._registered(link, greeting, slots)
        except BaseException:
            link.close()
            raise
        scope = trio.CancelScope()
        self._nursery.start_soon(self._serve_adopted, taskmanager, scope)
        try:
            with trio.move_on_after(adoption_timeout_s + self.config.heartbeat_timeout_s) as patience:
                await link.ping()  # answered when it works for us
            if patience.cancelled_caught:
                raise ConnectionLost(f"TaskManager {link.peer} did not begin to work within {adoption_timeout_s:g} s")
        except ConnectionLost as error:
            scope.cancel()
            raise ConnectionLost(taskmanager.lost_because or str(error)) from None
        except BaseException:
            scope.cancel()
            raise
        return taskmanager

    async def _serve_adopted(self, found: ConnectedTaskManager, scope: trio.CancelScope) -> None:
        link = found.link
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.run)
                    await self._serve_taskmanager(found)
                    nursery.cancel_scope.cancel()
        finally:
            link.fail_pings()
            link.close()

    def _registered(self, link: ControlLink, greeting: Greeting, slots: int | None = None) -> ConnectedTaskManager:
        """A TaskManager is there; `_serve_taskmanager` follows."""
        taskmanager = self.taskmanagers.register(link, greeting, slots)
        name = taskmanager.location.name
        self.slots.register(name, taskmanager.slots)
        self.datasets.came(taskmanager)
        LOGGER.info(
            "TaskManager %s is here, at %s with %d slots", name, taskmanager.location.address, taskmanager.slots
        )
        return taskmanager

    async def _serve_taskmanager(self, found: ConnectedTaskManager) -> None:
        link, name = found.link, found.location.name
        reason = "the JobManager is stopping"
        blobs = BlobAnswers(link, partial(self.blob_server.answer, name))
        self._nursery.start_soon(blobs.run)
        try:
            self.offer()
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
            self.watch.lost(name, reason)
            self.taskmanagers.remove(name)
            self.blob_server.lost(name)
            self.datasets.lost(found.location)
            self.slots.lose(name)
            for job_id, slots in found.opening.items():
                self.slots.missed(job_id, len(slots))
            LOGGER.info("TaskManager %s has gone: %s", name, reason)
            for master in [*self.jobs.running.values()]:
                master.lost(name, reason)
            self.offer()

    def _on_taskmanager_message(self, name: str, link: ControlLink, message: Message) -> None:
        if isinstance(message, BlobKept):
            taskmanager = self.taskmanagers.get(name)
            if taskmanager is not None:
                self.blob_server.kept(name, taskmanager.control_address, message)
            return
        if isinstance(message, Refused):
            raise ConnectionLost(shown_text(message.text, ERROR_CHARACTERS))
        if isinstance(message, Stacks):
            self.stacks.on_answer(name, message)
            return
        if isinstance(message, Statistics):
            try:
                self.watch.on_details(name, message.document)
            except ValueError as error:
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME, f"{link.peer} told details that cannot be read: {error}"
                ) from error
            return
        job_id = getattr(message, "job_id", None)
        if job_id is None:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{link.peer} sent what a TaskManager does not say: {type(message).__name__}",
            )
        master = self.jobs.running.get(job_id)
        taskmanager = self.taskmanagers.get(name)
        if master is None or taskmanager is None:
            return
        if isinstance(message, JobOpened):
            self._opened(taskmanager, message.job_id, master)
        elif isinstance(message, JobRefused):
            self._refused(taskmanager, message, master)
        else:
            if isinstance(message, JobClosed):
                taskmanager.jobs.discard(message.job_id)  # it is asked to open it again before it gets tasks again
            master.on_message(name, message)

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


@asynccontextmanager
async def open_jobmanager(config: JobManagerConfig, *, in_thread: InThread = in_thread) -> AsyncIterator[JobManager]:
    """Opens a JobManager that serves while the block runs.

    Args:
        config: how it serves.
        in_thread: runs what blocks.

    Raises:
        OSError: the address cannot be bound; the text names it.
        ConfigError: a setting cannot work, or another JobManager holds the folder.
        JobStoreError: the folder cannot be used, or (`JobStoreFenced`, at any time) another one has taken it over.

    Cancellation, and the end of the block: TaskManagers drop the jobs; in the folder these stay, and run on when
    another JobManager is opened on it.
    """
    with tempfile.TemporaryDirectory(prefix="netstack-jobmanager-") as temporary:
        folder = config.folder or temporary
        steal = config.is_standby and await wait_for_folder(folder, in_thread)
        with open_job_store(Path(folder), steal=steal) as store:
            listener = await transport_for(config.listen).listen(config.listen)
            try:
                async with background_tasks() as nursery:
                    manager = JobManager(config, listener.address, store, nursery, in_thread)
                    await manager.datasets.recover()
                    await manager.jobs.recover()
                    await manager.prune_packages()
                    nursery.start_soon(manager.serve, listener)
                    nursery.start_soon(manager.watch.run)
                    if config.folder is not None:
                        nursery.start_soon(keep_folder, store, in_thread)
                    yield manager
            finally:
                listener.close()
