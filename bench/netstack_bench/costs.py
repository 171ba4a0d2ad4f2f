"""Time per buffer and record: `netstack-bench run --profile`.

The entry functions of netstack's parts are wrapped while the profile runs, and trio reports when the loop sleeps and
which task runs. Each moment counts once, for the innermost wrapped function. Time inside it (compiled code, the
selector, the application's loop) is its own. Each crossing costs about half a microsecond twice; this is printed beside
the table: trust the shares of a profile, not its rates.

Crossings are counted too, so the rows of sendmsg, recvmsg and epoll have their numbers of calls. A thread sleeps in a
futex only where it waits for another thread; no function of netstack's loop does, so these calls are not counted.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final, TypeAlias, final

import trio

from netstack.network import reader as record_reader
from netstack.network.connection import pump
from netstack.network.waiting import spin
from netstack_transports._sockets import SocketStream

from .generator import Source
from .rows import RowSource, RowVerifier
from .verifier import RecordVerifier

ASLEEP: Final = "system calls: epoll, asleep or not yet woken"
LOOP: Final = "scheduler of the event loop"
OTHER: Final = "other tasks"
WORK: Final = {"producer": "encode, copy into buffers", "consumer": "the application's loop"}

_BORDERS: Final[tuple[tuple[Any, str, str], ...]] = (
    (SocketStream, "try_send", "system calls: sendmsg"),
    (SocketStream, "try_receive_into", "system calls: recvmsg"),
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
    (RecordVerifier, "feed", "verify (the benchmark)"),
    (RecordVerifier, "feed_array", "verify (the benchmark)"),
    (RecordVerifier, "feed_arrow", "verify (the benchmark)"),
    (RowVerifier, "feed", "verify (the benchmark)"),
    (RowVerifier, "feed_arrow", "verify (the benchmark)"),
)
"""Module, function, and the name of its time."""

Cost: TypeAlias = dict[str, Any]


@final
class Costs(trio.abc.Instrument):
    """Sums the time of one thread by activity."""

    def __init__(self, role: str, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._role = role
        self._task = trio.lowlevel.current_task()
        self._clock = clock
        self._inside = [LOOP, WORK[role]]
        self._since = clock()

    def enter(self, what: str) -> None:
        """Starts to count time for this activity."""
        now = self._clock()
        inside = self._inside[-1]
        self.seconds[inside] = self.seconds.get(inside, 0.0) + now - self._since
        self.calls[what] = self.calls.get(what, 0) + 1
        self._since = now
        self._inside.append(what)

    def leave(self) -> None:
        """Counts time for the enclosing activity again."""
        now = self._clock()
        inside = self._inside.pop()
        self.seconds[inside] = self.seconds.get(inside, 0.0) + now - self._since
        self._since = now

    def wrapped(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The function, with its time counted under a name."""

        @functools.wraps(function)
        def measured(*arguments: Any, **keywords: Any) -> Any:
            self.enter(what)
            try:
                return function(*arguments, **keywords)
            finally:
                self.leave()

        return measured

    def before_io_wait(self, timeout: float) -> None:
        """Instrument of trio: the loop enters the kernel and may sleep."""
        self.enter(ASLEEP)

    def after_io_wait(self, timeout: float) -> None:
        """Instrument of trio: the loop is awake."""
        self.leave()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Instrument of trio: a task runs."""
        self.enter(WORK[self._role] if task is self._task else OTHER)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Instrument of trio: a task waits."""
        self.leave()

    def table(self, buffers: int | None, records: int) -> list[Cost]:
        """A row for each activity, the largest first: its share, its time per buffer and record, its calls."""
        whole = sum(self.seconds.values())
        return [
            {
                "side": self._role,
                "what": what,
                "seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "us_per_buffer": seconds * 1e6 / buffers if buffers else None,
                "ns_per_record": seconds * 1e9 / records if records else None,
                "calls": self.calls.get(what),
            }
            for what, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        ]


@contextlib.contextmanager
def profiled(role: str, is_on: bool) -> Iterator[Costs | None]:
    """Profiles one side while the block runs; does nothing if it is off.

    Used inside the task that does the side's work.
    """
    if not is_on:
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
        costs.leave()  # adds the time of the current activity
        for owner, name, function in before:
            setattr(owner, name, function)
