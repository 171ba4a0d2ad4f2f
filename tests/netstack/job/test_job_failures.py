"""Jobs in which something fails, takes too long or is left: who is told, and that nothing is left behind."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from jobs import EVERYTHING, EXACT, UNALIGNED, WORKERS, Files, Keep, Numbers, check_cut, final, job_of, start, virtual

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.storage import CheckpointStorage
from netstack.errors import CheckpointError, CheckpointStorageError, ConfigError, LocalProtocolError
from netstack.job.master import JobFailed
from netstack.job.operators import Output, TaskContext
from netstack.job.spec import Job

# What goes wrong.


@EXACT
@virtual
async def test_a_full_disk_aborts_the_checkpoint_not_the_job(tmp_path: Path, settings: CheckpointSettings) -> None:
    files = Files()
    storage = CheckpointStorage(tmp_path)
    on_request = dataclasses.replace(settings, interval_s=None)
    async with start(job_of(tmp_path, on_request, through=True), workers=2, files=files) as run:
        reports = []
        for files.is_full in (False, True, True, False):
            await trio.sleep(0.005)
            reports.append(await run.checkpoint())
        await run.wait()
    assert [report.is_complete for report in reports] == [True, False, False, True]
    assert "No space left on device" in reports[1].reason
    for report in (reports[0], reports[3]):
        check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


@virtual
async def test_state_that_cannot_be_stored_aborts_the_checkpoint(tmp_path: Path) -> None:
    class Odd(Keep):
        def snapshot(self) -> Any:
            return {1: object()}

    async with start(job_of(tmp_path, CheckpointSettings(), sink=Odd)) as run:
        report = await run.checkpoint()
        assert not report.is_complete
        assert "cannot be stored" in report.reason
        await run.wait()


@pytest.mark.slow
@EXACT
@virtual
async def test_a_checkpoint_that_takes_too_long_is_aborted_everywhere(
    tmp_path: Path, settings: CheckpointSettings
) -> None:
    patient = CheckpointSettings(
        interval_s=0.05,
        timeout_s=0.02,
        unaligned=settings.unaligned,
        aligned_timeout_s=1.0 if settings.aligned_timeout_s else 0.0,
    )
    job = job_of(tmp_path, patient, sink=functools.partial(Keep, 0.003), through=True)
    async with start(job, workers=2) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    if settings is not UNALIGNED:
        assert sum("timed out" in report.reason for report in run.history) >= 3
    for report in run.history:
        if report.is_complete:
            check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


@virtual
async def test_too_many_failed_checkpoints_fail_the_job_if_that_is_asked_for(tmp_path: Path) -> None:
    files = Files()
    files.is_full = True
    settings = CheckpointSettings(interval_s=0.01, tolerable_failures=2)
    with pytest.raises(JobFailed, match="3 checkpoints failed in a row"):
        async with start(job_of(tmp_path, settings), files=files) as run:
            await run.wait()


@WORKERS
@virtual
async def test_a_task_that_fails_is_named_and_ends_the_job(tmp_path: Path, workers: int) -> None:
    class Fail(Keep):
        async def process(self, record: Any, out: Output) -> None:
            await super().process(record, out)
            if record == [1, 200]:
                raise ValueError("not this one")

    job = job_of(tmp_path, UNALIGNED, sink=Fail, through=True)
    with pytest.raises(JobFailed, match=r"sink-\d failed: ValueError: not this one") as caught:
        async with start(job, workers=workers) as run:
            await run.wait()
    assert caught.value.task == "sink"
    assert isinstance(caught.value.__cause__, ValueError)
    async with start(job_of(tmp_path, UNALIGNED, through=True), workers=workers) as run:
        await run.wait()
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


@virtual
async def test_a_source_that_fails_and_a_sink_that_cannot_open(tmp_path: Path) -> None:
    class NoOpen(Keep):
        def open(self, context: TaskContext) -> None:
            raise OSError("no such table")

    class NoRead(Numbers):
        async def read(self) -> list[Any] | None:
            return []

    with pytest.raises(JobFailed, match="OSError: no such table"):
        async with start(job_of(tmp_path, None, sink=NoOpen), workers=2):
            raise AssertionError("never entered")
    with pytest.raises(JobFailed, match=r"source-\d failed: RecordError: source source-\d read nothing"):
        async with start(job_of(tmp_path, None, source=NoRead)) as run:
            await run.wait()


@virtual
async def test_a_checkpoint_that_somebody_waits_for_ends_with_the_job(tmp_path: Path) -> None:
    class Stuck(Keep):
        async def process(self, record: Any, out: Output) -> None:
            await trio.sleep(10)
            raise ValueError("stuck")

    async with start(job_of(tmp_path, CheckpointSettings(), sink=Stuck)) as run:
        await trio.sleep(1)
        report = await run.checkpoint()
        assert report.reason.startswith("task failed: sink-")
        with pytest.raises(JobFailed, match="stuck"):
            await run.checkpoint()
    assert run.history == [report]


@virtual
async def test_without_checkpoints_a_job_just_runs(tmp_path: Path) -> None:
    sinks: list[Keep] = []

    def sink() -> Keep:
        sinks.append(Keep())
        return sinks[-1]

    async with start(job_of(tmp_path, None, sink=sink)) as run:
        with pytest.raises(LocalProtocolError, match="takes no checkpoint"):
            await run.checkpoint()
        await run.wait()
    assert run.history == []
    assert run.statistics() is None
    seen = Counter(record for sink in sinks for records in sink.seen.values() for record in records)
    assert seen == EVERYTHING


@virtual
async def test_leaving_the_block_cancels(tmp_path: Path) -> None:
    async with start(job_of(tmp_path, UNALIGNED), workers=2) as run:
        await trio.sleep(0.02)
    with pytest.raises(LocalProtocolError, match="cancelled"):
        await run.wait()
    with pytest.raises(LocalProtocolError, match="cancelled"):
        await run.checkpoint()
    own = KeyError("of the caller")
    with pytest.raises(KeyError) as caught:
        async with start(job_of(tmp_path, UNALIGNED), workers=2):
            raise own
    assert caught.value is own


@virtual
async def test_what_a_cancelled_run_had_begun_is_removed(tmp_path: Path) -> None:
    settings = CheckpointSettings()
    async with start(job_of(tmp_path, settings, sink=functools.partial(Keep, 1.0))) as run:
        await trio.sleep(0.5)
        with trio.move_on_after(5):
            await run.checkpoint()
        assert [path.name for path in (tmp_path / "chk-00000001").iterdir()]  # the sources have written theirs
    assert [report.reason for report in run.history] == ["stopped: the job ends"]
    assert not (tmp_path / "chk-00000001").exists()
    assert CheckpointStorage(tmp_path).next_id() == 2  # its number is not used again


@virtual
async def test_savepoints_are_aligned_and_kept(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=functools.partial(Keep, 0.001), keep=1)
    async with start(job) as run:
        await trio.sleep(0.08)
        report = await run.checkpoint(savepoint=True)
        await run.wait()
    assert report.is_savepoint
    assert report.is_complete
    storage = CheckpointStorage(tmp_path, keep=1)
    assert check_cut(storage, report.checkpoint_id) == 0
    async with start(job, restore=report.checkpoint_id) as run:
        await run.wait()
    assert final(storage) == EVERYTHING


@virtual
async def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED)
    with pytest.raises(ConfigError, match="nowhere to keep"):
        async with start(Job(tasks=job.tasks, checkpoints=UNALIGNED)):
            raise AssertionError("never entered")
    with pytest.raises(ConfigError, match="no folder"):
        async with start(Job(tasks=job.tasks), restore=3):
            raise AssertionError("never entered")
    with pytest.raises(JobFailed, match="CheckpointStorageError") as caught:
        async with start(job, restore=99):
            raise AssertionError("never entered")
    assert isinstance(caught.value.__cause__, CheckpointStorageError)
    assert issubclass(CheckpointStorageError, CheckpointError)
    with pytest.raises(ConfigError, match="as many addresses"):
        async with start(job, workers=2, addresses=["memory://one"]):
            raise AssertionError("never entered")
