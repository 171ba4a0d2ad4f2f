"""RecordReader and ArrayReader: read a gate's buffers as single records or as arrays.

Takes: a gate. Gives: elements in order per channel, fair among channels. A decoded buffer is recycled at once (credit).
"""

from __future__ import annotations

import abc
import operator
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Generic, final

import numpy as np
import numpy.typing as npt

from ..base.config import NetworkConfig
from ..base.errors import ConfigError, NetstackError, RecordError
from ..base.events import DataType, Event
from ..exchange.buffer.buffer import Buffer
from ..exchange.inbound.channel import RemoteInputChannel
from ..exchange.inbound.closing import ClosingContext
from ..exchange.inbound.gate import SingleInputGate
from ..exchange.inbound.taking import feed_rows
from ..exchange.record.deserializer import RecordDeserializer
from ..exchange.record.fast_path import DecodedRecords, RecordIterator
from ..exchange.record.formats import RecordFormat, as_format
from ..exchange.record.rows import DEFAULT_BLOCK_BYTES, RowDeserializer
from ..exchange.record.spill import SpillDirectory
from ..exchange.record.stream_records import HEAD_BYTES, without_heads
from .deserializers import for_channels, new_deserializer
from .handles import InputGate, check_handle
from .waiting.gate_waiter import Engine, GateWaiter
from .waiting.parking import Parking

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")

TAKE_BUFFERS: Final = 16
"""Buffers that an `ArrayReader` decodes before it returns arrays: half a MiB stays in the processor's cache."""

GATHERED_BYTES: Final = 64 * 1024 * 1024
LEAST_BLOCK_BYTES: Final = 32 * 1024
"""An `ArrayReader` gathers rows in one block per channel: all blocks together take at most `GATHERED_BYTES`, but each
is at least this large.
"""

_DATA: Final = DataType.DATA


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


class _Reader(ClosingContext):
    """The base of both readers: closes the gate at the end of a `with` block."""

    _waiter: GateWaiter
    _only_channel: RemoteInputChannel | None
    """The only channel of the gate, if it is remote: it may receive long records in the memory that gathers them."""
    _room_bytes: int

    def _set_gate(self, gate: Engine, config: NetworkConfig) -> None:
        channels = gate.channels if isinstance(gate, SingleInputGate) else ()
        only = channels[0] if len(channels) == 1 else None
        self._only_channel = only if isinstance(only, RemoteInputChannel) else None
        self._room_bytes = config.segment_size_bytes

    def _lend(self, deserializer: RowDeserializer | RecordDeserializer) -> None:
        """Lets the rest of the only channel's partial record be received where it belongs."""
        room = deserializer.room(self._room_bytes)
        if room is not None and self._only_channel is not None:
            self._only_channel.place_next(room)

    def close(self) -> None:
        """Closes the gate; its producers learn that no more records are needed. Idempotent."""
        self._clear()
        self._waiter.gate.close()

    def abandon(self) -> None:
        """Closes like `close`, but producers whose records were not all read count this consumer as lost."""
        self._clear()
        self._waiter.gate.abandon()

    def _clear(self) -> None:
        """Drops what was received in part."""

    def _describe_unread(self) -> str:
        gate = self._waiter.gate
        if isinstance(gate, SingleInputGate) and gate.is_closed:
            return ""
        unread = self._unread()
        return f"{unread} that were not read" if unread else gate._describe_unread()

    @abc.abstractmethod
    def _unread(self) -> str:
        """Describes received elements that were not returned; empty if there are none."""


@final
class RecordReader(_Reader, Generic[T]):
    """Iterates over the records of a gate: `async for record in RecordReader(gate): ...`.

    `RecordReader[str](gate, format="str")` declares the record type to a type checker. `with RecordReader(...) as
    reader:` closes the reader at the end of the block, and warns if records were not read.

    Application events (`CheckpointBarrier`, `CancelCheckpointMarker`, `UserEvent`) appear in order among the records;
    `channel_index` is the channel of the last element. The iteration ends when all channels have ended. If a barrier
    blocks a channel's producer, the channel is resumed when the next element is requested; with `aligns_barriers`, when
    the barrier has arrived on every channel.
    """

    def __init__(
        self,
        gate: InputGate,
        *,
        format: RecordFormat | str = "bytes",
        config: NetworkConfig | None = None,
        aligns_barriers: bool = False,
        parking: Parking | None = None,
    ) -> None:
        """Takes ownership of the gate.

        Args:
            gate: from `NetworkEnvironment.open_gate`; a gate has one reader.
            format: the format of the `RecordWriter`.
            config: limits the record size, and sets where and from which size on spanning records use a temporary file;
                None means the settings of the NetworkEnvironment that opened the gate.
            aligns_barriers: whether a `CheckpointBarrier` is returned once, after every record before it on any channel
                and ahead of all others, as in Flink: a channel whose barrier has arrived waits for the others. The end
                of a channel counts as its barrier. A checkpoint that a marker cancels, or a newer one replaces, appears
                as a `CancelCheckpointMarker`. After the failure of a channel no barrier is returned any more. False
                returns the barrier of each channel.
            parking: internal: how the reader waits; None waits in the event loop.

        Raises:
            LocalProtocolError: the gate has a reader already, or is part of a union.
            ConfigError: the format is unknown, or an argument has the wrong type.
        """
        check_handle(gate, InputGate, "open_gate")
        settings = config or gate._engine.config or NetworkConfig()
        self._waiter = GateWaiter(gate._engine, parking, aligns_barriers)
        self._set_gate(gate._engine, settings)
        made = as_format(format)
        spill = SpillDirectory(None if settings.spill_directory is None else [settings.spill_directory])
        self._deserializers = for_channels(gate._engine, lambda: new_deserializer(made, spill, settings))
        self._decoded = DecodedRecords()
        self._holds_buffer = settings.as_flink
        """Whether the gate holds a buffer until its last record was read, as in Flink; else it is recycled at once."""
        self._iterator = RecordIterator(self._decoded, self._next_element)
        self.channel_index = 0
        """The channel of the last element."""

    def __aiter__(self) -> AsyncIterator[T]:
        """Continues after the last record: all iterators of a reader share one position."""
        return self._iterator

    def __anext__(self) -> Awaitable[T]:
        """Returns the next element; waits if there is none. Direct calls cost more than `async for`.

        A checkpoint only when it waits, and once in `TURN_BUFFERS` buffers, because a checkpoint costs several times as
        much as a record.

        Raises:
            trio.BusyResourceError: another task waits in this reader.
            StopAsyncIteration: all channels have ended.
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it is has failed. Raised
                once; the next call continues with the other channels, or ends the iteration if there are none.
            RecordError: the received bytes are not a record of the format.

        Cancellation: no record is lost; the next call returns it.
        """
        return self._iterator.__anext__()

    async def next_records(self) -> list[T] | None:
        """Returns all elements of the next buffer, at least one; None when all channels have ended.

        After an iteration stopped inside a buffer, returns the rest of it. A checkpoint, which costs as much as dozens
        of records: for speed call `next_records_nowait` first. Raises and cancellation as `__anext__`.
        """
        with self._waiter.alone():
            await self._waiter.parking.checkpoint()
        return list(self._decoded) or await self._next_elements()

    def next_records_nowait(self) -> list[T] | None:
        """Like `next_records`, if a buffer is ready.

        Raises:
            trio.WouldBlock: no buffer is ready.
            ChannelFailed, ...: as `__anext__`.
        """
        if left := list(self._decoded):
            return left
        if self._holds_buffer and self._waiter.single is not None:
            self._waiter.single.recycle_held()
        while True:
            buffer = self._waiter.next_buffer_nowait()
            elements = self._elements_of(buffer)
            if elements or buffer is None:
                return elements

    async def _next_element(self) -> T:
        ready = self._decoded
        for element in ready:
            return element  # type: ignore[no-any-return]
        elements = await self._next_elements()
        if elements is None:
            raise StopAsyncIteration
        ready.put(elements)
        return next(iter(ready))  # type: ignore[no-any-return]

    async def _next_elements(self) -> list[T] | None:
        waiter = self._waiter
        if self._holds_buffer and waiter.single is not None:
            waiter.single.recycle_held()
        while True:
            buffer = waiter.at_hand()  # saves a coroutine for most buffers
            if buffer is None:
                if self._only_channel is not None:
                    self._lend(self._deserializers[0])
                buffer = await waiter.next_buffer()
            elements = self._elements_of(buffer)
            if elements or buffer is None:
                return elements

    def _elements_of(self, buffer: Buffer | None) -> list[T] | None:
        """Decodes a buffer; returns the complete elements in it, or None at the end."""
        if buffer is None:
            self._check_whole()
            return None
        waiter = self._waiter
        self.channel_index = channel = buffer.channel_index
        if buffer.data_type is not _DATA:
            return waiter.events_of(buffer)  # type: ignore[return-value]  # only if the producer sends events
        elements: list[T] | None = None
        try:
            memory = buffer.memory if buffer.pieces is None else buffer.contiguous()
            elements = self._deserializers[channel].feed(memory)
        finally:
            # The buffers of a run would keep the credit of all: only one is held, as in Flink.
            if elements and self._holds_buffer and buffer.buffers == 1 and waiter.single is not None:
                waiter.single.hold(buffer)
            else:
                buffer.recycle()
        if elements:
            gate = waiter.single
            if gate is None:
                waiter.gate.count_records(channel, len(elements))
            else:
                gate.records += len(elements)
        return elements

    def _clear(self) -> None:
        for deserializer in self._deserializers:
            deserializer.clear()

    def _unread(self) -> str:
        count = operator.length_hint(self._decoded)
        return f"{count} records" if count else ""

    def _check_whole(self) -> None:
        for index, deserializer in enumerate(self._deserializers):
            left = deserializer.unconsumed()
            if left:
                raise RecordError(
                    f"channel {index} ended after {len(left)} bytes of an incomplete record; its producer is faulty"
                )


@final
class ArrayReader(_Reader):
    """Iterates over fixed-width records as arrays: `async for array in ArrayReader(gate, "<i8"): ...`.

    Each array holds complete records of one channel (`channel_index`), in order, and belongs to the caller. `events`
    collects application events. With `aligns_barriers` an array without records says that events were added: arrays
    before it were written before them, and arrays after it after them.
    """

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        aligns_barriers: bool = False,
        parking: Parking | None = None,
    ) -> None:
        """Takes ownership of the gate.

        Args:
            gate: from `NetworkEnvironment.open_gate`; a gate has one reader.
            dtype: the element type of the arrays; its size is the size of a record.
            record_bytes: alternative to `dtype`: returns uint8 arrays of shape (records, record_bytes).
            aligns_barriers: as for `RecordReader`; the barrier is in `events`.
            parking: internal: how the reader waits; None waits in the event loop.

        Raises:
            LocalProtocolError: as `RecordReader`.
            ConfigError: both or neither of `dtype` and `record_bytes` are given, or the width is not valid.
        """
        check_handle(gate, InputGate, "open_gate")
        if (dtype is None) == (record_bytes is None):
            raise ConfigError("ArrayReader needs either dtype or record_bytes: the width of a record")
        try:
            self._dtype = None if dtype is None else np.dtype(dtype)
        except TypeError as error:
            raise ConfigError(f"dtype={dtype!r}: {error}; give a numpy dtype, such as '<i8'") from error
        if record_bytes is not None and not _is_whole(record_bytes):
            raise ConfigError(f"record_bytes={record_bytes!r}; give the width of a record as int")
        if self._dtype is not None and self._dtype.hasobject:
            raise ConfigError(f"dtype={self._dtype} holds Python objects; give a type of fixed-width elements")
        width = record_bytes if self._dtype is None else self._dtype.itemsize
        if not width or width < 1:
            raise ConfigError(f"records of {width} bytes cannot be read as arrays")
        self._waiter = GateWaiter(gate._engine, parking, aligns_barriers)
        # A gate with few channels may use large blocks; a thousand large blocks would take a gigabyte.
        block_bytes = max(LEAST_BLOCK_BYTES, min(DEFAULT_BLOCK_BYTES, GATHERED_BYTES // max(1, gate.channel_count)))
        config = gate._engine.config or NetworkConfig()
        self._set_gate(gate._engine, config)
        self._has_heads = config.as_flink
        with_head = width + (HEAD_BYTES if self._has_heads else 0)
        self._rows = for_channels(
            gate._engine, lambda: RowDeserializer(with_head, block_bytes=block_bytes, accepts_runs=config.has_runs)
        )
        self._decoded: deque[tuple[int, npt.NDArray[np.uint8], Sequence[Event]]] = deque()
        self._no_rows = np.empty((0, width), np.uint8)
        self._error: NetstackError | None = None  # raised after the arrays before it were returned
        self.channel_index = 0
        """The channel of the last array."""
        self.events: list[tuple[int, Event]] = []
        """Application events so far, with their channels; the caller may clear it."""

    def __aiter__(self) -> ArrayReader:
        """Returns itself: all iterations share one position."""
        return self

    async def __anext__(self) -> npt.NDArray[Any]:
        """Returns the next array; only a mark has no record. Raises and cancellation as `RecordReader.__anext__`."""
        ready = self._decoded
        while not ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            buffer = self._waiter.at_hand()
            if buffer is None:
                if self._only_channel is not None:
                    self._lend(self._rows[0])
                buffer = await self._waiter.next_buffer()
            if buffer is None:
                self._check_whole()
                raise StopAsyncIteration
            self._take(buffer)
        self.channel_index, rows, events = ready.popleft()
        if events:
            self.events += [(self.channel_index, event) for event in events]
        return rows if self._dtype is None else rows.view(self._dtype).reshape(len(rows))

    def _take(self, buffer: Buffer) -> None:
        """Decodes everything that is ready without waiting, so that arrays become larger under load."""
        waiter = self._waiter
        touched: dict[int, None] = {}
        mark = list[Event]()
        channel, left = 0, TAKE_BUFFERS
        following: Buffer | None = buffer
        try:
            while following is not None and left:
                event, left = feed_rows(waiter.poll, self._rows, following, left, touched)
                following = None
                if event is not None:
                    channel = event.channel_index
                    events = waiter.events_of(event)
                    if not events:
                        left -= 1
                        following = waiter.poll() if left else None
                    elif waiter.aligns_barriers:
                        mark = events
                    else:  # the application sees it before the data that follows
                        self.events += [(channel, each) for each in events]
        except NetstackError as error:
            self._error = error
        finally:
            for each in touched:
                for taken_rows in self._rows[each].take():
                    rows = without_heads(taken_rows) if self._has_heads else taken_rows
                    waiter.gate.count_records(each, len(rows))
                    self._decoded.append((each, rows, ()))
            if mark:
                self._decoded.append((channel, self._no_rows, mark))

    def _unread(self) -> str:
        return f"{len(self._decoded)} arrays" if self._decoded else ""

    def _check_whole(self) -> None:
        for index, rows in enumerate(self._rows):
            if rows.pending_bytes:
                raise RecordError(f"channel {index} ended in the middle of a record; its producer is faulty")
