"""`Subscriber`: receives a stream that Spark writes, in epochs, exactly once.

    with Subscriber("tcp://0.0.0.0:6130", "clicks", folder, resume=my_state.epoch, secret=secret) as subscriber:
        for epoch in subscriber:  # blocks until the next epoch
            for batch in epoch:
                my_state.add(batch)
            my_state.store(epoch=epoch.number + 1)  # the worker's own state, with the number of the next epoch
            subscriber.forget(epoch)

An epoch is a micro-batch of a query (`df.writeStream`), or a whole `df.write`. The worker gets it when Spark has
committed it, without rows of tasks that failed, were killed or ran twice. A committed epoch is on the disk. If Spark's
driver dies and Spark repeats a micro-batch, the Subscriber recognises it by the query's id and the batch's number. With
`resume`, the number that the worker stored with its own state, either end may die at any time; no row is lost or
duplicated.

Rules: blocking; used by one thread at a time. While `max_epochs` are not processed, writers block: back-pressure.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final

import trio

from ..base.config import NetworkConfig
from ..base.errors import ConfigError, RequestRefused
from ..base.ids import ChannelDescriptor
from ..base.text.limited_log import LimitedLog
from ..base.text.safe_text import safe_repr
from ..base.timing.wakeup import Signal
from ..base.transport import Listener, is_private, transport_for
from ..cluster.control.codec import Plain
from ..cluster.control.link import CLIENT, HEARTBEAT_TIMEOUT_S, SUBSCRIBER, ControlLink, Greeting
from ..cluster.control.port import Answers, ControlPort, answer_questions
from ..network.blocking.portal import Portal
from ..network.connection.admission import Admission
from ..network.connection.authentication import Secret
from ..network.environment import NetworkEnvironment, open_network
from ..network.reader import RecordReader
from .epoch_folder import Attempt, EpochFolder

LOGGER: Final = logging.getLogger("netstack.spark")
MAX_STAGING: Final = 64
_HANDSHAKE_S: Final = 10.0


@final
class SubscriberPort:
    """The control port of a Subscriber, which serves writers.

    A task requests `stage` and publishes its rows as a partition, which is read into a file; the answer says that it is
    on the disk. The driver requests `commit` of the named attempts as an epoch when all tasks of a batch have ended, or
    `abort`, which deletes the rows of the batch.

    Credit holds a writer back. Rows are read as fast as the disk takes them, and not at all while `max_epochs` are not
    processed or `MAX_STAGING` attempts are being read. An attempt that fails gets an answer with the error; an attempt
    whose connection ends leaves no file.

    Args:
        name: the stream's name.
        folder: called in threads, one call at a time.
        network: opens gates to writers.
        secret: shared with the writers.
        max_epochs: writers block while this many epochs are not processed.

    Attributes:
        changed: set when an epoch was committed or processed.
    """

    def __init__(
        self, name: str, folder: EpochFolder, network: NetworkEnvironment, *, secret: Secret | None, max_epochs: int
    ) -> None:
        self._name = name
        self._folder = folder
        self._network = network
        self._max_epochs = max_epochs
        self._log = LimitedLog(LOGGER, trio.current_time)
        self._disk = trio.CapacityLimiter(1)
        self._staging = trio.CapacityLimiter(MAX_STAGING)
        self._under_way: dict[trio.CancelScope, Attempt] = {}
        answers: Answers = {"stage": self._stage, "commit": self._commit, "abort": self._abort}
        self._answers = {what: self._of_this_stream(answer) for what, answer in answers.items()}
        self._port = ControlPort(
            Admission(secret, timeout_s=_HANDSHAKE_S),
            LOGGER,
            SUBSCRIBER,
            lambda: {"stream": name},
            self._talk,
            handshake_timeout_s=_HANDSHAKE_S,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        )
        self.changed = Signal()

    async def in_folder(self, action: Callable[[], Any]) -> Any:
        """Runs a call on the folder in a thread; cancellation waits for its end."""
        return await trio.to_thread.run_sync(action, limiter=self._disk)

    async def serve(self, listener: Listener) -> None:
        """Accepts connections until cancelled."""
        await self._port.serve(listener)

    async def _talk(self, link: ControlLink, greeting: Greeting) -> None:
        if greeting.role != CLIENT:
            raise RequestRefused("this is a Subscriber, which accepts writers only: correct the address")
        await answer_questions(link, self._answers, self._log, who="a Subscriber", max_asks=MAX_STAGING)

    def _of_this_stream(self, answer: Callable[[Plain], Awaitable[Plain]]) -> Callable[[Plain], Awaitable[Plain]]:
        async def checked(document: Plain) -> Plain:
            if document.get("stream") != self._name:
                raise ConfigError(
                    f"the Subscriber at {self._network.address} has the stream {self._name!r}, not"
                    f" {safe_repr(document.get('stream'))}: correct the option partition"
                )
            return await answer(document)

        return checked

    async def _stage(self, document: Plain) -> Plain:
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

    async def _commit(self, document: Plain) -> Plain:
        writer, batch = str(document["writer"]), int(document["batch"])
        attempts = [Attempt(writer, batch, int(partition), str(token)) for partition, token in document["attempts"]]
        epoch = await self.in_folder(lambda: self._folder.commit(writer, batch, attempts))
        self.changed.wake()
        return {"epoch": epoch}

    async def _abort(self, document: Plain) -> Plain:
        writer, batch = str(document["writer"]), int(document["batch"])
        for scope, attempt in self._under_way.items():
            if (attempt.writer, attempt.batch) == (writer, batch):
                scope.cancel()
        await self.in_folder(lambda: self._folder.abort(writer, batch))
        return {}

    def _is_committed(self, attempt: Attempt) -> bool:
        return self._folder.is_committed(attempt.writer, attempt.batch)


RecordBatch = Any
_ANYWHERE = "tcp://127.0.0.1:0"  # nothing reads from a Subscriber


@final
@dataclass(frozen=True, slots=True)
class Epoch:
    """A committed epoch; iterates over its Arrow batches, read from the disk each time.

    Attributes:
        number: counted from 0, without gaps.
        writer: the id of the query, or of the `save`.
    """

    number: int
    writer: str
    batch: int
    _folder: EpochFolder = field(repr=False)

    def __iter__(self) -> Iterator[RecordBatch]:
        """The rows, task after task, those of each task in order."""
        return self._folder.read(self.number)


@final
class Subscriber:
    """Receives one stream.

    Args:
        address: the URL to listen at.
        folder: stores the epochs of this stream only; created if missing.
        resume: the first epoch that is not processed, as the worker stored it; None is the first epoch that is kept.
        max_epochs: the most epochs that wait to be processed.
        secret: shared with the writers; None accepts every writer, and needs a loopback address.
        network: buffers and timeouts.

    Raises:
        ConfigError: a number is out of its range, the address is reachable from other hosts and there is no secret, or
            the folder ends before `resume`.
        OSError: the address cannot be bound, or the folder cannot be written.
    """

    def __init__(
        self,
        address: str,
        name: str,
        folder: str | Path,
        *,
        resume: int | None = None,
        max_epochs: int = 16,
        secret: Secret | None = None,
        network: NetworkConfig | None = None,
    ) -> None:
        if max_epochs < 1:
            raise ConfigError(f"max_epochs={max_epochs}; the least is 1")
        if secret is None and not is_private(address):
            raise ConfigError(
                f"{address} is reachable from other hosts, where anyone could write to it: give a secret"
                " (Secret.from_file), and writers the option secretFile; or listen on 127.0.0.1"
            )
        self._folder = EpochFolder(Path(folder), resume)
        self._next = self._folder.processed
        self._name = name

        @asynccontextmanager
        async def open_inside() -> AsyncIterator[tuple[str, SubscriberPort]]:
            listener = await transport_for(address).listen(address)
            try:
                async with open_network(_ANYWHERE, network, secret=secret) as environment:
                    port = SubscriberPort(name, self._folder, environment, secret=secret, max_epochs=max_epochs)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(port.serve, listener)
                        try:
                            yield listener.address, port
                        finally:
                            nursery.cancel_scope.cancel()
            finally:
                listener.close()

        self._portal = Portal(open_inside, f"netstack subscriber {name}")
        self.address: str = self._portal.inside[0]
        """The URL for the writers' option `address`."""
        self._port = self._portal.inside[1]

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Epoch]:
        """Yields epochs as they are committed; never ends."""
        while True:
            yield self.next()

    def next(self, *, timeout_s: float | None = None) -> Epoch:
        """Returns the next epoch; blocks until it is committed.

        Raises:
            TimeoutError: no epoch was committed within `timeout_s`.
            LocalProtocolError: the Subscriber is closed.
        """
        number = self._next

        async def until_committed() -> None:
            while self._folder.next_epoch <= number:
                await self._port.changed.wait()

        self._portal.call(until_committed, timeout_s=timeout_s, what=f"stream {self._name!r}: the next epoch")
        self._next = number + 1
        return Epoch(number, *self._folder.source_of(number), self._folder)

    def forget(self, epoch: Epoch) -> None:
        """Marks an epoch and all before it as processed: deletes their rows, and lets blocked writers continue."""

        async def drop() -> None:
            await self._port.in_folder(lambda: self._folder.forget(epoch.number + 1))
            self._port.changed.wake()

        self._portal.call(drop, timeout_s=None, what="forgetting an epoch")

    def close(self) -> None:
        """Closes the port: writers lose their connections and retry. Idempotent."""
        self._portal.close(clean=True)
