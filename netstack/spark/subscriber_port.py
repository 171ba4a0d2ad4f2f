"""The port of a Subscriber: writers say where their rows are, which are fetched; drivers commit.

Takes: connections of control. Gives: rows of attempts in an `EpochFolder`, epochs when they are committed.

| question | asked by | does |
|---|---|---|
| `stage` | a task that has a partition with its rows | reads it through a gate, into a file; answered when that is on the disk |
| `commit` | the driver, when all tasks of a batch are done | makes an epoch of the attempts that it names |
| `abort` | the driver, when one of them failed | drops what was sent |

Rules: credit is what holds a writer back: rows are read as fast as the disk takes them, and not at all while
`max_epochs` are not processed, or as many attempts as `MAX_STAGING` are under way. What goes wrong with an attempt is its
own answer; an attempt whose connection ends leaves nothing.
"""  # noqa: E501 - a table's rows

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, final

import trio

from ..control.build import own_build
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, SUBSCRIBER, ControlLink, check_release, full_build
from ..control.messages import Answer, Ask, Refusal
from ..control.routing import read_route
from ..errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    NetstackError,
    RemoteProtocolError,
    RequestRefused,
)
from ..ids import ChannelDescriptor
from ..runtime.admission import Admission
from ..runtime.authentication import Secret
from ..runtime.causes import root_cause, told
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.record_reader import RecordReader
from ..runtime.signal import Signal
from ..shown import shown
from ..transport import ByteStream, Listener
from .epoch_folder import Attempt, EpochFolder

LOGGER: Final = logging.getLogger("netstack.spark")
MAX_STAGING: Final = 64
_HANDSHAKE_S: Final = 10.0

Document = dict[str, Any]


@final
class SubscriberPort:
    """Serves writers.

    Args:
        name: of the stream.
        folder: used in threads, one call at a time.
        network: opens gates to writers.
        secret: shared with them.
        max_epochs: rows of further ones wait with their writers while so many are not processed.

    Attributes:
        changed: woken when an epoch was committed or processed.
    """

    def __init__(
        self, name: str, folder: EpochFolder, network: NetworkEnvironment, *, secret: Secret | None, max_epochs: int
    ) -> None:
        self._name = name
        self._folder = folder
        self._network = network
        self._max_epochs = max_epochs
        self._admission = Admission(secret, timeout_s=_HANDSHAKE_S)
        self._disk = trio.CapacityLimiter(1)
        self._staging = trio.CapacityLimiter(MAX_STAGING)
        self._under_way: dict[trio.CancelScope, Attempt] = {}
        self._answers: Mapping[str, Callable[[Document], Awaitable[Document]]] = {
            "stage": self._stage,
            "commit": self._commit,
            "abort": self._abort,
        }
        self.changed = Signal()

    async def in_folder(self, action: Callable[[], Any]) -> Any:
        """Does something with the folder, in a thread; cancellation waits for its end."""
        return await trio.to_thread.run_sync(action, limiter=self._disk)

    async def serve(self, listener: Listener) -> None:
        """Accepts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._handle, await listener.accept())

    async def _handle(self, stream: ByteStream) -> None:
        try:
            await self._admission.admit(stream)
        except AuthenticationFailed as error:
            LOGGER.warning("%s was refused: %s", stream.peer, error)
            return
        try:
            await self._greet(stream)
        except trio.TooSlowError:
            LOGGER.warning("%s did not say what it wants within %g s", stream.peer, _HANDSHAKE_S)
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            if not isinstance(root, ConnectionLost):  # they go when they have their answer
                LOGGER.warning("%s: %s", stream.peer, told(root))
        finally:
            stream.close()
            self._admission.left()

    async def _greet(self, stream: ByteStream) -> None:
        link = ControlLink(stream, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S)
        with trio.fail_after(_HANDSHAKE_S):
            if await read_route(stream) is not None:
                raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"{stream.peer} has data for a Subscriber")
            build = full_build(own_build())
            greeting = await link.greet(build, socket.gethostname(), SUBSCRIBER, {"stream": self._name})
        try:
            check_release(greeting, build, link.peer)
        except RequestRefused as refusal:
            await link.refuse(str(refusal))
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            if greeting.role != CLIENT:
                await link.refuse("this is a Subscriber: writers dial it")
            else:
                while True:  # until the connection ends, and with it what it has asked for
                    message = await link.receive()
                    if not isinstance(message, Ask):
                        raise RemoteProtocolError(
                            ErrorCode.UNEXPECTED_FRAME, f"{link.peer} sent {type(message).__name__} to a Subscriber"
                        )
                    nursery.start_soon(self._answer, link, message)
            nursery.cancel_scope.cancel()

    async def _answer(self, link: ControlLink, ask: Ask) -> None:
        try:
            answer = self._answers.get(ask.what)
            if answer is None:
                raise ConfigError(f"a Subscriber knows no question {shown(ask.what)}")
            if ask.document.get("stream") != self._name:
                raise ConfigError(
                    f"the Subscriber at {self._network.address} has the stream {self._name!r}, not"
                    f" {shown(ask.document.get('stream'))}: correct the option partition"
                )
            message: Answer | Refusal = Answer(ask.token, await answer(ask.document))
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            message = Refusal(ask.token, str(root) if isinstance(root, NetstackError) else told(root))
        link.send(message)

    # The questions.

    async def _stage(self, document: Document) -> Document:
        writer, batch, partition, token = document["attempt"]
        attempt = Attempt(str(writer), int(batch), int(partition), str(token))
        channel = ChannelDescriptor(str(document["address"]), str(document["partition_id"]), 0)
        while self._folder.waiting >= self._max_epochs and not self._is_committed(attempt):
            await self.changed.wait()
        if self._is_committed(attempt):
            return {"is_committed": True, "rows": 0}
        rows = 0
        with trio.CancelScope() as scope:
            self._under_way[scope] = attempt
            try:
                async with self._staging:
                    rows = await self._fetch(attempt, channel)
            finally:
                del self._under_way[scope]
        if scope.cancelled_caught:
            raise RequestRefused(f"batch {attempt.batch} was aborted")
        return {"is_committed": False, "rows": rows}

    async def _fetch(self, attempt: Attempt, channel: ChannelDescriptor) -> int:
        gate = await self._network.open_gate((channel,))
        reader: RecordReader[Any] = RecordReader(gate, format="arrow")
        try:
            with self._folder.staged(attempt) as staged:
                while (batches := await reader.next_records()) is not None:
                    for batch in batches:
                        await trio.to_thread.run_sync(staged.write, batch)
                await trio.to_thread.run_sync(staged.finish)
                return staged.rows
        finally:
            reader.close()

    async def _commit(self, document: Document) -> Document:
        writer, batch = str(document["writer"]), int(document["batch"])
        attempts = [Attempt(writer, batch, int(partition), str(token)) for partition, token in document["attempts"]]
        epoch = await self.in_folder(lambda: self._folder.commit(writer, batch, attempts))
        self.changed.wake()
        return {"epoch": epoch}

    async def _abort(self, document: Document) -> Document:
        writer, batch = str(document["writer"]), int(document["batch"])
        for scope, attempt in self._under_way.items():
            if (attempt.writer, attempt.batch) == (writer, batch):
                scope.cancel()
        await self.in_folder(lambda: self._folder.abort(writer, batch))
        return {}

    def _is_committed(self, attempt: Attempt) -> bool:
        return self._folder.is_committed(attempt.writer, attempt.batch)
