"""RecordReader and ArrayReader for blocking threads, and their common base with those for asyncio.

Takes: a gate. Gives: records or arrays in order per channel, fair among channels.

The calling thread decodes and announces credit, as a visitor of the event loop. If `NetworkEnvironment.park_reader`
allows it, the thread also reads the sockets, while the event loop sleeps.

Rules:
- A timeout, Ctrl-C or an error loses no record: the next call returns it.
- Nothing is read ahead of demand: a reader that is not called stops its producers, as under trio.
"""

from __future__ import annotations

import abc
import operator
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, cast, final

import numpy.typing as npt

from ...base.config import NetworkConfig
from ...base.errors import ConfigError, LocalProtocolError
from ...base.events import CancelCheckpointMarker, CheckpointBarrier, UserEvent
from ...exchange.inbound.closing import ClosingContext
from ...exchange.record.fast_path import DecodedRecords
from ...exchange.record.formats import RecordFormat
from .. import reader as runtime
from ..handles import check_handle
from .environment import InputGate
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
"""A reader that waited and then gets at most this many records is expected back at once: credit is announced by its
next call.
"""

TRICKLE_BYTES: Final = 1024
"""The same limit for an array."""


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """A snapshot of a reader.

    Attributes:
        is_direct: whether the calling thread reads the sockets, rather than the TaskManager's thread.
        waits: how often the calling thread parked to wait for data.
    """

    is_direct: bool
    waits: int


class VisitingReader(ClosingContext):
    """The common base: where readers wait, the check for concurrent calls, and closing at the end of `with`."""

    def __init__(self, gate: InputGate, most_sockets: int, *, direct: bool | None = None) -> None:
        check_handle(gate, InputGate, "open_gate")
        self._portal = gate.portal
        self._handle = gate
        self._gate = gate.inner
        self._is_busy = False
        self._fetched: list[Any] = []
        self._parking = gate.park_reader(most_sockets=0 if direct is False else most_sockets)
        if direct and not self._parking.is_at_sockets:
            raise ConfigError(
                "direct=True: the gate has no connection, one that is not a plain socket, or one that another gate"
                " reads;"
                " omit direct to let the TaskManager's thread read the sockets in this case"
            )

    def statistics(self) -> ReaderStatistics:
        """A snapshot; O(1)."""
        return ReaderStatistics(self._parking.is_at_sockets, self._parking.waits)

    def __repr__(self) -> str:
        """Names the thread that reads the gate's sockets."""
        mode = "directly" if self._parking.is_at_sockets else "through the TaskManager's thread"
        return f"<{type(self).__name__} of {self._gate.channel_count} channels, {mode}>"

    def close(self) -> None:
        """Closes the gate; a waiting call raises LocalProtocolError. Idempotent, also after the network is closed.

        Its producers learn that no more records are needed.
        """
        self._portal.end(lambda: self._inside().close(), what="closing a reader")

    def abandon(self) -> None:
        """Closes like `close`, but producers whose records were not all read count this consumer as lost."""
        self._portal.end(lambda: self._inside().abandon(), what="closing a reader")

    @abc.abstractmethod
    def _inside(self) -> ClosingContext:
        """The reader in trio's thread."""

    @abc.abstractmethod
    def _held(self) -> str:
        """Describes what was received and not returned; empty if nothing was."""

    def _describe_unread(self) -> str:
        return self._handle.describe_unread(self._held())

    def _begin(self) -> None:
        """Refuses concurrent calls."""
        if self._is_busy:
            raise LocalProtocolError("another call of this reader is under way; one thread or task at a time")
        self._is_busy = True

    def _run(
        self, call: Callable[[], Coroutine[Any, Any, R]], timeout_s: float | None, is_trickle: Callable[[R], bool]
    ) -> R:
        """Runs a call in this thread, which blocks meanwhile.

        The caller drops what was fetched by an assignment: Python runs signal handlers after calls, not after those, so
        no error of a handler comes between the two.
        """
        check_timeout(timeout_s)
        self._begin()
        try:
            if not self._fetched:
                fetch = self._fetch(call)
                try:
                    self._parking.run(fetch, timeout_s, "waiting for records", comes_again=is_trickle)
                finally:
                    fetch.close()
            return self._fetched[0]  # type: ignore[no-any-return]
        finally:
            self._is_busy = False

    async def _run_in_asyncio(self, call: Callable[[], Coroutine[Any, Any, R]], is_trickle: Callable[[R], bool]) -> R:
        """Runs a call in a task of asyncio."""
        self._begin()
        try:
            if not self._fetched:
                await self._parking.run_in_asyncio(self._fetch(call), comes_again=is_trickle)
            return cast(R, self._fetched.pop())
        finally:
            self._is_busy = False

    async def _fetch(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Stores the result of a call, because Ctrl-C may strike before it is returned."""
        result = await call()
        self._fetched.append(result)
        return result


class RecordVisitor(VisitingReader, Generic[T]):
    """The common base of the record readers."""

    def __init__(
        self,
        gate: InputGate,
        format: RecordFormat | str,
        config: NetworkConfig | None,
        most_sockets: int,
        *,
        aligns_barriers: bool,
        direct: bool | None = None,
    ) -> None:
        super().__init__(gate, most_sockets, direct=direct)
        self._decoded = DecodedRecords()

        async def make() -> runtime.RecordReader[T]:
            return runtime.RecordReader(
                self._gate, format=format, config=config, aligns_barriers=aligns_barriers, parking=self._parking
            )

        self._reader = self._portal.call(make, timeout_s=None, what="making a reader")

    @property
    def channel_index(self) -> int:
        """The channel of the last elements."""
        return self._reader.channel_index

    def _inside(self) -> ClosingContext:
        return self._reader

    def _held(self) -> str:
        fetched = [records for records in self._fetched if records]
        count = operator.length_hint(self._decoded) + sum(map(len, fetched))
        return f"{count} records" if count else ""


class ArrayVisitor(VisitingReader):
    """The common base of the array readers."""

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None,
        record_bytes: int | None,
        most_sockets: int,
        *,
        aligns_barriers: bool,
        direct: bool | None = None,
    ) -> None:
        super().__init__(gate, most_sockets, direct=direct)

        async def make() -> runtime.ArrayReader:
            return runtime.ArrayReader(
                self._gate, dtype, record_bytes=record_bytes, aligns_barriers=aligns_barriers, parking=self._parking
            )

        self._reader = self._portal.call(make, timeout_s=None, what="making a reader")
        self.events = self._reader.events
        """Application events so far, with their channels; the caller may clear it."""

    @property
    def channel_index(self) -> int:
        """The channel of the last array."""
        return self._reader.channel_index

    async def _next(self) -> npt.NDArray[Any] | None:
        return await anext(self._reader, None)

    def _inside(self) -> ClosingContext:
        return self._reader

    def _held(self) -> str:
        if any(array is not None for array in self._fetched):
            return "arrays"
        return self._reader._unread()


def is_trickle(elements: list[Any] | None) -> bool:
    """Whether so few records arrived that the reader will be back at once; not after an event or the end."""
    return elements is not None and len(elements) <= TRICKLE and not isinstance(elements[-1], _EVENTS)


def is_small(array: npt.NDArray[Any] | None) -> bool:
    """`is_trickle` for an array; one without records marks an event."""
    return array is not None and 0 < array.nbytes <= TRICKLE_BYTES


@final
class RecordReader(RecordVisitor[T]):
    """Iterates over the records of a gate: `for record in RecordReader(gate): ...`.

    As for `netstack.RecordReader`, application events appear in order among the records, a channel blocked by a barrier
    is resumed when the next element is requested, and the iteration ends when all channels have ended. After a `break`,
    the next `for` continues. One thread at a time may use a reader. The format's `decode` runs in that thread and must
    not call methods of the TaskManager.
    """

    def __init__(
        self,
        gate: InputGate,
        *,
        format: RecordFormat | str = "bytes",
        config: NetworkConfig | None = None,
        aligns_barriers: bool = False,
        direct: bool | None = None,
    ) -> None:
        """Takes ownership of the gate; arguments as for `netstack.RecordReader`, and `direct`.

        Args:
            gate: from `NetworkEnvironment.open_gate`; a gate has one reader.
            format: the format of the `RecordWriter`.
            config: as for `netstack.RecordReader`.
            aligns_barriers: as for `netstack.RecordReader`.
            direct: whether the calling thread reads the sockets; None does so if possible, True raises if not.

        Raises:
            ConfigError: `direct=True`, and the thread cannot read the sockets.
        """
        super().__init__(gate, format, config, sys.maxsize, aligns_barriers=aligns_barriers, direct=direct)

    def __iter__(self) -> Iterator[T]:
        """The remaining elements; waits for them without a limit. Raises as `next_records`."""
        while True:
            yield from self._decoded
            records = self._run(self._reader.next_records, None, is_trickle)
            self._decoded.put(records or [])
            self._fetched = []
            if records is None:
                return

    def next_records(self, *, timeout_s: float | None = None) -> list[T] | None:
        """The next elements, at least one, all of one channel (`channel_index`); None when all channels have ended.

        Raises:
            TimeoutError: none arrived within `timeout_s`; the call can be repeated.
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it is has failed; earlier data
                was returned.
            RecordError: the received bytes are not a record of the format.
            LocalProtocolError: the gate or the TaskManager was closed, or another thread is in a call of this reader.
        """
        left = [*self._decoded]
        if left:
            return left
        records = self._run(self._reader.next_records, timeout_s, is_trickle)
        self._fetched = []
        return records


@final
class ArrayReader(ArrayVisitor):
    """Iterates over fixed-width records as arrays: `for array in ArrayReader(gate, "<i8"): ...`.

    As for `netstack.ArrayReader`: complete records of one channel (`channel_index`), in order; the array belongs to the
    caller. One thread at a time may use a reader.
    """

    def __init__(
        self,
        gate: InputGate,
        dtype: npt.DTypeLike | None = None,
        *,
        record_bytes: int | None = None,
        aligns_barriers: bool = False,
        direct: bool | None = None,
    ) -> None:
        """Takes ownership of the gate; arguments and errors as for `netstack.ArrayReader`; `direct` as above."""
        super().__init__(gate, dtype, record_bytes, sys.maxsize, aligns_barriers=aligns_barriers, direct=direct)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """The remaining arrays; waits for them without a limit. Raises as `next_array`."""
        while (array := self.next_array()) is not None:
            yield array

    def next_array(self, *, timeout_s: float | None = None) -> npt.NDArray[Any] | None:
        """The next array; None when all channels have ended. Only a mark has no record (see `netstack.ArrayReader`).

        Raises:
            TimeoutError, ...: as `RecordReader.next_records`.
        """
        array = self._run(self._next, timeout_s, is_small)
        self._fetched = []
        return array
