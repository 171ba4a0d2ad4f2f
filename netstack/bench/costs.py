"""Where a buffer's and a record's microseconds go: `netstack-bench run --profile`.

Takes: the event loop that runs one side of a measurement. Gives: seconds by what was done in them, which add up to the
whole time, and what that is for a buffer and for a record.

How: the functions at the borders of netstack's parts are wrapped for as long as it is measured, and the loop says when
it sleeps and which task it runs. Each moment counts once, for the innermost of them. What is inside a border (compiled
code, the selector, the loop of the application) is the border's own time. A border that is crossed costs about half a
microsecond twice, which is printed beside the table: shares are to be trusted, rates under a profile are not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final, TypeAlias, final

import trio

from netstack.runtime import pump, record_reader, spin
from netstack.transports._sockets import SocketStream

from .rows import RowSource, RowVerifier
from .sink import Verifier
from .source import Source

ASLEEP: Final = "asleep: nothing to do, or not woken yet"
LOOP: Final = "scheduler of the event loop"
OTHER: Final = "other tasks"
WORK: Final = {"producer": "encode, copy into buffers", "consumer": "the application's loop"}
FIGURES: Final = ("seconds", "share", "us_per_buffer", "ns_per_record")

_BORDERS: Final[tuple[tuple[Any, str, str], ...]] = (
    (SocketStream, "try_send", "system calls: send"),
    (SocketStream, "try_receive_into", "system calls: receive"),
    (pump.Pump, "write_now", "frames out"),
    (pump.Pump, "read_now", "frames in"),
    (record_reader.RecordReader, "_elements_of", "decode, give credit"),
    (record_reader.ArrayReader, "_take", "decode, give credit"),
    (spin, "offer_processor", "look before parking"),
    (Source, "records", "make records (the benchmark)"),
    (Source, "array", "make records (the benchmark)"),
    (Source, "arrow", "make records (the benchmark)"),
    (RowSource, "records", "make records (the benchmark)"),
    (RowSource, "arrow", "make records (the benchmark)"),
    (Verifier, "feed", "verify (the benchmark)"),
    (Verifier, "feed_array", "verify (the benchmark)"),
    (Verifier, "feed_arrow", "verify (the benchmark)"),
    (RowVerifier, "feed", "verify (the benchmark)"),
    (RowVerifier, "feed_arrow", "verify (the benchmark)"),
)
"""Where, which function, and what its time is called."""

Cost: TypeAlias = dict[str, Any]


@final
class Costs(trio.abc.Instrument):
    """Adds up what one thread's time went into.

    Attributes:
        seconds: by what was done in them.
        crossings: how many borders were crossed.
    """

    def __init__(self, role: str, clock: Callable[[], float] = perf_counter) -> None:
        """Made inside the task whose work is measured separately from that of others.

        Args:
            role: `producer` or `consumer`.
            clock: seconds.
        """
        self.seconds: dict[str, float] = {}
        self.crossings = 0
        self._role = role
        self._task = trio.lowlevel.current_task()
        self._clock = clock
        self._inside = [LOOP, WORK[role]]
        self._since = clock()

    def enter(self, what: str) -> None:
        """From now on time goes into this."""
        now = self._clock()
        inside = self._inside[-1]
        self.seconds[inside] = self.seconds.get(inside, 0.0) + now - self._since
        self._since = now
        self._inside.append(what)
        self.crossings += 1

    def leave(self) -> None:
        """And now into what it went into before."""
        now = self._clock()
        inside = self._inside.pop()
        self.seconds[inside] = self.seconds.get(inside, 0.0) + now - self._since
        self._since = now

    def wrapped(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The function with its time told apart."""

        @functools.wraps(function)
        def measured(*arguments: Any, **keywords: Any) -> Any:
            self.enter(what)
            try:
                return function(*arguments, **keywords)
            finally:
                self.leave()

        return measured

    def before_io_wait(self, timeout: float) -> None:
        """Trio: the loop asks the kernel, and may sleep."""
        self.enter(ASLEEP)

    def after_io_wait(self, timeout: float) -> None:
        """Trio: it is awake."""
        self.leave()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio: a task goes on."""
        self.enter(WORK[self._role] if task is self._task else OTHER)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio: it waits."""
        self.leave()

    def table(self, buffers: int | None, records: int) -> list[Cost]:
        """A row for each thing time went into, the most first: its share, and what it is for a buffer and a record."""
        whole = sum(self.seconds.values())
        return [
            {
                "side": self._role,
                "what": what,
                "seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "us_per_buffer": seconds * 1e6 / buffers if buffers else None,
                "ns_per_record": seconds * 1e9 / records if records else None,
            }
            for what, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        ]


@contextlib.contextmanager
def profiled(role: str, wanted: bool) -> Iterator[Costs | None]:
    """Measures one side for as long as the block runs; nothing, and for nothing, if it is not wanted.

    Used inside the task that does the side's work.
    """
    if not wanted:
        yield None
        return
    costs = Costs(role)
    before = []
    for where, name, what in _BORDERS:
        function = getattr(where, name)
        before.append((where, name, function))
        setattr(where, name, costs.wrapped(function, what))
    trio.lowlevel.add_instrument(costs)
    try:
        yield costs
    finally:
        trio.lowlevel.remove_instrument(costs)
        costs.enter(LOOP)  # what has been going on until now is added up
        for owner, name, function in before:
            setattr(owner, name, function)
