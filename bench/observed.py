"""What one side's metrics say of a run: counts in all, gauges on average, waits a second.

Takes: a TaskManager and the start of the run. Gives: plain JSON values, named as in netstack's own catalogue.

Rules:
- A side has one partition or one gate, so each metric is one number; those of what a side does not have are left out.
- Counts (`..._total`) are of the whole run. The longest wait is the longest of the run. Waits a second
  (`..._ms_per_second`) are those between the start and the end of the side's work, and not of the last minute. Every
  other gauge is the mean of samples taken meanwhile: at the end of a run all queues are empty.
- Sampling takes at most one per cent of the time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, final

import trio

from netstack import TaskManager
from netstack.runtime.metrics import as_dict

from .pacing import clock_ns

PERIOD_S: Final = 0.1
"""How often gauges are sampled, as long as that is cheap."""

_COST: Final = 0.01
_EARLY_NS: Final = (
    2_000_000  # a sleep under trio ends up to a millisecond late, and the first record is due at the start
)
_PER_SECOND: Final = "_ms_per_second"


@final
class Observation:
    """One side's metrics over one run."""

    def __init__(self, manager: TaskManager) -> None:
        self._manager = manager
        self._sums: dict[str, float] = {}
        self._samples = 0
        self._began_s = manager.now()
        self._before = self._read()
        self._at_stop: dict[str, float] = {}

    async def sample(self) -> None:
        """Samples until cancelled."""
        while True:
            began = time.perf_counter()
            for name, value in self._read().items():
                self._sums[name] = self._sums.get(name, 0.0) + value
            self._samples += 1
            await trio.sleep(max(PERIOD_S, (time.perf_counter() - began) / _COST))

    def stop(self) -> None:
        """The side's work is done: waits are counted up to here."""
        found = self._read()
        elapsed_s = self._manager.now() - self._began_s
        for name, total_s in list(found.items()):
            if name.endswith("_seconds_total"):
                per_second = 1000 * (total_s - self._before[name]) / elapsed_s if elapsed_s > 0 else 0.0
                found[name.removesuffix("_seconds_total") + _PER_SECOND] = per_second
        both = [f"netstack_output_{kind}_backpressured{_PER_SECOND}" for kind in ("soft", "hard")]
        if both[0] in found:
            found[f"netstack_output_backpressured{_PER_SECOND}"] = sum(found[name] for name in both)
        for name in found:
            if self._samples and not name.endswith(("_total", _PER_SECOND, "_longest_seconds")):
                found[name] = self._sums.get(name, 0.0) / self._samples
        self._at_stop = found

    def result(self) -> dict[str, float]:
        """Every metric, after `stop`; counts as they are now."""
        now = self._read()
        counts = {name: value for name, value in now.items() if name.endswith("_total") and "_seconds_" not in name}
        return {**self._at_stop, **counts}

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in as_dict(self._manager.statistics()).items():
            if isinstance(value, dict):
                found.update(zip([name], value.values(), strict=False))
            else:
                found[name] = value
        return found


@asynccontextmanager
async def observing(manager: TaskManager, start_ns: int) -> AsyncIterator[Observation]:
    """Observes what happens inside the block, which is entered shortly before the start of the run.

    Args:
        manager: whose metrics.
        start_ns: CLOCK_MONOTONIC time.

    Cancellation: nothing is left behind.
    """
    await trio.sleep(max(0, start_ns - _EARLY_NS - clock_ns()) / 1e9)
    observation = Observation(manager)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observation.sample)
        yield observation
        observation.stop()
        nursery.cancel_scope.cancel()
