"""The client of a TaskManager: reads its statistics.

Takes: `host:port` of a TaskManager. Gives: `TaskManagerClient`. Only a JobManager can send work.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import final

import trio

from ...base.errors import ConnectionLost, RemoteProtocolError, RequestRefused
from ...base.transport import full_url
from ...network.connection.authentication import Secret, prove_dialler
from ...network.waiting.threads import background_tasks
from ..control.codec import Message, Plain
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, TASKMANAGER, ControlLink, dial
from ..control.messages import AskStatistics, Refused
from ..control.reports import Statistics


@final
class TaskManagerClient:
    """A connection to a TaskManager; created by `open_client`.

    Attributes:
        address: the dialled `host:port`.
        facts: facts in the TaskManager's greeting (`TaskManager.facts`).
    """

    def __init__(self, url: str, link: ControlLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self.facts = facts
        self._link = link
        self._tokens = itertools.count(1)
        self._statistics: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._error: ConnectionLost | None = None

    async def statistics(self) -> Plain:
        """Returns the statistics of the TaskManager and its jobs (`TaskManager.statistics`).

        Raises:
            ConnectionLost: the connection is lost.

        Cancellation: a late answer is ignored.
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
            raise ConnectionLost(f"the connection to {self.address} is closed") from None
        finally:
            self._statistics.pop(token, None)

    async def listen(self) -> None:
        """Receives messages until the connection is lost. Called by `open_client`."""
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
class NotATaskManager(RequestRefused):
    """The peer is not a TaskManager."""

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
        secret: secret shared with the TaskManager.
        name: name of this client for the TaskManager's log; empty: the host name.
        heartbeat_timeout_s: a TaskManager that is silent for this long is lost; its own timeout may lower this.
        connect_timeout_s: limit for connect, proof and greetings together.

    Raises:
        ConnectionLost: the address does not answer.
        AuthenticationFailed: the secrets differ, or the TaskManager has none.
        RequestRefused: the peer runs another release, or is not a TaskManager.
        RemoteProtocolError: the address is not a control port, or it requires a secret.

    Cancellation, like the end of the block, closes the connection.
    """
    url = full_url(address)
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
            raise NotATaskManager(f"{url.partition('://')[2]} is a {greeting.role}, not a TaskManager", greeting.role)
        async with background_tasks() as nursery:
            client = TaskManagerClient(url, link, greeting.facts)
            nursery.start_soon(link.run)
            nursery.start_soon(client.listen)
            yield client
    finally:
        link.close()
