"""Checkpoints of whole jobs are clean cuts: aligned, unaligned, timed, under back-pressure, whatever the tasks."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from jobs import (
    ALIGNED,
    COUNT,
    EVERYTHING,
    EXACT,
    SMALL,
    TIMED,
    UNALIGNED,
    WORKERS,
    Forward,
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
from netstack.job.operators import Output, TaskContext
from netstack.job.spec import InputSpec, Job, TaskSpec

AT_LEAST_ONCE = CheckpointSettings(interval_s=0.05, exactly_once=False, max_concurrent=3)
SEVERAL = CheckpointSettings(interval_s=0.02, max_concurrent=3)


class KeepFast(Keep):
    """The same, a batch at a time."""

    process_batch: Any

    def __init__(self) -> None:
        super().__init__()
        self.process_batch = self._process_batch

    def _process_batch(self, records: list[Any], out: Output) -> None:
        for record in records:
            self.seen.setdefault(key_of(record), []).append((record[0], record[1]))


# Clean cuts.


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [ALIGNED, SEVERAL, UNALIGNED, TIMED], ids=["aligned", "several", "unaligned", "timed"]
)
@WORKERS
@pytest.mark.parametrize("through", [False, True], ids=["straight", "through"])
@virtual
async def test_every_checkpoint_is_a_clean_cut(
    tmp_path: Path, settings: CheckpointSettings, workers: int, through: bool
) -> None:
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 0.001), through=through)
    async with start(job, workers=workers) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    complete = [report.checkpoint_id for report in run.history if report.is_complete]
    assert len(complete) >= 3
    assert {report.reason.partition(":")[0] for report in run.history} <= {"", "subsumed"}
    assert settings is SEVERAL or len(complete) == len(run.history)
    in_flight = sum(check_cut(storage, checkpoint_id) for checkpoint_id in complete)
    assert (in_flight > 0) == settings.unaligned
    assert final(storage) == EVERYTHING


@virtual
async def test_at_least_once_loses_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, AT_LEAST_ONCE, sink=functools.partial(Keep, 0.001))
    async with start(job) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    # Final states for several checkpoints are written at the same time: at the end a newer one may be complete first.
    assert all(report.is_complete or report.reason.startswith("subsumed") for report in run.history)
    complete = [report for report in run.history if report.is_complete]
    assert len(complete) >= 4
    for report in complete:
        positions = {
            snapshot.subtask: snapshot.operator
            for snapshot in storage.read(report.checkpoint_id)
            if snapshot.task == "source"
        }
        sent = {(subtask, number) for subtask, position in positions.items() for number in range(position)}
        assert sent <= set(seen_in(storage, report.checkpoint_id))
    assert final(storage) == EVERYTHING


@virtual
async def test_batches_and_arrays_are_cut_as_cleanly(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=KeepFast)
    async with start(job, workers=2) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    assert all(report.is_complete for report in run.history)
    for report in run.history:
        check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


# Under back-pressure.


@WORKERS
@virtual
async def test_unaligned_checkpoints_do_not_wait_for_the_queue(tmp_path: Path, workers: int) -> None:
    storage = CheckpointStorage(tmp_path)
    settings = CheckpointSettings(unaligned=True)
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 1.0), through=True)
    async with start(job, workers=workers) as run:
        await trio.sleep(60)
        report = await run.checkpoint()
        assert report.is_complete
        # Each sink has to finish the record in hand; everybody else waits between two records.
        assert report.duration_s <= 1.0
        assert all(part.start_delay_s == part.alignment_s == 0 for part in report.subtasks if part.task != "sink")
        before = seen_in(storage, report.checkpoint_id).total()
        assert sum(part.input_bytes + part.output_bytes for part in report.subtasks) > 4 * 256
        again = await run.checkpoint()
        assert again.duration_s <= 1.0
        assert seen_in(storage, again.checkpoint_id).total() - before <= 4
    for part in (report, again):
        assert check_cut(storage, part.checkpoint_id) > 100


@virtual
async def test_aligned_checkpoints_wait_for_the_queue_and_timed_ones_not_longer_than_told(tmp_path: Path) -> None:
    durations = {}
    for name, settings in {
        "aligned": CheckpointSettings(),
        "timed": CheckpointSettings(unaligned=True, aligned_timeout_s=5.0),
    }.items():
        job = job_of(tmp_path / name, settings, sink=functools.partial(Keep, 1.0), through=True)
        async with start(job, workers=2) as run:
            await trio.sleep(60)
            report = await run.checkpoint()
        assert report.is_complete
        in_flight = check_cut(CheckpointStorage(tmp_path / name), report.checkpoint_id)
        assert (in_flight > 0) == (name == "timed")
        durations[name] = report.duration_s
    assert durations["aligned"] > 30
    assert 5 <= durations["timed"] <= 8


# Inputs and outputs.


@pytest.mark.slow
@EXACT
@WORKERS
@virtual
async def test_two_inputs_and_two_outputs(tmp_path: Path, settings: CheckpointSettings, workers: int) -> None:
    inputs: Counter[int] = Counter()

    class Join(Keep):
        context: TaskContext

        def open(self, context: TaskContext) -> None:
            self.context = context

        async def process(self, record: Any, out: Output) -> None:
            inputs[self.context.input] += 1
            await super().process(record, out)

    job = Job(
        tasks=(
            TaskSpec("source", Numbers, parallelism=2),
            TaskSpec("between", Forward, inputs=(InputSpec("source"),)),
            TaskSpec(
                "sink",
                functools.partial(Join, 0.001),
                parallelism=2,
                inputs=(InputSpec("source", key=key_of), InputSpec("between", key=key_of)),
                keyed_state=True,
            ),
        ),
        checkpoints=settings,
        folder=str(tmp_path),
        keep=1000,
        network=SMALL,
    )
    storage = CheckpointStorage(tmp_path, keep=1000)
    async with start(job, workers=workers) as run:
        await run.wait()
    assert inputs == {0: 2 * COUNT, 1: 2 * COUNT}
    twice = EVERYTHING + EVERYTHING
    assert final(storage) == twice
    middle = run.history[len(run.history) // 2]
    assert middle.is_complete
    async with start(job, workers=workers, restore=middle.checkpoint_id) as run:
        await run.wait()
    assert final(storage) == twice


@virtual
async def test_records_larger_than_all_buffers_pass(tmp_path: Path) -> None:
    class Large(Numbers):
        async def read(self) -> list[Any] | None:
            records = await super().read()
            return None if records is None else [[*record, b"x" * 5000] for record in records]

    job = job_of(tmp_path, UNALIGNED, source=functools.partial(Large, 20), through=True)
    async with start(job, workers=2) as run:
        await run.wait()
    assert {report.is_complete for report in run.history} == {True}
    assert final(CheckpointStorage(tmp_path)).total() == 40
