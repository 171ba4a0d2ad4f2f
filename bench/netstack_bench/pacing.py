"""When records are due: open-loop pacing, the end of the run, samples of emit times, and a slow consumer.

- Every engine is paced the same way: sleep until `SPIN_NS` before the due time, then spin on the clock. A trio engine
  sleeps by a kernel timer (`alarm`): trio's sleep is too coarse for a thousand records per second, and a core that
  never sleeps delays other processes. Where other processes need the processor, no engine spins: the timer alone wakes
  the task, 50 to 150 us late.
- Open loop: record i is due at `start_ns + i / rate`, regardless of earlier records. A late pacer returns everything
  that is due at once and never moves a due time, so a stall is visible in the latencies.
- Records that were due before the end of a run are sent even when late, up to twice the run's length: otherwise the
  worst latencies would be missing.
- The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, final

import numpy as np
import numpy.typing as npt
import trio

from netstack.base.timing.alarm import Alarm

# A sleeping process wakes 50 to 150 us late, so sleeping stops before the due time. Much more would keep a core busy
# at usual rates and slow down engines with threads of their own: at 1,000 records/s, 2 ms cost pyzmq 20 us.
SPIN_NS = 250_000
# One latency sample per millisecond is cheap and sufficient for a p99 of a few seconds.
SAMPLE_INTERVAL_NS = 1_000_000
_SAMPLES_AT_MOST = 1 << 15
_SAMPLES_OF_A_BATCH = 16

clock_ns = time.monotonic_ns


def due_ns(start_ns: int, rate_per_s: float, index: int) -> int:
    """When record `index` is due."""
    return start_ns + int(index * (1e9 / rate_per_s))


def due_ns_many(start_ns: int, rate_per_s: float, indexes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """`due_ns` for an array of indexes, with bit-identical results."""
    return start_ns + (indexes.astype(np.float64) * (1e9 / rate_per_s)).astype(np.int64)


class Pacer:
    """Returns how many records to send now, until the run is over.

    The producer must send all that were returned (`sent_records`). `stopped_ns` is the end of the run, 0 before.
    """

    __slots__ = (
        "_alarm",
        "_give_up_ns",
        "_interval_ns",
        "_limit",
        "_most",
        "_spin_ns",
        "_start_ns",
        "sent_records",
        "stopped_ns",
    )

    def __init__(
        self,
        *,
        start_ns: int,
        most: int,
        records: int | None = None,
        seconds: float | None = None,
        rate_per_s: float | None = None,
        spins: bool = True,
    ) -> None:
        """Creates the pacer of a run that ends after `records` or `seconds`.

        Record 0 is due at `start_ns`; a span has `most` records at most, and exactly that many without a rate. A trio
        engine that does not spin sleeps only: it is about 100 us late, and leaves the processor to others.
        """
        self._start_ns = start_ns
        self._most = most
        self._interval_ns = None if rate_per_s is None else 1e9 / rate_per_s
        self._limit = records
        self._give_up_ns = None if seconds is None else start_ns + int(seconds * 1e9)
        if rate_per_s is not None and seconds is not None:
            self._limit = math.ceil(seconds * rate_per_s)
            self._give_up_ns = start_ns + int(2 * seconds * 1e9)
        self._spin_ns = SPIN_NS if spins else 0
        self._alarm: Alarm | None = None  # created on first use: threads have none
        self.sent_records = 0
        self.stopped_ns = 0

    @property
    def is_early(self) -> bool:
        """Whether no record is due yet."""
        return self._wait_until_ns() > 0

    def next_span(self) -> int:
        """Waits until a record is due, then returns how many to send now; 0 when the run is over."""
        wait_ns = self._wait_until_ns()
        if wait_ns:
            spin_from = wait_ns - SPIN_NS
            while (now := clock_ns()) < wait_ns:
                if now < spin_from:
                    time.sleep((spin_from - now) / 1e9)
        return self._take()

    async def next_span_async(self) -> int:
        """`next_span` for trio; other tasks run while it waits.

        It is a checkpoint only if it waits. Cancellation: no records were returned.
        """
        import trio

        wait_ns = self._wait_until_ns()
        if wait_ns:
            alarm = self._alarm
            if alarm is None:
                alarm = self._alarm = Alarm()
            spin_from = wait_ns - self._spin_ns
            while (now := clock_ns()) < wait_ns:
                if now < spin_from:
                    await alarm.wait_until(spin_from)
                else:
                    await trio.lowlevel.checkpoint()
        return self._take()

    def _wait_until_ns(self) -> int:
        if self.stopped_ns or (self._limit is not None and self.sent_records >= self._limit):
            return 0
        due = self._start_ns
        if self._interval_ns is not None:
            due += int(self.sent_records * self._interval_ns)
        return due if clock_ns() < due else 0

    def _take(self) -> int:
        now = clock_ns()
        count = 0 if self.stopped_ns else self._available(now)
        if count:
            self.sent_records += count
        elif not self.stopped_ns:
            self.stopped_ns = now
            if self._alarm is not None:
                self._alarm.close()
        return count

    def _available(self, now: int) -> int:
        if self._give_up_ns is not None and now >= self._give_up_ns:
            return 0
        count = self._most
        if self._limit is not None:
            count = min(count, self._limit - self.sent_records)
        if self._interval_ns is not None:
            # One more nanosecond, because due times are rounded down: the awaited record must count as due.
            count = min(count, int((now - self._start_ns + 1) / self._interval_ns) + 1 - self.sent_records)
        return max(count, 0)


class Sampler:
    """Stores (index, emit time) of about one record, or of 16 records of one batch, per millisecond, in bounded memory.

    When the memory is full, every second sample is dropped and the interval doubles, so samples cover a run of any
    length.
    """

    __slots__ = ("_indexes", "_interval_ns", "_next_ns", "_times")

    def __init__(self) -> None:
        self._indexes: list[int] = []
        self._times: list[int] = []
        self._interval_ns = SAMPLE_INTERVAL_NS
        self._next_ns = 0

    def offer(self, index: int, at_ns: int | None = None) -> None:
        """Stores a record if a sample is due; called just before it is emitted, with indexes that do not decrease.

        Its latency starts at `at_ns`, by default now.
        """
        self._offer(range(index, index + 1), clock_ns() if at_ns is None else at_ns)

    def offer_batch(self, first: int, count: int) -> None:
        """The same for a batch, whose records are emitted together: records all over it are stored.

        On a slow line a batch takes long to arrive, and its first records come much earlier than its last.
        """
        stride = -(-count // _SAMPLES_OF_A_BATCH)
        at_ns = clock_ns()
        self._offer(range(first + at_ns % stride, first + count, stride), at_ns)

    def _offer(self, indexes: range, now: int) -> None:
        if now < self._next_ns:
            return
        self._next_ns = now + self._interval_ns
        self._indexes.extend(indexes)
        self._times.extend([now] * len(indexes))
        if len(self._indexes) >= _SAMPLES_AT_MOST:
            del self._indexes[::2], self._times[::2]
            self._interval_ns *= 2

    def samples(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Indexes and emit times, both ascending."""
        return np.array(self._indexes, dtype=np.int64), np.array(self._times, dtype=np.int64)


GRAIN_NS: Final = 10_000_000
"""The lead over its turns at which a consumer sleeps, and the limit of what it may catch up."""


@final
class Throttle:
    """Limits a consumer to `rate_per_s` records per second; arrays should be taken in parts of `step_records`.

    Turns are evenly spread. A late consumer does not catch up, except within the grain of the sleep: late wake-ups are
    the rule and would otherwise lower the rate.
    """

    __slots__ = ("_free_ns", "_interval_ns", "_now_ns", "step_records")

    def __init__(self, rate_per_s: float, *, now_ns: Callable[[], int] = clock_ns) -> None:
        self._interval_ns = 1e9 / rate_per_s
        self._now_ns = now_ns
        self._free_ns = 0.0  # when the next record may be taken
        self.step_records = max(1, int(GRAIN_NS / self._interval_ns))

    async def turn(self, records: int) -> None:
        """Waits until this many records may be taken; a checkpoint only if it waits.

        Cancellation: the turn is used up.
        """
        now = self._now_ns()
        free = max(self._free_ns, now - GRAIN_NS)
        self._free_ns = free + records * self._interval_ns
        ahead = self._free_ns - now
        if ahead > GRAIN_NS:
            await trio.sleep((ahead - GRAIN_NS) / 1e9)
