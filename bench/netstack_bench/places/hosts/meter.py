"""Progress of a benchmark task: a message every `PERIOD_S`, and the waits of the whole run at its end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, final

import trio

from netstack.cluster.task.invokable import InvokableTask
from netstack.network.handles import InputGate, ResultPartition

from ...host import cpu_seconds
from ...machine_load import lost_s
from ...pacing import clock_ns

PERIOD_S: Final = 0.25
"""Time between progress messages."""

_EARLY_S: Final = 0.05
_COST: Final = 0.01  # part of the time for reading the statistics of many channels


@final
class Meter:
    """Records and waits of one task since the meter was created.

    `start_ns` is the start of the run in this host's clock.
    """

    def __init__(
        self,
        start_ns: int,
        records: Callable[[], int],
        *,
        partition: ResultPartition | None = None,
        gate: InputGate | None = None,
    ) -> None:
        self._start_ns = start_ns
        self._records = records
        self._partition = partition
        self._gate = gate
        self._before = self._waited()
        self._cpu_before_s = cpu_seconds()

    def sample(self) -> dict[str, Any]:
        """Seconds since the start, records, seconds waited (0 for what the task does not do), usage of its pool.

        The figures of `netstack_bench.machine_load` are added as totals.
        """
        usage = 0.0
        if self._partition is not None:
            usage = self._partition._engine.pool.statistics().usage
        elif self._gate is not None:
            usage = self._gate.statistics().in_pool_usage
        waited = {name: value - self._before[name] for name, value in self._waited().items()}
        return {
            "t_s": (clock_ns() - self._start_ns) / 1e9,
            "records": self._records(),
            **waited,
            **lost_s(),
            "pool_usage": usage,
        }

    def cpu_s(self) -> float:
        """CPU seconds of the whole process since the meter was created."""
        return cpu_seconds() - self._cpu_before_s

    def _waited(self) -> dict[str, float]:
        waits = {}
        if self._partition is not None:
            now_s = self._partition._engine.host.now()
            waits["soft_s"] = self._partition._engine.soft_backpressured.total_s(now_s)
            waits["hard_s"] = self._partition._engine.hard_backpressured.total_s(now_s)
        if self._gate is not None:
            waits["idle_s"] = self._gate._engine.idle.total_s(self._gate._engine.now())
        return waits


@asynccontextmanager
async def reporting_progress(task: InvokableTask, meter: Meter) -> AsyncIterator[None]:
    """Sends progress messages while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report, task, meter)
        yield
        nursery.cancel_scope.cancel()


async def _report(task: InvokableTask, meter: Meter) -> None:
    while True:
        began = time.thread_time()
        sample = meter.sample()
        task.send({"event": "progress", **sample})
        period_s = min(PERIOD_S, max(_EARLY_S, sample["t_s"] / 5))  # a short run needs a timeline, too
        await trio.sleep(max(period_s, (time.thread_time() - began) / _COST))
