"""RecordReader and ArrayReader for a thread that blocks, and what they share with those of asyncio.

Takes: a gate. Gives: records or arrays in order per channel, fair among channels.

The calling thread decodes and announces credit, as a visitor of the event loop. Where it can
(`NetworkEnvironment.park_reader` says where) it reads the sockets as well, while the event loop sleeps.

Rules:
- A timeout, Ctrl-C or an error loses nothing: what was not handed out is handed out next time.
- Nothing is fetched ahead of demand: who does not ask holds its producers back, as in trio.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, cast, final

import numpy.typing as npt

from ..config import NetworkConfig
from ..errors import ConfigError, LocalProtocolError
from ..events import CancelCheckpointMarker, CheckpointBarrier, UserEvent
from ..record.cells import Ready
from ..record.formats import RecordFormat
from ..runtime import record_reader as runtime
from .network_environment import InputGate
from .portal import check_timeout

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")

R = TypeVar("R")

_EVENTS: Final = CheckpointBarrier, CancelCheckpointMarker, UserEvent

TRICKLE: Final = 16
"""Who gets so few records after having waited comes again at once: what is to be sent meanwhile waits for that."""

TRICKLE_BYTES: Final = 1024
"""The same, of an array."""


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """A snapshot of how a reader reads.

    Attributes:
        is_direct: the calling thread reads the sockets; else the TaskManager's thread does, and wakes it.
        waits: how often the calling thread waited for data, after having looked.
    """

    is_direct: bool
    waits: int


class VisitingReader:
    """What readers of threads and of asyncio share: where they wait, one call at a time."""

    def __init__(self, gate: InputGate, most_sockets: int, *, direct: bool | None = None) -> None:
        self._portal = gate.portal
        self._gate = gate.inner
        self._is_busy = False
        self._fetched: list[Any] = []
        self._parking = gate.park_reader(most_sockets=0 if direct is False else most_sockets)
        if direct and not self._parking.is_at_sockets:
            raise ConfigError(
                "direct=True: of this gate's connections one is no plain socket, or another gate reads from it, or"
                " there is none; leave it out to have the TaskManager's thread read the sockets then"
            )

    def statistics(self) -> ReaderStatistics:
        """A snapshot; O(1)."""
        return ReaderStatistics(self._parking.is_at_sockets, self._parking.waits)

    def __repr__(self) -> str:
        """Names the thread that reads the gate's sockets."""
        way = "directly" if self._parking.is_at_sockets else "through the TaskManager's thread"
        return f"<{type(self).__name__} of {self._gate.channel_count} channels, {way}>"

    def close(self) -> None:
        """Closes the gate; who waits here is woken with LocalProtocolError. Idempotent."""

        async def close_inside() -> None:
            self._close_inside()

        self._portal.call(close_inside, timeout_s=None, what="closing a reader")

    @abc.abstractmethod
    def _close_inside(self) -> None:
        """Closes the reader in trio's thread."""

    def _begin(self) -> None:
        """One call at a time."""
        if self._is_busy:
            raise LocalProtocolError("another call of this reader is under way; one thread or task at a time")
        self._is_busy = True

    def _run(
        self, call: Callable[[], Coroutine[Any, Any, R]], timeout_s: float | None, is_trickle: Callable[[R], bool]
    ) -> R:
        """Runs a call here; a thread that blocks."""
        check_timeout(timeout_s)
        self._begin()
        try:
            if not self._fetched:
                self._parking.run(self._fetch(call), timeout_s, "waiting for records", comes_again=is_trickle)
            return cast(R, self._fetched.pop())
        finally:
            self._is_busy = False

    async def _run_in_asyncio(self, call: Callable[[], Coroutine[Any, Any, R]], is_trickle: Callable[[R], bool]) -> R:
        """Runs a call here; a task of asyncio's."""
        self._begin()
        try:
            if not self._fetched:
                await self._parking.run_in_asyncio(self._fetch(call), comes_again=is_trickle)
            return cast(R, self._fetched.pop())
        finally:
            self._is_busy = False

    async def _fetch(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Keeps what a call has fetched: Ctrl-C may strike before it is handed out."""
        result = await call()
        self._fetched.append(result)
        return result


class RecordVisitor(VisitingReader, Generic[T]):
    """A reader of records, whoever waits for them."""

    def __init__(
        self,
        gate: InputGate,
        format: RecordFormat | str,
        config: NetworkConfig | None,
        most_sockets: int,
        *,
        direct: bool | None = None,
    ) -> None:
        super().__init__(gate, most_sockets, direct=direct)
        self._ready = Ready()

        async def make() -> runtime.RecordReader[T]:
            return runtime.RecordReader(self._gate, format=format, config=config, parking=self._parking)

        self._reader = self._portal.call(make, timeout_s=None, what="making a reader")

    @property
    def channel_index(self) -> int:
        """Which channel the last elements came from."""
        return self._reader.channel_index

    def _close_inside(self) -> None:
        self._reader.close()


class ArrayVisitor(VisitingReader):
    """A reader of arrays, whoever waits for them."""

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None,
        record_bytes: int | None,
        most_sockets: int,
        *,
        direct: bool | None = None,
    ) -> None:
        super().__init__(gate, most_sockets, direct=direct)

        async def make() -> runtime.ArrayReader:
            return runtime.ArrayReader(self._gate, dtype, record_bytes=record_bytes, parking=self._parking)

        self._reader = self._portal.call(make, timeout_s=None, what="making a reader")
        self.events = self._reader.events
        """Application events met so far, with their channel; the caller may clear it."""

    @property
    def channel_index(self) -> int:
        """Which channel the last array came from."""
        return self._reader.channel_index

    async def _next(self) -> npt.NDArray[Any] | None:
        return await anext(self._reader, None)

    def _close_inside(self) -> None:
        self._reader.close()


def is_trickle(elements: list[Any] | None) -> bool:
    """Whether so few records came that the reader is back in a moment; after the end it is not."""
    return elements is not None and len(elements) <= TRICKLE and not isinstance(elements[-1], _EVENTS)


def is_small(array: npt.NDArray[Any] | None) -> bool:
    """The same of an array."""
    return array is not None and array.nbytes <= TRICKLE_BYTES


@final
class RecordReader(RecordVisitor[T]):
    """Iterates over the records of a gate one by one: `for record in RecordReader(gate): ...`.

    As `netstack.RecordReader`: application events come in their place among the records, a channel that a barrier
    blocks goes on when more is asked for, and the iteration ends when every channel has ended. After a `break` the next
    `for` goes on. Used by one thread at a time. A format's `decode` runs in that thread; it must call nothing of the
    TaskManager.
    """

    def __init__(
        self,
        gate: InputGate,
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
        super().__init__(gate, format, config, sys.maxsize, direct=direct)

    def __iter__(self) -> Iterator[T]:
        """The elements that are left; waits for them as long as it takes. Raises as `next_records`."""
        while True:
            yield from self._ready.elements
            records = self.next_records()
            if records is None:
                return
            self._ready.elements = iter(records)

    def next_records(self, *, timeout_s: float | None = None) -> list[T] | None:
        """The next elements, at least one, all of one channel (`channel_index`); None when every channel has ended.

        Raises:
            TimeoutError: none came within `timeout_s`; ask again.
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it was has failed; what came
                before was handed out.
            RecordError: the bytes are no record of the format.
            LocalProtocolError: the gate or the TaskManager was closed, or another thread is in a call of this reader.
        """
        left = list(self._ready.elements)
        if left:
            return left
        return self._run(self._reader.next_records, timeout_s, is_trickle)


@final
class ArrayReader(ArrayVisitor):
    """Iterates over fixed-width records as arrays: `for array in ArrayReader(gate, "<i8"): ...`.

    As `netstack.ArrayReader`: whole records of one channel (`channel_index`), in order; the array belongs to the
    caller. Used by one thread at a time.
    """

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        direct: bool | None = None,
    ) -> None:
        """Takes over the gate; arguments and errors of `netstack.ArrayReader`, and `direct` as of `RecordReader`."""
        super().__init__(gate, dtype, record_bytes, sys.maxsize, direct=direct)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """The arrays that are left; waits for them as long as it takes. Raises as `next_array`."""
        while (array := self.next_array()) is not None:
            yield array

    def next_array(self, *, timeout_s: float | None = None) -> npt.NDArray[Any] | None:
        """The next array, of at least one record; None when every channel has ended.

        Raises:
            TimeoutError, ...: as `RecordReader.next_records`.
        """
        return self._run(self._next, timeout_s, is_small)
