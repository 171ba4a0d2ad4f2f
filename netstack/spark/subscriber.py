"""A stream worker's end of a stream that Spark writes: epochs, each handed out until the worker says it is processed.

Takes: an address, a folder. Gives: epochs of Arrow batches.

    with Subscriber("tcp://0.0.0.0:6130", "clicks", folder, resume=my_state.epoch, secret=secret) as subscriber:
        for epoch in subscriber:  # waits for the next
            for batch in epoch:
                my_state.add(batch)
            my_state.store(epoch=epoch.number + 1)  # the worker's own state, with what is to come next
            subscriber.forget(epoch)

An epoch is a micro-batch of a query (`df.writeStream`), or all of a `df.write`. It is handed out when Spark has
committed it, whole: rows of tasks that failed, were killed or ran twice are not in it. What was committed is on the
disk; a micro-batch that Spark makes again because its driver died is recognised by query and number. So with `resume`,
the number that the worker stored beside its own state, either end may die at any time: nothing is lost or there twice.

Rules: blocking; used by one thread at a time. While `max_epochs` are not processed writers wait: that is back-pressure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, final

import trio

from ..blocking.portal import Portal
from ..config import NetworkConfig
from ..errors import ConfigError
from ..runtime.authentication import Secret
from ..runtime.network_environment import open_network
from ..transport import is_private, transport_for
from .epoch_folder import EpochFolder
from .subscriber_port import SubscriberPort

RecordBatch = Any
_ANYWHERE = "tcp://127.0.0.1:0"  # nobody reads from a Subscriber


@final
@dataclass(frozen=True, slots=True)
class Epoch:
    """What was committed at once; iterates over its Arrow batches, from the disk, any number of times.

    Attributes:
        number: of the epoch; they are counted from 0, without gaps.
        writer: the query's id, or that of one `save`.
        batch: the micro-batch.
    """

    number: int
    writer: str
    batch: int
    _folder: EpochFolder = field(repr=False)

    def __iter__(self) -> Iterator[RecordBatch]:
        """Its rows: those of each task in their order, task after task."""
        return self._folder.read(self.number)


@final
class Subscriber:
    """Receives one stream.

    Args:
        address: where writers find it.
        name: of the stream.
        folder: keeps epochs, of this stream alone; made if it is not there.
        resume: the first epoch that is not processed, as the worker stored it; None is the first that is kept.
        max_epochs: so many wait here at most.
        secret: shared with the writers; None lets everybody in, and needs a loopback address.
        network: buffers and timeouts.

    Raises:
        ConfigError: a number that cannot be, an address that others reach and no secret, or a folder that does not
            reach as far as `resume`.
        OSError: the address cannot be bound, or the folder not written.
    """

    def __init__(
        self,
        address: str,
        name: str,
        folder: Path,
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
                f"{address} can be reached from other hosts, and whoever reaches it says what is read and stored: give"
                " a secret (Secret.from_file), and writers the option secretFile; or listen on 127.0.0.1"
            )
        self._folder = EpochFolder(folder, resume)
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
        """The URL of the writers' option `address`."""
        self._port = self._portal.inside[1]

    def __enter__(self) -> Subscriber:
        """Itself, open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def __iter__(self) -> Iterator[Epoch]:
        """Epochs as they are committed; never ends."""
        while True:
            yield self.next()

    def next(self, *, timeout_s: float | None = None) -> Epoch:
        """The next epoch; waits until it is committed.

        Raises:
            TimeoutError: it was not within `timeout_s`.
            LocalProtocolError: closed.
        """
        number = self._next

        async def until_committed() -> None:
            while self._folder.next_epoch <= number:
                await self._port.changed.wait()

        self._portal.call(until_committed, timeout_s=timeout_s, what=f"stream {self._name!r}: the next epoch")
        self._next = number + 1
        return Epoch(number, *self._folder.source_of(number), self._folder)

    def forget(self, epoch: Epoch) -> None:
        """It is processed, and so are all before it: their rows are dropped, and writers go on."""

        async def drop() -> None:
            await self._port.in_folder(lambda: self._folder.forget(epoch.number + 1))
            self._port.changed.wake()

        self._portal.call(drop, timeout_s=None, what="forgetting an epoch")

    def close(self) -> None:
        """Closes the port: writers lose their connection and try again. Idempotent."""
        self._portal.close(clean=True)
