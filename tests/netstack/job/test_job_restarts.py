"""Jobs that are restarted, from any checkpoint and with any parallelism, count every record once."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from jobs import (
    COUNT,
    EVERYTHING,
    EXACT,
    SMALL,
    UNALIGNED,
    Keep,
    Numbers,
    check_cut,
    final,
    job_of,
    key_of,
    seen_in,
    start,
    virtual,
)

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.storage import CheckpointStorage
from netstack.job.operators import Output
from netstack.job.spec import InputSpec, Job, TaskSpec

# Restarts.


@pytest.mark.slow
@EXACT
@virtual
async def test_a_restart_from_any_checkpoint_gives_the_same_counts(
    tmp_path: Path, settings: CheckpointSettings
) -> None:
    storage = CheckpointStorage(tmp_path, keep=1000)
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 0.002))
    async with start(job, workers=2) as run:
        await run.wait()
    complete = [report.checkpoint_id for report in run.history]
    for number, checkpoint_id in enumerate(complete[::3]):
        # With another parallelism each time; in flight is then somebody else's.
        again = job_of(tmp_path, settings, source=functools.partial(Numbers, pause_s=0.003), parallelism=number % 3 + 1)
        async with start(again, workers=2, restore=checkpoint_id) as run:
            assert run.restored_from == checkpoint_id
            await run.wait()
        for report in run.history:
            check_cut(storage, report.checkpoint_id)
        assert final(storage) == EVERYTHING


@pytest.mark.slow
@virtual
async def test_a_job_that_dies_again_and_again_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=functools.partial(Keep, 0.002), through=True)
    restored = []
    for lifetime_s in (0.02, 0.17, 0.23, 0.31, 86_400):
        with trio.move_on_after(lifetime_s):
            async with start(job, workers=2) as run:
                restored.append(run.restored_from)
                await run.wait()
    assert restored[:2] == [None, None]
    numbers = [number for number in restored if number is not None]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


@virtual
async def test_recovered_records_that_are_not_processed_yet_are_in_the_next_checkpoint(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    slow = functools.partial(Keep, 0.5)
    settings = CheckpointSettings(unaligned=True)
    async with start(job_of(tmp_path, settings, sink=slow), workers=2) as run:
        await trio.sleep(5)
        first = await run.checkpoint()
    async with start(job_of(tmp_path, settings, sink=slow, parallelism=3), workers=2) as run:
        assert run.restored_from == first.checkpoint_id
        await trio.sleep(3)
        second = await run.checkpoint()
    assert check_cut(storage, first.checkpoint_id) > 100
    assert check_cut(storage, second.checkpoint_id) > 100
    assert seen_in(storage, second.checkpoint_id) > seen_in(storage, first.checkpoint_id)
    async with start(job_of(tmp_path, settings, parallelism=1)) as run:
        assert run.restored_from == second.checkpoint_id
        await run.wait()
    assert final(storage) == EVERYTHING


@virtual
async def test_a_job_that_has_ended_ends_again_at_once(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED)
    async with start(job) as run:
        await run.wait()
    began = trio.current_time()
    async with start(job) as run:
        assert run.restored_from is not None
        await run.wait()
    assert trio.current_time() - began < 0.05
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


class SumUp:
    """Emits what it has at the end; then it has nothing."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, record: Any, out: Output) -> None:
        self.count += 1

    def finish(self, out: Output) -> None:
        for number in range(self.count):
            out.collect([0, number])
        self.count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, states: list[Any]) -> None:
        self.count = sum(states)


@pytest.mark.slow
@virtual
async def test_what_is_emitted_at_the_end_comes_once_whatever_checkpoint_is_restored(tmp_path: Path) -> None:
    job = Job(
        tasks=(
            TaskSpec("source", Numbers, parallelism=2),
            TaskSpec("sum", SumUp, parallelism=2, inputs=(InputSpec("source"),)),
            TaskSpec("sink", functools.partial(Keep, 0.001), inputs=(InputSpec("sum", key=key_of),), keyed_state=True),
        ),
        checkpoints=UNALIGNED,
        folder=str(tmp_path),
        keep=1000,
        network=SMALL,
    )
    storage = CheckpointStorage(tmp_path, keep=1000)
    async with start(job, workers=2) as run:
        await run.wait()
    reports = run.history
    assert {report.is_complete for report in reports} == {True}
    expected = Counter({(0, number): 2 for number in range(COUNT)})
    assert final(storage) == expected
    during_the_end = 0
    for report in reports[::3]:
        during_the_end += bool(seen_in(storage, report.checkpoint_id))
        async with start(job, restore=report.checkpoint_id) as run:
            await run.wait()
        assert final(storage) == expected
    assert during_the_end >= 2
