"""A TaskManager from the outside: connect, open jobs, deploy invokables, hear what they say. For benchmarks.

Takes: `host:port` of a TaskManager. Gives: `TaskManagerClient`, and `RemoteJob`s on it (`remote_job`, `remote_task`).

A job that is driven like this has no scheduler: whoever drives it says what runs where. Its vertices are invokables; it
opens an environment of its own with settings of its own, and the TaskManager reserves slots and memory for it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, final
from urllib.parse import urlsplit

import trio

from ..config import NetworkConfig
from ..control.clock import ClockSample, best_sample
from ..control.codec import Plain
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, TASKMANAGER, ControlLink, dial
from ..control.messages import (
    AskStatistics,
    CloseJob,
    JobClosed,
    JobRefused,
    Message,
    OpenJob,
    Refused,
    Statistics,
)
from ..control.routing import check_job_id
from ..errors import ConfigError, ConnectionLost, NetstackError, RemoteProtocolError, RequestRefused
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.background import background_tasks
from .network_settings import config_document
from .remote_job import JobMessage, RemoteJob

CLOCK_SAMPLES: Final = 20

_ANY: Final = ("0.0.0.0", "::")


@final
class TaskManagerClient:
    """A control connection; see `open_client`.

    Attributes:
        address: `host:port` as it was dialled.
        facts: what the TaskManager said of itself; see `TaskManager.facts`.
    """

    def __init__(self, url: str, link: ControlLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self._url = url
        self.facts = facts
        self._link = link
        self._jobs: dict[str, RemoteJob] = {}
        self._tokens = itertools.count(1)
        self._statistics: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._error: NetstackError | None = None

    async def measure_clock(self, samples: int = CLOCK_SAMPLES) -> ClockSample:
        """The TaskManager's CLOCK_MONOTONIC against ours; best while nothing else is on the wire.

        Raises:
            ConnectionLost: the TaskManager is gone.
            ConfigError: not even one sample.

        Cancellation: nothing is left behind.
        """
        if samples < 1:
            raise ConfigError(f"samples={samples}; the least is 1")
        self._check()
        exchanges = []
        for _ in range(samples):
            with trio.move_on_after(self._link.heartbeat_timeout_s) as silence:
                exchanges.append(await self._link.ping())
            self._check()
            if silence.cancelled_caught:
                raise ConnectionLost(f"{self.address} did not answer within {self._link.heartbeat_timeout_s:g} s")
        return best_sample(exchanges)

    async def open_job(
        self,
        job_id: str,
        *,
        name: str,
        slots: int,
        network: NetworkConfig | None,
        slot_timeout_s: float = 2 * HEARTBEAT_TIMEOUT_S,
    ) -> RemoteJob:
        """Reserves slots and memory and opens a network for a job.

        Args:
            job_id: 16 hex digits, the same on every TaskManager of the job.
            name: for people.
            slots: one holds a subtask of every vertex.
            network: settings of the job's own environment, whose `memory_bytes` is reserved; None uses the one that
                jobs share.
            slot_timeout_s: how long to wait for what other jobs hold; a job whose driver died holds it until the
                TaskManager has noticed.

        Raises:
            RequestRefused: not enough slots or memory, or settings that cannot work there.
            ConnectionLost: the TaskManager is gone.

        Cancellation: the job is closed.
        """
        self._check()
        if check_job_id(job_id) in self._jobs:
            raise RequestRefused(
                f"{self.address}: job {job_id} is open over this connection already; choose another id"
            )
        data = self._data_address()
        job = RemoteJob(self._link, job_id, self.address, data)
        document = None if network is None else config_document(network)
        self._link.send(OpenJob(job_id, name, slots, slot_timeout_s, data, document, b""))
        self._jobs[job_id] = job
        try:
            await job.opened()
        except (trio.Cancelled, KeyboardInterrupt):
            self._link.send(CloseJob(job_id))
            raise
        return job

    async def statistics(self) -> Plain:
        """What the TaskManager says of itself and its jobs; see `TaskManager.statistics`.

        Raises:
            ConnectionLost: the TaskManager is gone.

        Cancellation: the answer is ignored when it comes.
        """
        self._check()
        token = next(self._tokens)
        send, receive = trio.open_memory_channel[Plain](1)
        self._statistics[token] = send
        self._link.send(AskStatistics(token))
        try:
            return await receive.receive()
        except trio.EndOfChannel:
            self._check()
            raise ConnectionLost(f"{self.address}: the connection is closed") from None
        finally:
            self._statistics.pop(token, None)

    async def listen(self) -> None:
        """Takes what the TaskManager says, until it is gone. Called by `open_client`."""
        try:
            while True:
                self._heard(await self._link.receive())
        except (ConnectionLost, RemoteProtocolError, RequestRefused) as error:
            self._error = ConnectionLost(f"{self.address}: {error}")
            self._link.give_up()
            for job in self._jobs.values():
                job.gone(self._error)
            for waiting in self._statistics.values():
                waiting.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise RequestRefused(message.text)
        if isinstance(message, Statistics):
            waiting = self._statistics.pop(message.token, None)
            if waiting is not None:
                waiting.send_nowait(message.document)
        elif isinstance(message, JobMessage):
            job = self._jobs.get(message.job_id)
            if job is not None:
                job.heard(message)
                if isinstance(message, JobClosed | JobRefused):
                    del self._jobs[message.job_id]

    def _data_address(self) -> str:
        """Where its data port is, as seen from where it was reached."""
        if not self.facts.get("control"):  # it has one port for everything
            return self._url
        data = urlsplit(str(self.facts.get("data") or ""))
        if not data.port:
            return str(self.facts.get("data"))
        host = self.address.rpartition(":")[0] if data.hostname in _ANY else data.netloc.rpartition(":")[0]
        return f"tcp://{host}:{data.port}"

    def _check(self) -> None:
        if self._error is not None:
            raise ConnectionLost(str(self._error))


@final
class OtherRole(RequestRefused):
    """Whoever answers is no TaskManager.

    Attributes:
        role: what it is.
    """

    def __init__(self, text: str, role: str) -> None:
        super().__init__(text)
        self.role = role


@asynccontextmanager
async def open_client(
    address: str,
    *,
    secret: Secret | None = None,
    name: str = "",
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[TaskManagerClient]:
    """Connects to a TaskManager's control or only port.

    Args:
        address: `host:port`, or a URL.
        secret: shared with the TaskManager.
        name: of this driver, for the TaskManager's log; the host's name if not given.
        heartbeat_timeout_s: a TaskManager that is silent for so long is lost; less if it is less patient.
        connect_timeout_s: dialling, proof and greetings together.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or the TaskManager has none.
        RequestRefused: it is another release, or no TaskManager.
        RemoteProtocolError: it is no control port, or one that wants a secret.

    Cancellation, and the end of the block: the connection ends, and with it every job that was opened over it.
    """
    url = address if "://" in address else f"tcp://{address}"
    link, greeting = await dial(
        url,
        role=CLIENT,
        name=name or socket.gethostname(),
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        heartbeat_timeout_s=heartbeat_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        if greeting.role != TASKMANAGER:
            raise OtherRole(f"{url.partition('://')[2]} is no TaskManager but a {greeting.role}", greeting.role)
        async with background_tasks() as nursery:
            client = TaskManagerClient(url, link, greeting.facts)
            nursery.start_soon(link.run)
            nursery.start_soon(client.listen)
            yield client
    finally:
        link.close()
