"""A task that is cancelled at any moment gives everything back, and closes its operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from task import task_functions
from task.task_functions import Closes, Collect, SlowNumbers, double, key_of
from task.tasks import running
from trio.testing import MockClock

from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings


def job_of(folder: Path) -> StreamEnvironment:
    settings = StreamSettings(
        checkpoints=CheckpointSettings(unaligned=True), checkpoint_folder=str(folder), is_chaining_enabled=False
    )
    job = StreamEnvironment("job", parallelism=2, settings=settings)
    source = job.source(SlowNumbers, parameters={"count": 50, "pause_s": 0.0003}).map(double)
    source.key_by(key_of).process(Closes).rebalance().sink(Collect)
    return job


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233])
async def test_cancelled_after_so_many_rounds_of_the_scheduler(
    autojump_clock: MockClock, tmp_path: Path, rounds: int
) -> None:
    task_functions.OPEN[0] = 0
    with trio.move_on_after(3600) as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def cancel() -> None:
                for _ in range(rounds):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with running(job_of(tmp_path)) as run:  # asserts that every segment is back
                run.trigger(1, unaligned=True)
                await run.wait()
    assert task_functions.OPEN[0] == 0
