"""Metrics of one side over a run: totals of counters, means of gauges, waits per second.

- A side has one partition, and one gate or one for each channel, whose metrics become one number; metrics that a side
  does not have are left out.
- Counters (`..._total`) cover the whole run, the longest wait too. Waits per second (`..._ms_per_second`) cover the
  time between the start and the end of the side's work. Other gauges are means of samples: all queues are empty at the
  end.
- Sampling takes at most one per cent of the loop's time. In runs at a rate it takes at most a thousandth, and samples
  are rarer, because a record or two come late at each. The timeline consists of the same samples.
- Samples are due at random moments, and a thread measures the time: the loop's own timers mostly fire together with
  newly arrived data, so queues would look too long. The thread also reads what `/proc` says.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final, TypeAlias, final

import trio

from netstack import NetworkEnvironment
from netstack.network import reader as record_reader
from netstack.network.connection import pump
from netstack.network.metrics.samples import as_dict
from netstack.network.waiting import spin
from netstack_transports._sockets import SocketStream

from .generator import Source
from .host import lost_s
from .pacing import clock_ns
from .rows import RowSource, RowVerifier
from .verifier import RecordVerifier

PERIOD_S: Final = 0.1
"""Time between samples of gauges, as long as sampling is cheap."""

_PERIOD_AT_RATE_S: Final = 0.4  # each sample makes a record or two late: at 1,000 a second less than one per cent

_COST: Final = 0.01
_COST_AT_RATE: Final = 0.001
EARLY_NS: Final = 2_000_000  # a trio sleep ends up to a millisecond late, and the first record is due at the start
_PER_SECOND: Final = "_ms_per_second"
_MOST_SAMPLES: Final = 240  # of a timeline; a longer run repeatedly drops every second one
_SIDES: Final = ("output", "input")
_WAITS: Final = {
    "backpressured_ms_per_s": ("netstack_output_soft_backpressured", "netstack_output_hard_backpressured"),
    "idle_ms_per_s": ("netstack_input_idle",),
}

_JITTER: Final = 0.1  # of the period: records may be paced by a divisor of it
Pause: TypeAlias = Callable[[float], Awaitable[dict[str, float]]]  # waits for seconds, returns `lost_s()` of its end
_Seen: TypeAlias = tuple[float, dict[str, float], dict[str, float]]


@final
class Observation:
    """One side's metrics over one run."""

    def __init__(self, manager: NetworkEnvironment, *, is_paced: bool = False) -> None:
        self._manager = manager
        self._period_s, self._cost = (_PERIOD_AT_RATE_S, _COST_AT_RATE) if is_paced else (PERIOD_S, _COST)
        self._sums: dict[str, float] = {}
        self._samples = 0
        self._began_s = manager.now()
        self._before = self._read()
        self._seen = [(0.0, self._before, lost_s())]
        self._every = 1
        self._at_stop: dict[str, float] = {}

    async def sample(self, pause: Pause) -> None:
        """Samples until cancelled, with `pause` before each: at the start the queues are empty."""
        pause_s = self._period_s
        while True:
            lost = await pause(pause_s)
            began = time.thread_time()
            result = self._read()
            for name, value in result.items():
                self._sums[name] = self._sums.get(name, 0.0) + value
            self._samples += 1
            self._keep(result, lost)
            pause_s = max(self._period_s, (time.thread_time() - began) / self._cost)

    def stop(self) -> None:
        """Ends the measured time of waits; called when the side's work is done."""
        result = self._read()
        elapsed_s = self._manager.now() - self._began_s
        if len(self._seen) > 1 and elapsed_s - self._seen[-1][0] < self._period_s / 2:
            self._seen.pop()  # too short for a rate: the last stretch becomes a little longer
        if elapsed_s > self._seen[-1][0]:
            self._seen.append((elapsed_s, dict(result), lost_s()))
        for name, total_s in list(result.items()):
            if name.endswith("_seconds_total"):
                per_second = 1000 * (total_s - self._before[name]) / elapsed_s if elapsed_s > 0 else 0.0
                result[name.removesuffix("_seconds_total") + _PER_SECOND] = per_second
        both = [f"netstack_output_{kind}_backpressured{_PER_SECOND}" for kind in ("soft", "hard")]
        if both[0] in result:
            result[f"netstack_output_backpressured{_PER_SECOND}"] = sum(result[name] for name in both)
        for name in result:
            if self._samples and not name.endswith(("_total", _PER_SECOND, "_longest_seconds")):
                result[name] = self._sums.get(name, 0.0) / self._samples
        self._at_stop = result

    def result(self) -> dict[str, float]:
        """Every metric, after `stop`; counters have their current values."""
        now = self._read()
        counts = {name: value for name, value in now.items() if name.endswith("_total") and "_seconds_" not in name}
        return {**self._at_stop, **counts}

    def timeline(self) -> list[dict[str, float]]:
        """The course of the run, after `stop`: a sample of each stretch of about a period, a few hundred at most.

        Each has `t_s` (its end, seconds from the start), `records` (so far), `pool_usage` (at its end, a ratio) and
        `backpressured_ms_per_s` (of a writing side) or `idle_ms_per_s` and `busy_ms_per_s` (of a reading side), and the
        figures of `netstack_bench.host`.
        """
        return [_stretch(before, after) for before, after in itertools.pairwise(self._seen)]

    def _keep(self, metrics: dict[str, float], lost: dict[str, float]) -> None:
        elapsed_s = self._manager.now() - self._began_s
        if elapsed_s - self._seen[-1][0] >= (self._every - 0.5) * self._period_s:
            self._seen.append((elapsed_s, metrics, lost))
        if len(self._seen) > _MOST_SAMPLES:
            self._seen = self._seen[::2]
            self._every *= 2

    def _read(self) -> dict[str, float]:
        result: dict[str, float] = {}
        for name, value in as_dict(self._manager.statistics()).items():
            if isinstance(value, dict):
                if value:
                    result[name] = _together(name, list(value.values()))
            else:
                result[name] = value
        return result


def _together(name: str, values: list[float]) -> float:
    """One number for a side with several gates: bytes, buffers and events of all of them, else the mean of theirs."""
    if name.endswith("_longest_seconds"):
        return max(values)
    is_mean = name.endswith(("_ratio", "_seconds_total", "_per_second", "_seconds", "_debloated_buffer_bytes"))
    return sum(values) / len(values) if is_mean else sum(values)


def _stretch(before: _Seen, after: _Seen) -> dict[str, float]:
    (began_s, old, lost), (ended_s, new, lost_more) = before, after
    sample = {"t_s": round(ended_s, 4)}
    for side in _SIDES:
        if f"netstack_{side}_records_total" in new:
            sample["records"] = new[f"netstack_{side}_records_total"]
            sample["pool_usage"] = round(new[f"netstack_{side}_pool_usage_ratio"], 4)
    for name, waits in _WAITS.items():
        if f"{waits[0]}_seconds_total" in new:
            waited_s = sum(new[f"{wait}_seconds_total"] - old.get(f"{wait}_seconds_total", 0.0) for wait in waits)
            sample[name] = round(min(1000.0, 1000 * waited_s / (ended_s - began_s)), 2)
    if "idle_ms_per_s" in sample:
        waited = sample["idle_ms_per_s"] + sample.get("backpressured_ms_per_s", 0.0)
        sample["busy_ms_per_s"] = round(max(0.0, 1000 - waited), 2)
    for name in lost.keys() & lost_more.keys():
        sample[name] = round(max(0.0, 1000 * (lost_more[name] - lost[name]) / (ended_s - began_s)), 2)
    return sample


async def pause_aside(seconds: float) -> dict[str, float]:
    """Waits for about this long in a thread, independently of what wakes the loop; returns what was lost until then.

    Cancellation: at once; the thread ends by itself.
    """
    length_s = seconds * random.uniform(1 - _JITTER, 1 + _JITTER)
    return await trio.to_thread.run_sync(_lost_after, length_s, abandon_on_cancel=True)


def _lost_after(seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return lost_s()


@asynccontextmanager
async def observing(
    manager: NetworkEnvironment, start_ns: int, pause: Pause = pause_aside, *, is_paced: bool = False
) -> AsyncIterator[Observation]:
    """Observes the block, which is entered shortly before the start of the run.

    `is_paced` makes samples rarer, because latencies are measured.
    """
    await trio.sleep(max(0, start_ns - EARLY_NS - clock_ns()) / 1e9)
    observation = Observation(manager, is_paced=is_paced)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observation.sample, pause)
        yield observation
        observation.stop()
        nursery.cancel_scope.cancel()


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
    """Sums the time of one thread by activity (`netstack-bench run --profile`).

    The entry functions of netstack's parts are wrapped while the profile runs, and trio reports when the loop sleeps
    and which task runs. Each moment counts once, for the innermost wrapped function. Time inside it (compiled code, the
    selector, the application's loop) is its own. Each crossing costs about half a microsecond twice; this is printed
    beside the table: trust the shares of a profile, not its rates.

    Crossings are counted too, so the rows of sendmsg, recvmsg and epoll have their numbers of calls. A thread sleeps in
    a futex only where it waits for another thread; no function of netstack's loop does, so these calls are not counted.
    """

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
