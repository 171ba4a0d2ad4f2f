"""RecordReader and ArrayReader for a thread that blocks: by itself at its gate's sockets, or through the door.

Takes: a gate. Gives: records or arrays in order per channel, fair among channels.

Directly (`NetworkEnvironment.leave_to_thread` says where that can be): the calling thread reads the sockets, decodes
and announces credit, while the event loop sleeps. Through the door: the TaskManager's thread does, and much is fetched
at a time, since each time costs the same.

Rules:
- What is fetched stays with the reader until it is handed out: a timeout, Ctrl-C or an error in between loses nothing.
- Nothing is fetched ahead of demand: who does not ask holds its producers back, as in trio.
- A fetch ends at an event of the application, which is seen before its channel goes on, and before the end of a
  channel: a producer that waits for its records to be processed waits until the caller has come for more.
"""

from __future__ import annotations

import abc
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, cast, final

import numpy.typing as npt
import trio

from ..buffer.buffer import Buffer
from ..config import NetworkConfig
from ..errors import ConfigError, LocalProtocolError
from ..events import CancelCheckpointMarker, CheckpointBarrier, DataType, UserEvent
from ..inbound import gate as inbound
from ..record.formats import RecordFormat
from ..runtime import record_reader as runtime
from ..runtime.parking import ThreadParking
from .network_environment import SingleInputGate
from .portal import check_timeout

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")

FETCH_LIMIT: Final = 1 << 20
"""After how much a fetch ends: bytes of arrays."""

RECORD_SHARE: Final = 64
"""What one record counts for, about what an object takes: a fetch ends after 16 Ki of them."""

TRICKLE: Final = 16 * RECORD_SHARE
"""Who fetches so little after having waited comes again at once: what is to be sent meanwhile waits for that."""

FETCH_TURNS: Final = 64
"""Buffers, or arrays, after which a fetch ends: what is large is worth the way."""

_EVENTS: Final = CheckpointBarrier, CancelCheckpointMarker, UserEvent


@final
class _PatientGate:
    """A gate that keeps the end of a channel back while there is something before it that was not handed out."""

    def __init__(self, gate: inbound.SingleInputGate, has_more: Callable[[], bool]) -> None:
        self._gate = gate
        self._has_more = has_more
        self._kept: Buffer | None = None
        self.now = gate.now
        self.idle = gate.idle
        self.spin_s = gate.spin_s
        self.poke = gate.poke
        self.resume = gate.resume
        self.count_records = gate.count_records
        self.acknowledge_end_of_data = gate.acknowledge_end_of_data
        self.channel_count = gate.channel_count

    @property
    def config(self) -> NetworkConfig | None:
        return self._gate.config

    @property
    def on_available(self) -> Callable[[], None] | None:
        return self._gate.on_available

    @on_available.setter
    def on_available(self, callback: Callable[[], None] | None) -> None:
        self._gate.on_available = callback

    @property
    def is_available(self) -> bool:
        return self._kept is None and self._gate.is_available

    @property
    def is_finished(self) -> bool:
        return self._gate.is_finished

    def poll(self) -> Buffer | None:
        if self._kept is None:
            buffer = self._gate.poll()
            if buffer is None or buffer.data_type is not DataType.END_OF_DATA:
                return buffer
            self._kept = buffer
        if self._has_more():
            return None
        buffer, self._kept = self._kept, None
        return buffer

    def close(self) -> None:
        if self._kept is not None:
            self._kept.recycle()
            self._kept = None
        self._gate.close()


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """A snapshot of how a reader reads.

    Attributes:
        is_direct: the calling thread reads the sockets; else the TaskManager's thread does, and hands over.
        waits: how often the calling thread waited for data, after having looked; 0 where it does not read.
    """

    is_direct: bool
    waits: int


class _Fetcher(abc.ABC):
    """What both readers share: one thread at a time, one fetch at a time."""

    def __init__(self, gate: SingleInputGate, direct: bool | None) -> None:
        self._portal = gate.portal
        self._is_busy = False
        self._ready: deque[tuple[int, Any]] = deque()
        self._error: BaseException | None = None
        self._parking: ThreadParking | None = None
        if direct is None or direct:
            self._parking = gate.leave_to_thread()
            if direct and self._parking is None:
                raise ConfigError(
                    "direct=True: of this gate's connections one is no plain socket, or another gate reads from it, or"
                    " there is none; leave it out to read through the TaskManager's thread then"
                )
        self._gate = gate.inner
        if self._parking is None:
            self._gate = cast(inbound.SingleInputGate, _PatientGate(gate.inner, lambda: bool(self._ready)))
        self.channel_index = 0
        """Which channel the last elements came from."""

    def _next(self, timeout_s: float | None) -> Any:
        """The next of what is ready; None at the end."""
        if self._is_busy:
            raise LocalProtocolError("another thread is in a call of this reader; one thread at a time")
        self._is_busy = True
        try:
            if not self._ready and self._error is None:
                if self._parking is None:
                    self._portal.call(self._fetch, timeout_s=timeout_s, what="waiting for records")
                else:
                    check_timeout(timeout_s)
                    self._parking.run(self._take(), timeout_s, "waiting for records", comes_again=_is_trickle)
            return self.take_ready()
        finally:
            self._is_busy = False

    def statistics(self) -> ReaderStatistics:
        """A snapshot; O(1)."""
        parking = self._parking
        return ReaderStatistics(parking is not None, 0 if parking is None else parking.waits)

    def __repr__(self) -> str:
        """Says which way it reads."""
        way = "through the TaskManager's thread" if self._parking is None else "directly"
        return f"<{type(self).__name__} of {self._gate.channel_count} channels, {way}>"

    def close(self) -> None:
        """Closes the gate; a thread that waits here is woken with LocalProtocolError. Idempotent."""

        async def close_inside() -> None:
            self._close_inside()

        self._portal.call(close_inside, timeout_s=None, what="closing a reader")

    # For other event loops (`netstack.aio`).

    @property
    def wants_more(self) -> bool:
        """Whether nothing is ready to be handed out."""
        return not self._ready and self._error is None

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """No other call may come in between.

        Raises:
            LocalProtocolError: another call is under way.
        """
        if self._is_busy:
            raise LocalProtocolError("another call of this reader is under way; one at a time")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def fetch(self) -> None:
        """Makes something ready, or the end. To be run in the TaskManager's thread; cancellation loses nothing."""
        await self._fetch()

    def take_ready(self) -> Any:
        """What is ready, as `_next`; None at the end."""
        if not self._ready:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        self.channel_index, elements = self._ready.popleft()
        return elements

    async def _fetch(self) -> None:
        """Takes what there is, waiting only for the first of it. Cancellation: what was taken is ready."""
        try:
            left = FETCH_LIMIT - await self._take()
            with trio.CancelScope() as scope:
                scope.cancel()  # whatever would wait ends the fetch
                for _ in range(FETCH_TURNS):
                    if left <= 0:
                        return
                    left -= await self._take()
        except trio.Cancelled:
            raise
        except BaseException as error:  # raised when what came before it was handed out
            self._error = error

    @abc.abstractmethod
    async def _take(self) -> int:
        """Makes the next elements ready, if any. Returns their share of `FETCH_LIMIT`: all where a fetch must end."""

    @abc.abstractmethod
    def _close_inside(self) -> None:
        """Closes the reader in trio's thread."""


def _is_trickle(share: int) -> bool:
    return share <= TRICKLE


@final
class RecordReader(_Fetcher, Generic[T]):
    """Iterates over the records of a gate one by one: `for record in RecordReader(gate): ...`.

    As `netstack.RecordReader`: application events come in their place among the records, a channel that a barrier
    blocks goes on when more is asked for, and the iteration ends when every channel has ended. After a `break` the next
    `for` goes on. Used by one thread at a time. A format's `decode` runs in the thread that reads: the caller's if it
    reads directly, else the TaskManager's; it must call nothing of that TaskManager.
    """

    def __init__(
        self,
        gate: SingleInputGate,
        *,
        format: RecordFormat | str = "bytes",
        config: NetworkConfig | None = None,
        direct: bool | None = None,
    ) -> None:
        """Takes over the gate; arguments of `netstack.RecordReader`, and `direct`.

        Args:
            gate: from `NetworkEnvironment.open_gate`; one reader a gate.
            format: as given to the `RecordWriter`.
            config: as of `netstack.RecordReader`.
            direct: whether the calling thread reads the sockets itself; None where it can, True insists.

        Raises:
            ConfigError: it cannot read directly, and must.
        """
        super().__init__(gate, direct)
        self._current: Iterator[T] = iter(())

        async def make() -> runtime.RecordReader[T]:
            return runtime.RecordReader(self._gate, format=format, config=config, parking=self._parking)

        self._reader: runtime.RecordReader[T] = self._portal.call(make, timeout_s=None, what="making a reader")

    def __iter__(self) -> Iterator[T]:
        """The elements that are left; waits for them as long as it takes. Raises as `next_records`."""
        while True:
            yield from self._current
            records = self.next_records()
            if records is None:
                return
            self._current = iter(records)

    def next_records(self, *, timeout_s: float | None = None) -> list[T] | None:
        """The next elements, at least one, all of one channel (`channel_index`); None when every channel has ended.

        Raises:
            TimeoutError: none came within `timeout_s`; ask again.
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it was has failed; what came
                before was handed out.
            RecordError: the bytes are no record of the format.
            LocalProtocolError: the gate or the TaskManager was closed, or another thread is in a call of this reader.
        """
        left = list(self._current)
        if left:
            return left
        records: list[T] | None = self._next(timeout_s)
        return records

    async def _take(self) -> int:
        if self._parking is not None:
            elements = await self._reader.next_records()
        else:
            try:
                elements = self._reader.next_records_nowait()
            except trio.WouldBlock:
                elements = await self._reader.next_records()
        if elements is None:
            return FETCH_LIMIT
        self._ready.append((self._reader.channel_index, elements))
        if isinstance(elements[-1], _EVENTS):
            return FETCH_LIMIT
        return len(elements) * RECORD_SHARE

    def _close_inside(self) -> None:
        self._reader.close()


@final
class ArrayReader(_Fetcher):
    """Iterates over fixed-width records as arrays: `for array in ArrayReader(gate, "<i8"): ...`.

    As `netstack.ArrayReader`: whole records of one channel (`channel_index`), in order; the array belongs to the
    caller. Used by one thread at a time.
    """

    def __init__(
        self,
        gate: SingleInputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        direct: bool | None = None,
    ) -> None:
        """Takes over the gate; arguments and errors of `netstack.ArrayReader`, and `direct` as of `RecordReader`."""
        super().__init__(gate, direct)

        async def make() -> runtime.ArrayReader:
            return runtime.ArrayReader(self._gate, dtype, record_bytes=record_bytes, parking=self._parking)

        self._reader: runtime.ArrayReader = self._portal.call(make, timeout_s=None, what="making a reader")
        self.events = self._reader.events
        """Application events met so far, with their channel; the caller may clear it."""

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """The arrays that are left; waits for them as long as it takes. Raises as `next_array`."""
        while (array := self.next_array()) is not None:
            yield array

    def next_array(self, *, timeout_s: float | None = None) -> npt.NDArray[Any] | None:
        """The next array, of at least one record; None when every channel has ended.

        Raises:
            TimeoutError, ...: as `RecordReader.next_records`.
        """
        array: npt.NDArray[Any] | None = self._next(timeout_s)
        return array

    async def _take(self) -> int:
        met = len(self.events)
        try:
            array = await anext(self._reader)
        except StopAsyncIteration:
            return FETCH_LIMIT
        self._ready.append((self._reader.channel_index, array))
        return FETCH_LIMIT if len(self.events) > met else array.nbytes

    def _close_inside(self) -> None:
        self._reader.close()
