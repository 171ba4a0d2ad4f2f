"""One slot of a TaskManager: its jobs, the messages to its process, and the handling of the process's end.

Takes: messages for jobs. Gives: messages of the slot. Its successive processes are `SlotChild`s.

Rules:
- A slot knows a job from the job's first message until the slot has closed it or its process has ended.
- While a slot closes a job, messages of other jobs wait: if the tasks do not stop, the process is killed
  (`cancellation_timeout_s`), which must not affect other jobs.
- A slot without jobs gets a new process, so that no job is affected by what another one did to the interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, final

import trio

from ...base.errors import ErrorCode, NetstackError, RemoteProtocolError
from ...base.text.safe_text import safe_error, safe_repr
from ...schedule.descriptors.shuffle import is_of_job
from ..control.codec import Attempt, Message, Plain
from ..control.messages import (
    AskDetails,
    AskStacks,
    AskStatistics,
    BlobPart,
    CancelTasks,
    CloseJob,
    OpenJob,
    SubmitTasks,
)
from ..control.reports import (
    NO_PLACE,
    FetchBlob,
    JobClosed,
    JobOpened,
    JobRefused,
    PartitionSealed,
    Stacks,
    Statistics,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from .fork_server import ForkServer
from .slot_settings import METRICS_TAKEN, PORT_TAKEN
from .slot_supervision import STOP_S, SlotChild, place_text
from .stacks import Frame

LOGGER: Final = logging.getLogger("netstack.taskmanager")

BLOCKED_S: Final = 2.0
"""A slot whose event loop has not run for this long is blocked."""

ANSWER_S: Final = 1.0
"""Limit for the answer of a slot; a slower slot is left out."""

_START_S: Final = 60.0
_LAST_WORDS_S: Final = 0.5
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class SlotOwner(Protocol):
    """Receives the events of a job in a slot."""

    def on_message(self, slot: int, message: Message) -> None:
        """Handles a message of the slot about the job."""

    def on_closed(self, slot: int, refusal: str, attempts: tuple[Attempt, ...]) -> None:
        """Handles the release of the job in a slot.

        Args:
            slot: index of the slot.
            refusal: why the slot rejected or stopped the job; empty if the close was requested.
            attempts: attempts that had not ended.
        """

    def on_ended(self, slot: int, how: str, attempts: tuple[Attempt, ...], canceled: tuple[Attempt, ...]) -> None:
        """Handles the end of a slot's process, and of the job's attempts in it.

        Args:
            slot: index of the slot.
            how: how the process ended, and where its code was if known.
            attempts: attempts that had not ended and were not being canceled.
            canceled: attempts that were being canceled.
        """

    def on_blocked(self, slot: int, blocked_s: float, where: Plain) -> None:
        """Handles the begin and the end of a block of the slot's event loop (`SlotBlocked`)."""

    async def blob(self, fetch: FetchBlob) -> BlobPart:
        """Returns a part of a blob of the job. Raises `NetstackError` if there is none."""


@final
@dataclass(slots=True, eq=False)
class SlotJob:
    """One job in one slot.

    Attributes:
        owner: receives the events of the slot.
        attempts: attempts that have not ended, with the time of their cancellation request or None.
        closing_s: time of the close request; None before.
        is_sent: whether the process has received the job.
        waiting: messages that were not sent to the process yet.
    """

    opening: OpenJob
    owner: SlotOwner
    attempts: dict[Attempt, float | None] = field(default_factory=dict)
    closing_s: float | None = None
    is_sent: bool = False
    waiting: list[Message] = field(default_factory=list)


@final
class Slot:
    """One slot with its current process.

    Args:
        on_end: called when a process with jobs has ended, with the prefix of its files and the names of its sealed
            files; its other files are garbage.
        another_port: reserves another port for a slot, given its index and the URL whose port is taken.

    Attributes:
        number: index of the slot, from 0.
        metrics: its metrics address as its process reports it; None if it serves no metrics.
        blocked_s: how long its event loop has been blocked; 0 if it is not.
        ready: set once a process has greeted.
    """

    def __init__(
        self,
        number: int,
        url: str,
        memory_bytes: int,
        metrics: str | None,
        server: ForkServer,
        on_end: Callable[[str, frozenset[str]], None],
        another_port: Callable[[int, str], str],
    ) -> None:
        self.number = number
        self.url = url
        self.memory_bytes = memory_bytes
        self.metrics: str | None = None
        self.jobs: dict[str, SlotJob] = {}
        self.blocked_s = 0.0
        self.ready = trio.Event()
        self._metrics = metrics
        self._another_port = another_port
        self._server = server
        self._on_end = on_end
        self._prefix = ""  # of the files of the process
        self._sealed: set[str] = set()
        self._child: SlotChild | None = None  # the process that receives messages
        self._unused: tuple[SlotChild, float] | None = None  # a process that must end, and since when
        self._tokens = 0
        self._answers: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._where: Plain = {}

    def send(self, job_id: str, message: Message) -> None:
        """Sends a message of a job to the process, now or when the process may receive it."""
        job = self.jobs[job_id]
        job.waiting.append(message)
        self._flush()

    def open(self, opening: OpenJob, owner: SlotOwner) -> None:
        """Opens a job in the slot."""
        self.jobs[opening.job_id] = SlotJob(opening, owner, waiting=[opening])
        self._flush()

    def submit(self, job_id: str, attempts: Iterable[Attempt], descriptors: tuple[bytes, ...]) -> None:
        """Submits tasks of an open job."""
        self.jobs[job_id].attempts.update(dict.fromkeys(attempts))
        self.send(job_id, SubmitTasks(job_id, descriptors))

    def cancel(self, job_id: str, attempts: tuple[Attempt, ...]) -> None:
        """Cancels tasks of a job; the process is killed if they do not stop in time."""
        job = self.jobs[job_id]
        for attempt in attempts:
            if job.attempts.get(attempt, 0.0) is None:
                job.attempts[attempt] = trio.current_time()
        self.send(job_id, CancelTasks(job_id, attempts))

    def close(self, job_id: str) -> None:
        """Closes a job; the process is killed if it does not stop in time. Idempotent."""
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
        """Requests statistics or stacks; None without an answer within `ANSWER_S`. Cancellation: drops the answer."""
        child = self._child
        if child is None or self.blocked_s:
            await trio.lowlevel.checkpoint()
            return None
        self._tokens += 1
        token = self._tokens
        send, receive = trio.open_memory_channel[Plain](1)
        self._answers[token] = send
        try:
            child.link.send(make(token))
            with trio.move_on_after(ANSWER_S):
                return await receive.receive()
        except trio.EndOfChannel:  # the process has ended
            pass
        finally:
            self._answers.pop(token, None)
        return None

    async def stack(self) -> tuple[list[Frame], Plain]:
        """Returns the stack of its process (`SlotChild.stack`) and its task (`SlotBlocked.where`)."""
        child = self._child
        if child is None:
            await trio.lowlevel.checkpoint()
            return [], {}
        frames = await child.stack()
        return frames, child.code.located(frames)

    async def run(self) -> None:
        """Runs processes for the slot until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            was_ready = await self._live()
            if was_ready or trio.current_time() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
                continue
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _live(self) -> bool:
        """Runs one process to its end; returns whether it was ever ready."""
        child = SlotChild(self.number)
        greeted, heard_all = trio.Event(), trio.Event()
        self._prefix, self._sealed = f"{secrets.token_hex(4)}-", set()
        try:
            await child.start(self._server, {"url": self.url, "metrics": self._metrics, "prefix": self._prefix})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.read_stacks)
                nursery.start_soon(self._talk, child, nursery, greeted, heard_all)
                code = await self._server.wait_ended(self.number)
                with trio.move_on_after(_LAST_WORDS_S):  # its last messages are still to be read
                    await heard_all.wait()
                nursery.cancel_scope.cancel()
        except BaseException:  # the TaskManager is stopping and reports that itself
            self.jobs.clear()
            raise
        finally:
            self._child = self._unused = None
            await child.close()
        self._ended(child.ended(code))
        if code == PORT_TAKEN:
            if self.ready.is_set():  # JobManagers already use the address
                LOGGER.warning(
                    "slot %d cannot listen at %s: another process uses the port; retrying", self.number, self.url
                )
            else:
                self.url = self._another_port(self.number, self.url)
        if code == METRICS_TAKEN:
            text = f"cannot serve the metrics of slot {self.number} at {self._metrics}: another process uses the port"
            if not self.ready.is_set():
                raise OSError(errno.EADDRINUSE, f"{text}; choose another --metrics, or port 0")
            LOGGER.warning("%s; retrying", text)
        return greeted.is_set()

    async def _talk(self, child: SlotChild, nursery: trio.Nursery, greeted: trio.Event, heard_all: trio.Event) -> None:
        """Receives the messages of a process until it ends."""
        try:
            with trio.move_on_after(_START_S) as start:
                self.metrics = (await child.greet()).get("metrics")
            if start.cancelled_caught:
                child.kill(f"was killed: it did not start within {_START_S:g} s")
                return
            self._child = child
            nursery.start_soon(child.link.run)
            greeted.set()
            self.ready.set()
            self._flush()
            while True:
                self._on_message(await child.link.receive(), child, nursery)
        except Exception as error:  # a malformed message ends this slot only; `_live` reports the end
            heard_all.set()
            await trio.sleep(STOP_S)
            child.kill(f"was killed: its connection to the supervisor failed ({safe_error(error)})")

    def _on_message(self, message: Message, child: SlotChild, nursery: trio.Nursery) -> None:
        if isinstance(message, Statistics | Stacks):
            waiting = self._answers.get(message.token)
            if waiting is not None:
                with contextlib.suppress(trio.WouldBlock):
                    waiting.send_nowait(message.document)
            return
        if isinstance(message, FetchBlob):
            nursery.start_soon(self._send_blob, child, message)
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
                child.code.forget(message.job_id)
                job.owner.on_closed(self.number, refusal, tuple(job.attempts))
                self._flush()
                self._replace_if_unused()
                return
            case TaskFinished() | TaskFailed():
                job.attempts.pop(message.attempt, None)
            case TaskStates(state="canceled"):
                for attempt in message.attempts:
                    job.attempts.pop(attempt, None)
            case PartitionSealed():
                is_its = is_of_job(message.name, message.job_id)
                if not is_its or not re.fullmatch(f"{self._prefix}[0-9]+", message.files):
                    what = f"{safe_repr(message.name, 80)} in {safe_repr(message.files, 80)}"
                    raise RemoteProtocolError(
                        ErrorCode.MALFORMED_FRAME, f"{what} is not a partition of slot {self.number}"
                    )
                self._sealed.add(message.files)
        job.owner.on_message(self.number, message)

    async def _send_blob(self, child: SlotChild, fetch: FetchBlob) -> None:
        jobs = sorted(
            self.jobs, key=lambda job_id: job_id not in fetch.key
        )  # a key of a job's blob contains the job's id
        if not jobs:
            return
        try:
            part = await self.jobs[jobs[0]].owner.blob(fetch)
        except NetstackError as error:
            part = BlobPart(fetch.key, 0, -1, safe_error(error).encode())
        child.link.send(part)

    def _flush(self) -> None:
        """Sends the waiting messages that may be sent."""
        if self._child is None:
            return
        closing = {job_id for job_id, job in self.jobs.items() if job.closing_s is not None}
        for job_id, job in self.jobs.items():
            if closing <= {job_id}:
                waiting, job.waiting = job.waiting, []
                for message in waiting:
                    job.is_sent = True
                    self._child.link.send(message)

    def _replace_if_unused(self) -> None:
        """Replaces the process of a slot without jobs."""
        if not self.jobs and self._child is not None:
            self._unused = self._child, trio.current_time()
            self._child.link.close()
            self._child = None

    def _ended(self, how: str) -> None:
        """Reports the end of the process to its jobs; jobs that it had not received wait for the next process."""
        if self.blocked_s:
            self._set_blocked(0.0, {})
        if self.jobs:
            LOGGER.warning("the process of slot %d %s; starting another one", self.number, how)
            self._on_end(self._prefix, frozenset(self._sealed))
        for job_id, job in list(self.jobs.items()):
            if job.is_sent:
                del self.jobs[job_id]
                lost = tuple(each for each, canceled_s in job.attempts.items() if canceled_s is None)
                canceled = tuple(each for each, canceled_s in job.attempts.items() if canceled_s is not None)
                if job.closing_s is not None:
                    job.owner.on_closed(self.number, "", ())
                else:
                    job.owner.on_ended(self.number, f"its process {how}", lost, canceled)
        for answers in self._answers.values():
            answers.close()

    async def look(self, cancellation_timeout_s: float) -> None:
        """Checks periodically whether the event loop runs, and whether cancelled tasks have stopped."""
        now_s = trio.current_time()
        if self._unused is not None and now_s - self._unused[1] > STOP_S:
            self._unused[0].kill("was killed: it did not end")
        child = self._child
        if child is None or not self.jobs:
            return
        silent_s = child.silent_s
        if silent_s < BLOCKED_S:
            self._where = {}
            if self.blocked_s:
                self._set_blocked(0.0, {})
        else:
            if not self._where:
                _, self._where = await self.stack()
            if self.blocked_s:
                if silent_s - self.blocked_s >= BLOCKED_S:
                    self._set_blocked(silent_s, self._where)
            elif self._where or silent_s >= 2 * BLOCKED_S:  # on a busy machine the first request may time out
                place = place_text(self._where) or NO_PLACE
                LOGGER.warning("slot %d is blocked: its event loop is at %s", self.number, place)
                self._set_blocked(silent_s, self._where)
        asked = [when_s for job in self.jobs.values() for when_s in job.attempts.values() if when_s is not None]
        asked += [job.closing_s for job in self.jobs.values() if job.closing_s is not None]
        if asked and now_s - min(asked) > cancellation_timeout_s:
            _, where = await self.stack()
            place = f", {place_text(where)}" if where else ""
            child.kill(
                f"was killed: its tasks did not stop within {cancellation_timeout_s:g} s of being cancelled{place}"
            )

    def _set_blocked(self, blocked_s: float, where: Plain) -> None:
        self.blocked_s = blocked_s
        for job in self.jobs.values():
            job.owner.on_blocked(self.number, blocked_s, where)
