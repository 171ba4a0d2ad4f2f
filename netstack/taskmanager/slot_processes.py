"""The slots of a TaskManager as processes: started, watched, killed when they do not stop, and started again.

Takes: a fork server, messages for jobs. Gives: what the slots say about their jobs, and how a slot's process ended.

The TaskManager's own process is the *supervisor*: it registers, shows signs of life and routes messages, and never runs
user code. Each slot serves its data at a port of its own, whose number stays when its process is replaced.

Rules:
- A job is known to a slot from its first message on until the slot has closed it or its process has ended.
- While a job is being closed in a slot, messages of other jobs wait: what does not stop is killed with the process
  (`cancellation_timeout_s`), and that must reach nobody else.
- A slot that has nothing left gets a new process, so that no job meets what another one did to the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from signal import SIGKILL, Signals, pidfd_send_signal
from typing import Final, Protocol, final

import trio

from ..control.build import own_build
from ..control.codec import Attempt, Plain
from ..control.link import JOBMANAGER, ControlLink, full_build
from ..control.messages import (
    AskDetails,
    AskStacks,
    AskStatistics,
    BlobPart,
    CancelTasks,
    CloseJob,
    DropDataset,
    FetchBlob,
    JobClosed,
    JobOpened,
    JobRefused,
    KeepDataset,
    Message,
    OpenJob,
    Stacks,
    Statistics,
    SubmitTasks,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ..errors import ConfigError, NetstackError
from ..parts import import_part
from ..shown import shown_error
from ..transport import url_parts
from .fork_server import ForkedSlot, ForkServer
from .slot_settings import HEARTBEAT, STACK_SIGNAL, SlotSettings
from .stacks import CodeTable, Frame, parse_stack

LOGGER: Final = logging.getLogger("netstack.taskmanager")

BLOCKED_S: Final = 2.0
"""A slot whose event loop has not turned for so long is blocked."""

WATCH_S: Final = 0.5
"""How often the supervisor looks at its slots."""

ANSWER_S: Final = 1.0
"""A slot that has not answered a question by then is left out of the answer."""

STOP_S: Final = 3.0
"""How long a process that is not needed any more may take to remove its files; then it is killed."""

_START_S: Final = 60.0
_STACK_S: Final = 0.5
_STACK_QUIET_S: Final = 0.02
_STACK_BYTES: Final = 1 << 16
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_LAST_PORT: Final = 65_535


class SlotOwner(Protocol):
    """What a slot tells whoever opened a job there."""

    def on_message(self, slot: int, message: Message) -> None:
        """A slot says something about the job."""

    def on_closed(self, slot: int, refusal: str, attempts: tuple[Attempt, ...]) -> None:
        """A slot has nothing of the job any more.

        Args:
            slot: which.
            refusal: why it cannot be there; empty when it was asked to close.
            attempts: that had not ended.
        """

    def on_ended(self, slot: int, how: str, attempts: tuple[Attempt, ...], canceled: tuple[Attempt, ...]) -> None:
        """A slot's process has ended, and all of the job that was there.

        Args:
            slot: which.
            how: how it ended, and where its code was as far as that is known.
            attempts: that had not ended and were to go on.
            canceled: that had not ended and had been asked to.
        """

    def on_blocked(self, slot: int, blocked_s: float, where: Plain) -> None:
        """See `SlotBlocked`."""

    async def blob(self, fetch: FetchBlob) -> BlobPart:
        """A part of a blob of the job's. Raises `NetstackError`: there is none."""


@final
@dataclass(slots=True, eq=False)
class SlotJob:
    """One job in one slot.

    Attributes:
        opening: what opens it.
        owner: is told what happens.
        attempts: those that have not ended, each with the time at which its cancellation was asked for, or None.
        closing_s: when it was asked to close; None before.
        is_sent: whether the process knows of it.
        waiting: messages that the process has not been sent.
    """

    opening: OpenJob
    owner: SlotOwner
    attempts: dict[Attempt, float | None] = field(default_factory=dict)
    closing_s: float | None = None
    is_sent: bool = False
    waiting: list[Message] = field(default_factory=list)


@final
class Slot:
    """One slot, whatever process it has.

    Attributes:
        number: from 0.
        url: where it serves data.
        memory_bytes: for network buffers.
        metrics: where it serves metrics, as it says; None if it does not.
        pid: of its process; None between two.
        jobs: that are there, by id.
        datasets: keys of kept datasets of which a part is there.
        blocked_s: for how long its event loop has not turned; 0 if it turns.
    """

    def __init__(
        self,
        number: int,
        url: str,
        memory_bytes: int,
        metrics: str | None,
        server: ForkServer,
        on_dataset_lost: Callable[[str], None],
    ) -> None:
        self.number = number
        self.url = url
        self.memory_bytes = memory_bytes
        self.metrics: str | None = None
        self.pid: int | None = None
        self.jobs: dict[str, SlotJob] = {}
        self.datasets: set[str] = set()
        self.blocked_s = 0.0
        self.ready = trio.Event()
        self._wanted_metrics = metrics
        self._server = server
        self._on_dataset_lost = on_dataset_lost
        self._link: ControlLink | None = None
        self._process: ForkedSlot | None = None
        self._why_killed = ""
        self._clock: mmap.mmap | None = None
        self._stacks = -1
        self._stack_text = ""
        self._stack_rest = b""
        self._stack_wanted = trio.Lock()
        self._code = CodeTable()
        self._tokens = 0
        self._answers: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._was_ready = False
        self._unused_s: float | None = None
        self._where: Plain = {}
        self._heard_all = trio.Event()

    # For the relay.

    def send(self, job_id: str, message: Message) -> None:
        """Hands a message of a job to the process, now or as soon as it may have it."""
        job = self.jobs[job_id]
        job.waiting.append(message)
        self._flush()

    def open(self, opening: OpenJob, owner: SlotOwner) -> None:
        """A job comes to the slot."""
        self.jobs[opening.job_id] = SlotJob(opening, owner, waiting=[opening])
        self._flush()

    def submit(self, job_id: str, attempts: Iterable[Attempt], descriptors: tuple[bytes, ...]) -> None:
        """Tasks of a job that is here."""
        self.jobs[job_id].attempts.update(dict.fromkeys(attempts))
        self.send(job_id, SubmitTasks(job_id, descriptors))

    def cancel(self, job_id: str, attempts: tuple[Attempt, ...]) -> None:
        """Tasks of a job are to end; the process is killed if they do not in time."""
        job = self.jobs[job_id]
        for attempt in attempts:
            if job.attempts.get(attempt, 0.0) is None:
                job.attempts[attempt] = trio.current_time()
        self.send(job_id, CancelTasks(job_id, attempts))

    def close(self, job_id: str) -> None:
        """A job is to leave the slot; the process is killed if it does not in time. Idempotent."""
        job = self.jobs[job_id]
        if job.closing_s is not None:
            return
        if not job.is_sent:
            del self.jobs[job_id]
            job.owner.on_closed(self.number, "", ())
            return
        job.closing_s = trio.current_time()
        job.waiting = [CloseJob(job_id)]
        self._flush()

    async def ask(self, make: type[AskStatistics] | type[AskDetails] | partial[AskStacks]) -> Plain | None:
        """Asks the process; None when it has not answered within `ANSWER_S`. Cancellation: the answer is dropped."""
        link = self._link
        if link is None or self.blocked_s:
            await trio.lowlevel.checkpoint()
            return None
        self._tokens += 1
        token = self._tokens
        send, receive = trio.open_memory_channel[Plain](1)
        self._answers[token] = send
        try:
            link.send(make(token))
            with trio.move_on_after(ANSWER_S):
                return await receive.receive()
        except trio.EndOfChannel:
            pass
        finally:
            self._answers.pop(token, None)
        return None

    def kill(self, why: str) -> None:
        """Ends the process at once; what follows is what follows any end.

        Args:
            why: told of it instead of the signal.
        """
        if self._process is not None:
            self._why_killed = self._why_killed or why
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(self._process.pidfd, SIGKILL)

    async def stack(self) -> list[Frame]:
        """The stack of the process's main thread, innermost frame first; empty when it cannot be had.

        It is taken by a signal handler in C, so also while user code holds the interpreter.
        """
        async with self._stack_wanted:
            if self._process is None:
                return []
            self._stack_text = ""
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(self._process.pidfd, STACK_SIGNAL)
            before = -1
            with trio.move_on_after(_STACK_S):
                while not self._stack_text or len(self._stack_text) != before:
                    before = len(self._stack_text)
                    await trio.sleep(_STACK_QUIET_S)
            return parse_stack(self._stack_text)

    def located(self, frames: list[Frame]) -> Plain:
        """Which task a stack belongs to, and which line of user code it is in; see `SlotBlocked.where`."""
        return self._code.located(frames)

    # The process.

    async def run(self, settings: SlotSettings) -> None:
        """Keeps a process for the slot, until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            was_ready = await self._live(settings)
            if was_ready or trio.current_time() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
                continue
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _live(self, settings: SlotSettings) -> bool:
        """One process, from its start to its end; whether it was ever ready."""
        ours, theirs = socket.socketpair()
        stacks, stacks_end = os.pipe2(os.O_CLOEXEC)
        shared = os.memfd_create("netstack-slot", os.MFD_CLOEXEC)
        os.ftruncate(shared, mmap.PAGESIZE)
        self._clock = mmap.mmap(shared, mmap.PAGESIZE)
        HEARTBEAT.pack_into(self._clock, 0, time.monotonic_ns())
        self._stacks = stacks
        self._why_killed = self._stack_text = ""
        self._stack_rest = b""
        os.set_blocking(stacks, False)
        self._code = CodeTable()
        stream = import_part("transports._sockets").SocketStream(ours, f"slot {self.number}")
        self._was_ready = False
        self._unused_s = None
        self._heard_all = trio.Event()
        code = 0
        try:
            request = {"url": self.url, "metrics": self._wanted_metrics}
            try:
                self._process = await self._server.fork(self.number, request, [theirs.fileno(), stacks_end, shared])
            finally:
                theirs.close()
                os.close(stacks_end)
                os.close(shared)
            self.pid = self._process.pid
            link = ControlLink(stream, heartbeat_timeout_s=math.inf)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_stacks)
                nursery.start_soon(self._talk, link, nursery)
                code = await self._server.wait_ended(self.number)
                with trio.move_on_after(_STACK_S):  # what it had said before its end is still to be read
                    await self._heard_all.wait()
                nursery.cancel_scope.cancel()
        except trio.Cancelled:  # the TaskManager is stopping: its link says so
            self.jobs.clear()
            self.datasets.clear()
            raise
        finally:
            stream.close()  # which ends a process that still runs
            if self._process is not None:
                with trio.move_on_after(STOP_S, shield=True):
                    await trio.lowlevel.wait_readable(self._process.pidfd)
                os.close(self._process.pidfd)
            self._process = self._link = self.pid = None
            self._drain_stacks()
            os.close(stacks)
            self._ended(code)
        return self._was_ready

    async def _talk(self, link: ControlLink, nursery: trio.Nursery) -> None:
        """All that a process says, until it has ended."""
        try:
            with trio.move_on_after(_START_S) as start:
                greeting = await link.greet(full_build(own_build()), "supervisor", JOBMANAGER, {})
            if start.cancelled_caught:
                self.kill(f"did not start within {_START_S:g} s")
                return
            self.metrics = greeting.facts.get("metrics")
            self._link = link
            nursery.start_soon(link.run)
            self.ready.set()
            self._was_ready = True
            self._flush()
            while True:
                self._heard(await link.receive(), nursery)
        except NetstackError as error:  # its end is told by whoever waits for the process
            self._heard_all.set()
            if self._process is not None:
                await trio.sleep(2 * _STACK_S)
                self.kill(f"no longer speaks to its supervisor ({shown_error(error)})")

    def _heard(self, message: Message, nursery: trio.Nursery) -> None:
        if isinstance(message, Statistics | Stacks):
            waiting = self._answers.get(message.token)
            if waiting is not None:
                with contextlib.suppress(trio.WouldBlock):
                    waiting.send_nowait(message.document)
            return
        if isinstance(message, FetchBlob):
            nursery.start_soon(self._send_blob, message)
            return
        job_id = getattr(message, "job_id", None)
        job = self.jobs.get(job_id) if isinstance(job_id, str) else None
        if job is None:
            return
        match message:
            case JobOpened():
                return
            case JobClosed() | JobRefused():
                refusal = message.text if isinstance(message, JobRefused) else message.reason
                if job.closing_s is not None:
                    refusal = ""
                del self.jobs[message.job_id]
                self._code.forget(message.job_id)
                job.owner.on_closed(self.number, refusal, tuple(job.attempts))
                self._flush()
                self._replace_if_unused()
                return
            case TaskFinished() | TaskFailed():
                job.attempts.pop(message.attempt, None)
            case TaskStates(state="canceled"):
                for attempt in message.attempts:
                    job.attempts.pop(attempt, None)
        job.owner.on_message(self.number, message)

    async def _send_blob(self, fetch: FetchBlob) -> None:
        link = self._link
        for job in list(self.jobs.values()):
            try:
                part = await job.owner.blob(fetch)
            except NetstackError as error:
                part = BlobPart(fetch.key, 0, -1, shown_error(error).encode())
            if link is not None:
                link.send(part)
            return

    def _flush(self) -> None:
        """Sends what may be sent."""
        if self._link is None:
            return
        closing = {job_id for job_id, job in self.jobs.items() if job.closing_s is not None}
        for job_id, job in self.jobs.items():
            if closing <= {job_id}:
                waiting, job.waiting = job.waiting, []
                for message in waiting:
                    job.is_sent = True
                    if isinstance(message, KeepDataset):
                        self.datasets.add(message.key)
                    self._link.send(message)

    def drop_dataset(self, message: Message, key: str) -> None:
        """A dataset is not wanted any more."""
        if key in self.datasets:
            self.datasets.discard(key)
            if self._link is not None:
                self._link.send(message)
            self._replace_if_unused()

    def _replace_if_unused(self) -> None:
        """A process that has served its jobs makes way for a new one."""
        if not self.jobs and not self.datasets and self._link is not None:
            self._unused_s = trio.current_time()
            self._link.close()
            self._link = None

    def _ended(self, code: int) -> None:
        """The process has ended: what was there is over, what had not been sent waits for the next one."""
        how = self._why_killed or how_ended(code)
        frames = parse_stack(self._stack_text)
        where = self._code.located(frames) if frames else {}
        if where.get("file"):
            operator = f"operator {where['operator']!r}, " if where.get("operator") else ""
            how = f"{how} ({operator}{where['file']}:{where['line']} in {where['function']})"
        if self.blocked_s:
            self._set_blocked(0.0, {})
        if self.jobs or self.datasets:
            LOGGER.warning("the process of slot %d %s; another one takes its place", self.number, how)
        for job_id, job in list(self.jobs.items()):
            if job.is_sent:
                del self.jobs[job_id]
                lost = tuple(each for each, canceled_s in job.attempts.items() if canceled_s is None)
                canceled = tuple(each for each, canceled_s in job.attempts.items() if canceled_s is not None)
                if job.closing_s is not None:
                    job.owner.on_closed(self.number, "", ())
                else:
                    job.owner.on_ended(self.number, f"its process {how}", lost, canceled)
        datasets, self.datasets = self.datasets, set()
        for key in datasets:
            self._on_dataset_lost(key)
        for answers in self._answers.values():
            answers.close()

    # The watchdog.

    async def look(self, cancellation_timeout_s: float) -> None:
        """Looks whether the event loop turns, and whether what was to stop has stopped. Called every `WATCH_S`."""
        if self._unused_s is not None and trio.current_time() - self._unused_s > STOP_S:
            self.kill("was killed: it did not end")
        if self._link is None or self._clock is None or not self.jobs:
            return
        silent_s = time.monotonic() - HEARTBEAT.unpack_from(self._clock, 0)[0] / 1e9
        if silent_s >= BLOCKED_S:
            if not self.blocked_s:
                self._where = where = self.located(await self.stack())
                text = f"{where.get('file')}:{where.get('line')}" if where.get("file") else "unknown code"
                LOGGER.warning("slot %d is blocked: its event loop stands at %s", self.number, text)
                self._set_blocked(silent_s, where)
            elif silent_s - self.blocked_s >= BLOCKED_S:
                self._set_blocked(silent_s, self._where)
        elif self.blocked_s:
            self._set_blocked(0.0, {})
        asked = [when_s for job in self.jobs.values() for when_s in job.attempts.values() if when_s is not None]
        asked += [job.closing_s for job in self.jobs.values() if job.closing_s is not None]
        if asked and trio.current_time() - min(asked) > cancellation_timeout_s:
            await self.stack()  # into the text of its end
            self.kill(f"was killed: its tasks did not stop within {cancellation_timeout_s:g} s of being cancelled")

    def _set_blocked(self, blocked_s: float, where: Plain) -> None:
        self.blocked_s = blocked_s
        for job in self.jobs.values():
            job.owner.on_blocked(self.number, blocked_s, where)

    async def _read_stacks(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._stacks)
            if not self._drain_stacks():
                return

    def _drain_stacks(self) -> bool:
        """Reads what the process has written; False at the end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stacks, _STACK_BYTES):
                *lines, self._stack_rest = (self._stack_rest + data).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    if not (text.startswith("{") and self._code.add(text)):
                        self._stack_text = f"{self._stack_text}{text}\n"[-_STACK_BYTES:]
            return False
        return True


@final
class SlotProcesses:
    """All slots of a TaskManager; `run` them.

    Attributes:
        slots: by number.
        settings: of all of them.
        on_dataset_lost: called with the key of a kept dataset when a slot that had a part of it has ended.
    """

    def __init__(self, settings: SlotSettings, server: ForkServer, metrics: str | None) -> None:
        """Reserves the ports of the slots.

        Args:
            settings: of the TaskManager.
            server: forks the processes; closed with this.
            metrics: the address at which slot 0 serves metrics, counted up for the others; None serves none.

        Raises:
            ConfigError: there are not enough ports.
            OSError: a port cannot be bound.
        """
        config = settings.config
        self.settings = settings
        self.on_dataset_lost: Callable[[str], None] = lambda key: None
        self._server = server
        self._reserved: list[socket.socket] = []
        urls = [self._reserve(counted_up(config.listen, 1 + slot)) for slot in range(config.slots)]
        self.slots = [
            Slot(
                number,
                url,
                settings.memory_bytes,
                None if metrics is None else counted_up(metrics, number),
                server,
                self._lose_dataset,
            )
            for number, url in enumerate(urls)
        ]

    async def run(self) -> None:
        """Keeps all slots running, and watches them, until cancelled; then they are killed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._server.run)
                for slot in self.slots:
                    nursery.start_soon(slot.run, self.settings)
                while True:
                    await trio.sleep(WATCH_S)
                    for slot in self.slots:
                        await slot.look(self.settings.config.cancellation_timeout_s)
        finally:
            self.close()

    def _lose_dataset(self, key: str) -> None:
        """A dataset has lost a part: nobody can read it any more, so the other slots drop theirs."""
        for slot in self.slots:
            slot.drop_dataset(DropDataset(key), key)
        self.on_dataset_lost(key)

    async def wait_ready(self) -> None:
        """Waits until every slot has a process that serves."""
        for slot in self.slots:
            await slot.ready.wait()

    def close(self) -> None:
        """Kills all slots and gives their ports back. Idempotent."""
        self._server.close()
        for reserved in self._reserved:
            reserved.close()

    def _reserve(self, url: str) -> str:
        """Takes a port for good: it is bound here and listened at there, since both allow that to each other."""
        parts = url_parts(url)
        if parts.port is None or parts.hostname is None:
            return f"{url}.slot{len(self._reserved)}"  # a path
        family = socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((parts.hostname, parts.port))
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen at {url}, the data port of slot {len(self._reserved) - 1}:"
                f" {os.strerror(error.errno or 0)}; the slots take the ports after the one of --listen",
            ) from error
        host = parts.netloc.rpartition(":")[0]
        return parts._replace(netloc=f"{host}:{reserved.getsockname()[1]}").geturl()


def counted_up(address: str, count: int) -> str:
    """An address with its port counted up; port 0 stays 0.

    Raises:
        ConfigError: there is no such port.
    """
    full = address if "://" in address else f"tcp://{address}"
    parts = url_parts(full)
    if not parts.port:
        return address
    if parts.port + count > _LAST_PORT:
        raise ConfigError(
            f"{address}: the slots take the ports behind {parts.port}, and there is none behind {_LAST_PORT}"
        )
    host = parts.netloc.rpartition(":")[0]
    counted = parts._replace(netloc=f"{host}:{parts.port + count}").geturl()
    return counted if "://" in address else counted.removeprefix("tcp://")


def how_ended(code: int) -> str:
    """How a process ended, by its exit code as `os.waitstatus_to_exitcode` gives it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by {name}" + (" (perhaps by the system, for want of memory)" if name == "SIGKILL" else "")
