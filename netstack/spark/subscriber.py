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

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, final

import trio

from ..base.config import NetworkConfig
from ..base.errors import ConfigError
from ..base.transport import is_private, transport_for
from ..network.blocking.portal import Portal
from ..network.connection.authentication import Secret
from ..network.environment import open_network
from .epoch_folder import EpochFolder
from .subscriber_port import SubscriberPort

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
