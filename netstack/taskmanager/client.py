"""A TaskManager from the outside, for whoever looks at it: what it says of itself and its jobs.

Takes: `host:port` of a TaskManager. Gives: `TaskManagerClient`. Work comes from a JobManager only.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import final

import trio

from ..control.codec import Message, Plain
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, TASKMANAGER, ControlLink, dial
from ..control.messages import AskStatistics, Refused
from ..control.reports import Statistics
from ..errors import ConnectionLost, RemoteProtocolError, RequestRefused
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.threads import background_tasks


@final
class TaskManagerClient:
    """A control connection; see `open_client`.

    Attributes:
        address: `host:port` as it was dialled.
        facts: what the TaskManager said of itself; see `TaskManager.facts`.
    """

    def __init__(self, url: str, link: ControlLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self.facts = facts
        self._link = link
        self._tokens = itertools.count(1)
        self._statistics: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._error: ConnectionLost | None = None

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
                self._on_message(await self._link.receive())
        except (ConnectionLost, RemoteProtocolError, RequestRefused) as error:
            self._error = ConnectionLost(f"{self.address}: {error}")
            for waiting in self._statistics.values():
                waiting.close()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise RequestRefused(message.text)
        if isinstance(message, Statistics):
            waiting = self._statistics.pop(message.token, None)
            if waiting is not None:
                waiting.send_nowait(message.document)

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
        name: of this client, for the TaskManager's log; the host's name if not given.
        heartbeat_timeout_s: a TaskManager that is silent for so long is lost; less if it is less patient.
        connect_timeout_s: dialling, proof and greetings together.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or the TaskManager has none.
        RequestRefused: it is another release, or no TaskManager.
        RemoteProtocolError: it is no control port, or one that wants a secret.

    Cancellation, and the end of the block: the connection ends.
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
