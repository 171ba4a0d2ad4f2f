"""RecordReader and ArrayReader for asyncio: much is fetched at a time, since each way through the door costs the same.

Takes: a gate of `aio.NetworkEnvironment`. Gives: records or arrays in order per channel, fair among channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, final

import numpy.typing as npt

from ..blocking import record_reader as blocking
from ..blocking.network_environment import SingleInputGate
from ..config import NetworkConfig
from ..record.formats import RecordFormat
from .door import through

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")


@final
class RecordReader(Generic[T]):
    """Iterates over the records of a gate: `async for record in aio.RecordReader(gate): ...`; for one task at a time.

    As `netstack.RecordReader`: application events come in their place among the records, a channel that a barrier
    blocks goes on when more is asked for, and the iteration ends when every channel has ended.
    """

    def __init__(
        self, gate: SingleInputGate, *, format: RecordFormat | str = "bytes", config: NetworkConfig | None = None
    ) -> None:
        """Takes over the gate; arguments of `netstack.RecordReader`."""
        self._inner = blocking.RecordReader[T](gate, format=format, config=config, direct=False)
        self._portal = gate.portal
        self._current: Iterator[T] = iter(())

    @property
    def channel_index(self) -> int:
        """Which channel the last elements came from."""
        return self._inner.channel_index

    def __aiter__(self) -> RecordReader[T]:
        """Itself: a reader is read once."""
        return self

    async def __anext__(self) -> T:
        """The next element. Raises as `next_records`; cancellation: nothing is lost, ask again."""
        for element in self._current:
            return element
        records = await self.next_records()
        if records is None:
            raise StopAsyncIteration
        self._current = iter(records)
        return next(self._current)

    async def next_records(self) -> list[T] | None:
        """The next elements, at least one, all of one channel; None when every channel has ended.

        Raises:
            ChannelFailed, ConnectionLost, RemoteProtocolError, RecordError, LocalProtocolError: as
                `netstack.blocking.RecordReader.next_records`.

        Cancellation: what was fetched is handed out next time.
        """
        left = list(self._current)
        if left:
            return left
        if self._inner.wants_more:
            with self._inner.exclusively():
                await through(self._portal, self._inner.fetch, "waiting for records")
        records: list[T] | None = self._inner.take_ready()
        return records

    def close(self) -> None:
        """Closes the gate; a task that waits here is woken with LocalProtocolError. Idempotent."""
        self._inner.close()


@final
class ArrayReader:
    """Iterates over fixed-width records as arrays: `async for array in aio.ArrayReader(gate, "<i8"): ...`."""

    def __init__(
        self, gate: SingleInputGate, dtype: npt.DTypeLike | None = None, *, record_bytes: int | None = None
    ) -> None:
        """Takes over the gate; arguments and errors of `netstack.ArrayReader`."""
        self._inner = blocking.ArrayReader(gate, dtype, record_bytes=record_bytes, direct=False)
        self._portal = gate.portal
        self.events = self._inner.events
        """Application events met so far, with their channel; the caller may clear it."""

    @property
    def channel_index(self) -> int:
        """Which channel the last array came from."""
        return self._inner.channel_index

    def __aiter__(self) -> ArrayReader:
        """Itself: a reader is read once."""
        return self

    async def __anext__(self) -> npt.NDArray[Any]:
        """The next array, of at least one record. Raises and cancellation as `RecordReader.next_records`."""
        if self._inner.wants_more:
            with self._inner.exclusively():
                await through(self._portal, self._inner.fetch, "waiting for records")
        array: npt.NDArray[Any] | None = self._inner.take_ready()
        if array is None:
            raise StopAsyncIteration
        return array

    def close(self) -> None:
        """Closes the gate; a task that waits here is woken with LocalProtocolError. Idempotent."""
        self._inner.close()
