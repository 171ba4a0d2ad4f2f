"""What a TaskManager is told of checkpoints reaches its tasks, and what they say of them reaches the JobManager."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from taskmanager.driverworld import JOB, Driver, listening, task
from taskmanagerworld import taskmanager_open
from trio.testing import MockClock

from netstack.base.events import CheckpointBarrier, encode_event
from netstack.cluster.control.messages import AbortCheckpoint, CheckpointCompleted, TriggerCheckpoint
from netstack.cluster.control.reports import CheckpointAcknowledged, TaskFinished
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.descriptors.information import JobInformation, OperatorInformation, TaskInformation
from netstack.schedule.graph.job_graph import OperatorKind

TASK = (0, 0, 0)
TICKS = TaskInformation("ticks", operators=(OperatorInformation("ticks", OperatorKind.SOURCE, "userjobs.jobs:Ticks"),))


async def stopping(driver: Driver, folder: Path) -> None:
    """A source has taken part in a savepoint that the job stops with, and waits for what becomes of that."""
    await driver.open_job()
    job = JobInformation(JOB, checkpoints=CheckpointSettings(), checkpoint_folder=str(folder))
    driver.submit(task("ticks", TASK, information=TICKS.pack(), job=job))
    await driver.running(TASK)
    await trio.sleep(0.055)
    barrier = encode_event(CheckpointBarrier(1))
    driver.link.send(TriggerCheckpoint(JOB, barrier, (TASK,), is_savepoint=True, stops=True))
    reported = await driver.next(CheckpointAcknowledged)
    assert (reported.attempt, reported.checkpoint_id) == (TASK, 1)
    path = Path(CheckpointStorage(folder).path(1)) / f"ticks-0.{reported.crc32:08x}.state"
    assert path.stat().st_size == reported.size_bytes  # nothing else runs
    await trio.sleep(60)
    assert not any(isinstance(each, TaskFinished) for each in driver.heard)


@pytest.mark.parametrize("is_complete", [True, False])
async def test_a_source_that_is_stopped_waits_for_the_savepoint(
    autojump_clock: MockClock, tmp_path: Path, is_complete: bool
) -> None:
    async with listening() as (address, accept), taskmanager_open(jobmanager=address, link_in_thread=False):
        driver = await accept()
        await stopping(driver, tmp_path)
        message = CheckpointCompleted(JOB, 1) if is_complete else AbortCheckpoint(JOB, 1, (TASK,))
        driver.link.send(message)
        with trio.fail_after(60):
            ended = await driver.next(TaskFinished)
        assert ended.results == ({} if is_complete else {"ticks": 101})
        assert ended.final is not None
