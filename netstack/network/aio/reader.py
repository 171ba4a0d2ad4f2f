"""RecordReader and ArrayReader for asyncio.

Takes: a gate of `aio.NetworkEnvironment`. Gives: records or arrays in order per channel, fair among channels.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, final

import numpy.typing as npt

from ...base.config import NetworkConfig
from ...exchange.record.fast_path import RecordIterator
from ...exchange.record.formats import RecordFormat
from ..blocking.environment import InputGate
from ..blocking.reader import ArrayVisitor, RecordVisitor, T, is_small, is_trickle

MOST_SOCKETS: Final = 16
"""A reader with more sockets leaves them to the TaskManager's thread, because asyncio registers each socket at each
wait.
"""


@final
class RecordReader(RecordVisitor[T]):
    """Iterates over the records of a gate: `async for record in aio.RecordReader(gate): ...`.

    As for `netstack.RecordReader`, application events appear in order among the records, a channel blocked by a barrier
    is resumed when the next element is requested, and the iteration ends when all channels have ended. One task at a
    time may use a reader.
    """

    def __init__(
        self,
        gate: InputGate,
        *,
        format: RecordFormat | str = "bytes",
        config: NetworkConfig | None = None,
        aligns_barriers: bool = False,
    ) -> None:
        """Takes ownership of the gate; arguments as for `netstack.RecordReader`."""
        super().__init__(gate, format, config, MOST_SOCKETS, aligns_barriers=aligns_barriers)
        self._iterator = RecordIterator(self._decoded, self._next_element)

    def __aiter__(self) -> AsyncIterator[T]:
        """Continues after the last record: all iterators of a reader share one position."""
        return self._iterator

    def __anext__(self) -> Awaitable[T]:
        """The next element. Raises as `next_records`. Cancellation: no record is lost."""
        return self._iterator.__anext__()

    async def next_records(self) -> list[T] | None:
        """The next elements, at least one, all of one channel; None when all channels have ended.

        Raises:
            ChannelFailed, ConnectionLost, RemoteProtocolError, RecordError, LocalProtocolError: as
                `netstack.blocking.RecordReader.next_records`.

        Cancellation: no record is lost; the next call returns it.
        """
        left = list(self._decoded)
        if left:
            return left
        return await self._run_in_asyncio(self._reader.next_records, is_trickle)

    async def _next_element(self) -> T:
        elements = await self.next_records()
        if elements is None:
            raise StopAsyncIteration
        self._decoded.put(elements)
        return next(iter(self._decoded))  # type: ignore[no-any-return]


@final
class ArrayReader(ArrayVisitor):
    """Iterates over fixed-width records as arrays: `async for array in aio.ArrayReader(gate, "<i8"): ...`."""

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        aligns_barriers: bool = False,
    ) -> None:
        """Takes ownership of the gate; arguments and errors as for `netstack.ArrayReader`."""
        super().__init__(gate, dtype, record_bytes, MOST_SOCKETS, aligns_barriers=aligns_barriers)

    def __aiter__(self) -> ArrayReader:
        """Returns itself: all iterations share one position."""
        return self

    async def __anext__(self) -> npt.NDArray[Any]:
        """The next array; only a mark has no record. Raises and cancellation as `RecordReader.next_records`."""
        array = await self._run_in_asyncio(self._next, is_small)
        if array is None:
            raise StopAsyncIteration
        return array
