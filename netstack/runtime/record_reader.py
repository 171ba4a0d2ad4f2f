"""RecordReader and ArrayReader: a gate's buffers as records one by one, or as arrays.

Takes: a gate. Gives: elements in order per channel, fair among channels; buffers go back as soon as they are decoded,
which is what returns the credit.
"""

from __future__ import annotations

import abc
import contextlib
import operator
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, final

import numpy as np
import numpy.typing as npt
import trio

from ..buffer.buffer import Buffer
from ..config import NetworkConfig
from ..errors import ConfigError, NetstackError, RecordError
from ..events import DataType, Event, decode_event
from ..inbound.closing import ClosingContext
from ..inbound.gate import SingleInputGate
from ..inbound.union import UnionInputGate
from ..record.cells import Handout, Ready
from ..record.formats import RecordFormat, format_named
from ..record.rows import DEFAULT_BLOCK_BYTES, RowDeserializer
from ..record.spill import SpillDirectory
from ..record.stream_records import HEAD_BYTES, without_heads
from .deserializers import new_deserializer
from .handles import InputGate
from .parking import Parking, TaskParking

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")

TURN_BUFFERS: Final = 64
"""Buffers after which a reader that never has to wait lets other tasks run."""

TAKE_BUFFERS: Final = 16
"""Buffers an `ArrayReader` takes before it hands out what they held: half a MiB stays in the processor's cache."""

GATHERED_BYTES: Final = 64 * 1024 * 1024
LEAST_BLOCK_BYTES: Final = 32 * 1024
"""An `ArrayReader` gathers rows in blocks of its own for each channel, of so much together, but no smaller ones."""

_BUSY: Final = "another task reads from this reader; give each task a gate of its own"
_DATA: Final = DataType.DATA

Engine = SingleInputGate | UnionInputGate


class _Waiter:
    """What both readers share: the next buffer, with as few waits as possible."""

    def __init__(self, gate: Engine, parking: Parking | None) -> None:
        self.gate = gate
        self.single = gate if isinstance(gate, SingleInputGate) else None
        self.parking: Parking = TaskParking() if parking is None else parking
        self._turn = 0
        self._resume: int | None = None
        self._is_waiting = False
        gate.on_available = self.parking.wake

    async def next_buffer(self) -> Buffer | None:
        """The next data buffer or event; None when every channel has ended."""
        if self._is_waiting:
            raise trio.BusyResourceError(_BUSY)
        gate = self.gate
        if self._resume is not None:
            channel, self._resume = self._resume, None
            gate.resume(channel)
        self._turn += 1
        if self._turn >= TURN_BUFFERS:
            self._turn = 0
            with self.alone():
                await self.parking.checkpoint()
        while True:
            buffer = gate.poll()
            if buffer is not None:
                return buffer
            if gate.is_finished:
                return None
            gate.read_connections()
            if not gate.is_available:
                gate.idle.begin(gate.now())
                self._is_waiting = True  # as `alone`, whose way out would be in the way of each record of a slow stream
                try:
                    await self.parking.wait(gate.spin_s, self._look)
                finally:
                    self._is_waiting = False
                    gate.idle.end(gate.now())
                self._turn = 0

    def at_hand(self) -> Buffer | None:
        """The next buffer, if it is there and nothing else comes first; if not, `next_buffer` knows what to do."""
        if self._is_waiting or self._resume is not None or self._turn >= TURN_BUFFERS - 1:
            return None
        buffer = self.gate.poll()
        if buffer is not None:
            self._turn += 1
        return buffer

    def _look(self) -> bool:
        self.gate.read_connections()
        return self.gate.is_available

    def next_buffer_nowait(self) -> Buffer | None:
        """The next data buffer or event that has come; raises `trio.WouldBlock`."""
        if self._is_waiting:
            raise trio.BusyResourceError(_BUSY)
        gate = self.gate
        if self._resume is not None:
            channel, self._resume = self._resume, None
            gate.resume(channel)
        buffer = gate.poll()
        if buffer is None and not gate.is_finished:
            gate.read_connections()
            buffer = gate.poll()
            if buffer is None and not gate.is_finished:
                raise trio.WouldBlock
        return buffer

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While the task waits another one that comes gets BusyResourceError."""
        if self._is_waiting:
            raise trio.BusyResourceError(_BUSY)
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def event_of(self, buffer: Buffer) -> Event | None:
        """Handles an event buffer; returns the event if it is the application's business."""
        data_type = buffer.data_type
        if data_type is DataType.ANNOUNCEMENT:  # of a barrier that comes in its place
            buffer.recycle()
            return None
        channel = buffer.channel_index
        event = decode_event(buffer.memory)
        buffer.recycle()
        if data_type is DataType.END_OF_DATA:
            self.gate.acknowledge_end_of_data(channel)
            return None
        if data_type is DataType.END_OF_PARTITION:
            return None
        if data_type.blocks_upstream:
            # The channel's producer waits behind an aligned barrier: it goes on when the application asks for the next
            # element.
            self._resume = channel
        return event


class _Reader(ClosingContext):
    """What both readers are: a gate's reader, closed at the end of a `with` block."""

    _waiter: _Waiter

    def close(self) -> None:
        """Closes the gate; idempotent."""
        self._waiter.gate.close()

    def _describe_unread(self) -> str:
        gate = self._waiter.gate
        if isinstance(gate, SingleInputGate) and gate.is_closed:
            return ""
        unread = self._unread()
        return f"{unread} that were not handed out" if unread else gate._describe_unread()

    @abc.abstractmethod
    def _unread(self) -> str:
        """What has come and was not handed out, in words; empty if there is nothing."""


@final
class RecordReader(_Reader, Generic[T]):
    """Iterates over the records of a gate one by one: `async for record in RecordReader(gate): ...`.

    `RecordReader[str](gate, format="str")` says to a type checker what its records are. `with RecordReader(...) as
    reader:` closes it at the end, and warns when records are left that nobody has read.

    Control events that the application sent (`CheckpointBarrier`, `CancelCheckpointMarker`, `UserEvent`) come in their
    place among the records; `channel_index` tells which channel the last element came from. The iteration ends when
    every channel has ended. A channel whose barrier blocks its producer is resumed when the next element is asked for.
    """

    def __init__(
        self,
        gate: InputGate,
        *,
        format: RecordFormat | str = "bytes",
        config: NetworkConfig | None = None,
        parking: Parking | None = None,
    ) -> None:
        """Takes over the gate.

        Args:
            gate: from `NetworkEnvironment.open_gate`; one reader a gate.
            format: as given to the `RecordWriter`.
            config: the longest record, and where and from which size on spanning records go through a temporary file;
                None is that of the NetworkEnvironment that opened the gate.
            parking: where it waits; None is in its event loop.
        """
        settings = config or gate.engine.config or NetworkConfig()
        self._waiter = _Waiter(gate.engine, parking)
        made = format_named(format) if isinstance(format, str) else format
        spill = SpillDirectory(None if settings.spill_directory is None else [settings.spill_directory])
        self._deserializers = [new_deserializer(made, spill, settings) for _ in range(gate.channel_count)]
        self._ready = Ready()
        self._handout = Handout(self._ready, self._next_element)
        self.channel_index = 0
        """Which channel the last element came from."""

    def __aiter__(self) -> AsyncIterator[T]:
        """Continues after the last record: all iterators of a reader share one position."""
        return self._handout

    def __anext__(self) -> Awaitable[T]:
        """The next element; waits when there is none. Many of these cost more than `async for`.

        A checkpoint only when it waits, and once in `TURN_BUFFERS` buffers: one a record would cost several times what
        the record does.

        Raises:
            trio.BusyResourceError: another task waits for this reader.
            StopAsyncIteration: every channel has ended.
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it was has failed.
            RecordError: the bytes are no record of the format.

        Cancellation: nothing is lost; ask again.
        """
        return self._handout.__anext__()

    async def next_records(self) -> list[T] | None:
        """All elements of the next buffer at once, at least one; None when every channel has ended.

        A checkpoint. Who is in a hurry asks `next_records_nowait` first: a trip through trio's scheduler costs as much
        as dozens of records. Raises and cancellation as `__anext__`.
        """
        with self._waiter.alone():
            await self._waiter.parking.checkpoint()
        return await self._next_elements()

    def next_records_nowait(self) -> list[T] | None:
        """All elements of the next buffer that has come.

        Raises:
            trio.WouldBlock: nothing has.
            ChannelFailed, ...: as `__anext__`.
        """
        waiter = self._waiter
        while True:
            buffer = waiter.next_buffer_nowait()
            elements = self._elements_of(buffer)
            if elements or buffer is None:
                return elements

    async def _next_element(self) -> T:
        ready = self._ready
        for element in ready.elements:
            return element  # type: ignore[no-any-return]
        elements = await self._next_elements()
        if elements is None:
            raise StopAsyncIteration
        ready.elements = iter(elements)
        return next(ready.elements)  # type: ignore[no-any-return]

    async def _next_elements(self) -> list[T] | None:
        waiter = self._waiter
        while True:
            buffer = waiter.at_hand()  # a coroutine less for most
            if buffer is None:
                buffer = await waiter.next_buffer()
            elements = self._elements_of(buffer)
            if elements or buffer is None:
                return elements

    def _elements_of(self, buffer: Buffer | None) -> list[T] | None:
        """What a buffer holds, if it is anything whole; None at the end."""
        if buffer is None:
            self._check_whole()
            return None
        waiter = self._waiter
        self.channel_index = channel = buffer.channel_index
        if buffer.data_type is not _DATA:
            event = waiter.event_of(buffer)
            return [] if event is None else [event]  # type: ignore[list-item]  # only who sends events has them
        try:
            memory = buffer.memory if buffer.pieces is None else buffer.contiguous()
            elements = self._deserializers[channel].feed(memory)
        finally:
            buffer.recycle()
        if elements:
            gate = waiter.single
            if gate is None:
                waiter.gate.count_records(channel, len(elements))
            else:
                gate.records += len(elements)
        return elements

    def close(self) -> None:
        """Closes the gate and drops temporary files; idempotent."""
        for deserializer in self._deserializers:
            deserializer.clear()
        super().close()

    def _unread(self) -> str:
        count = operator.length_hint(self._ready.elements)
        return f"{count} records" if count else ""

    def _check_whole(self) -> None:
        for index, deserializer in enumerate(self._deserializers):
            left = deserializer.unconsumed()
            if left:
                raise RecordError(
                    f"channel {index} ended in the middle of a record, {len(left)} bytes into it: a faulty producer"
                )


@final
class ArrayReader(_Reader):
    """Iterates over fixed-width records as arrays: `async for array in ArrayReader(gate, "<i8"): ...`.

    Each array holds whole records of one channel (`channel_index`), in order, and belongs to the caller. Application
    events are collected in `events`.
    """

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        parking: Parking | None = None,
    ) -> None:
        """Takes over the gate.

        Args:
            gate: from `NetworkEnvironment.open_gate`; one reader a gate.
            dtype: element type of the arrays; its size is the record's.
            record_bytes: instead of `dtype`: arrays of shape (records, record_bytes) and type uint8.
            parking: where it waits; None is in its event loop.

        Raises:
            ConfigError: not exactly one of the two, or a width of 0.
        """
        if (dtype is None) == (record_bytes is None):
            raise ConfigError("ArrayReader wants either dtype or record_bytes: the width of a record")
        self._dtype = None if dtype is None else np.dtype(dtype)
        if self._dtype is not None and self._dtype.hasobject:
            raise ConfigError(f"an array of {self._dtype} holds Python objects; give a type of fixed-width elements")
        width = record_bytes if self._dtype is None else self._dtype.itemsize
        if not width or width < 1:
            raise ConfigError(f"records of {width} bytes cannot be read as arrays")
        self._waiter = _Waiter(gate.engine, parking)
        # One of few channels may gather much at a time; many together would take a gigabyte for every thousand.
        block_bytes = max(LEAST_BLOCK_BYTES, min(DEFAULT_BLOCK_BYTES, GATHERED_BYTES // max(1, gate.channel_count)))
        config = gate.engine.config or NetworkConfig()
        self._has_heads = config.as_flink
        width += HEAD_BYTES if self._has_heads else 0
        self._rows = [
            RowDeserializer(width, block_bytes=block_bytes, accepts_runs=config.has_runs)
            for _ in range(gate.channel_count)
        ]
        self._ready: deque[tuple[int, npt.NDArray[np.uint8]]] = deque()
        self._error: NetstackError | None = None  # raised when the arrays before it were handed out
        self.channel_index = 0
        """Which channel the last array came from."""
        self.events: list[tuple[int, Event]] = []
        """Application events met so far, with their channel; the caller may clear it."""

    def __aiter__(self) -> ArrayReader:
        """Itself: a reader is read once."""
        return self

    async def __anext__(self) -> npt.NDArray[Any]:
        """The next array, of at least one record. Raises and cancellation as `RecordReader.__anext__`."""
        ready = self._ready
        while not ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            buffer = self._waiter.at_hand()
            if buffer is None:
                buffer = await self._waiter.next_buffer()
            if buffer is None:
                self._check_whole()
                raise StopAsyncIteration
            self._take(buffer)
        self.channel_index, rows = ready.popleft()
        return rows if self._dtype is None else rows.view(self._dtype).reshape(len(rows))

    def _take(self, buffer: Buffer | None) -> None:
        """Takes everything that is there without waiting, so that arrays grow under load by themselves."""
        waiter = self._waiter
        poll = waiter.gate.poll
        touched: dict[int, None] = {}
        try:
            for taken in range(1, TAKE_BUFFERS + 1):
                if buffer is None:
                    break
                channel = buffer.channel_index
                if buffer.data_type is _DATA:
                    touched[channel] = None
                    try:
                        self._rows[channel].feed(buffer.contiguous())
                    finally:
                        buffer.recycle()
                else:
                    event = waiter.event_of(buffer)
                    if event is not None:
                        self.events.append((channel, event))
                        break  # the application sees it before what follows
                buffer = None if taken == TAKE_BUFFERS else poll()
        except NetstackError as error:
            self._error = error
        finally:
            for channel in touched:
                for taken_rows in self._rows[channel].take():
                    rows = without_heads(taken_rows) if self._has_heads else taken_rows
                    waiter.gate.count_records(channel, len(rows))
                    self._ready.append((channel, rows))

    def _unread(self) -> str:
        return f"{len(self._ready)} arrays" if self._ready else ""

    def _check_whole(self) -> None:
        for index, rows in enumerate(self._rows):
            if rows.pending_bytes:
                raise RecordError(f"channel {index} ended in the middle of a record; its producer is faulty")
