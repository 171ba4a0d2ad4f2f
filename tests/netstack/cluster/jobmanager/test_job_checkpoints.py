"""When a checkpoint counts as being stored: restarts wait for that, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.errors import CheckpointError
from netstack.cluster.jobmanager.job_master.checkpoints import JobCheckpoints
from netstack.cluster.jobmanager.job_master.tasks import CheckpointInProgress
from netstack.schedule.checkpoint.coordinator import CheckpointCoordinator
from netstack.schedule.checkpoint.finals import NO_CHECKPOINT
from netstack.schedule.checkpoint.instructions import CheckpointSettings, JobTask
from netstack.schedule.checkpoint.snapshot import TaskFile


class Commands:
    """Takes every command."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Storage:
    """Names what is done with it; `fails`: its disk is full."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    def complete(self, _manifest: Any) -> None:
        if self.fails:
            raise CheckpointError("no space left on device")

    def prune(self) -> None:
        pass

    def discard(self, _checkpoint_id: int) -> None:
        pass


async def stored(*, fails: bool) -> list[tuple[str, bool]]:
    """Takes a checkpoint of one task: each call of the storage, and whether a checkpoint was being stored then."""
    calls: list[tuple[str, bool]] = []

    async def in_thread(call: Any) -> Any:
        await trio.lowlevel.checkpoint()
        name = getattr(call, "func", call).__name__
        calls.append((name, checkpoints.is_storing))
        return call()

    coordinator = CheckpointCoordinator([JobTask("source", 1)], CheckpointSettings(), now_s=trio.current_time())
    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        checkpoints: JobCheckpoints = made(coordinator, Storage(fails=fails), None, Commands(), nursery, in_thread, [])
        request = checkpoints.request(savepoint=False)
        assert not checkpoints.is_storing
        checkpoints.acknowledged(1, TaskFile("source", 0, 10, 1), {})
        assert checkpoints.is_storing
        await request.ended.wait()
        assert not checkpoints.is_storing
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return calls


async def test_a_restart_does_not_wait_for_pruning() -> None:
    """Pruning reads all files of other checkpoints, which may take minutes."""
    assert await stored(fails=False) == [("complete", True), ("prune", False)]


async def test_a_checkpoint_that_cannot_be_stored_holds_nothing_up() -> None:
    calls = await stored(fails=True)
    assert calls[0] == ("complete", True)
    assert ("discard", False) in calls
    assert not any(is_storing for _, is_storing in calls[1:])


async def test_a_job_waits_until_each_final_state_is_stored_or_its_task_restarts() -> None:
    tasks = CheckpointCoordinator([JobTask("source", 3)], CheckpointSettings(), now_s=trio.current_time())
    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        checkpoints: JobCheckpoints = made(tasks, Storage(fails=False), None, Commands(), nursery, None, [])
        for subtask in range(3):
            checkpoints.declined(NO_CHECKPOINT, "source", subtask, "no space left")
        for subtask in range(2):
            assert checkpoints.waits_for == f"source-{subtask} to store its final state: no space left"
            checkpoints.task_ended("source", subtask)
        assert checkpoints.waits_for.startswith("source-2 ")
        checkpoints.pause("source-2 failed")
        assert not checkpoints.waits_for
        nursery.cancel_scope.cancel()


async def test_a_checkpoint_in_progress_is_logged_at_growing_intervals(autojump_clock: MockClock) -> None:
    logged: list[str] = []

    class Logs(Commands):
        def data_ahead(self, checkpoint_id: int, subtasks: Any) -> int:
            return 3_200_000 * len(subtasks)

        def checkpoint_is_slow(self, checkpoint: CheckpointInProgress) -> None:
            logged.append(checkpoint.text)

    jobs = [JobTask("source", 1), JobTask("sink", 7, ("source",))]
    coordinator = CheckpointCoordinator(jobs, CheckpointSettings(timeout_s=100.0), now_s=trio.current_time())

    async def in_thread(call: Any) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        checkpoints: JobCheckpoints = made(coordinator, Storage(fails=False), None, Logs(), nursery, in_thread, [])
        request = checkpoints.request(savepoint=True)
        await trio.sleep(15.0)
        checkpoints.acknowledged(1, TaskFile("source", 0, 10, 1), {})
        checkpoints.acknowledged(1, TaskFile("sink", 3, 10, 1), {})
        (actual,) = checkpoints.in_progress()
        assert actual.document() | {"text": ""} == {
            "checkpoint_id": 1,
            "is_savepoint": True,
            "age_s": 15.0,
            "acknowledged": 2,
            "subtasks": 8,
            "waits_for": ["sink-0", "sink-1", "sink-2", "sink-4", "sink-5"],
            "left_out": 1,
            "ahead_bytes": 6 * 3_200_000,
            "text": "",
        }
        for number in (0, 1, 4, 5, 6):
            checkpoints.acknowledged(1, TaskFile("sink", number, 10, 1), {})
        await request.ended.wait()
        assert checkpoints.in_progress() == []
        nursery.cancel_scope.cancel()
    texts = [
        ("10 s: 0 of 8", "source-0"),
        *((f"{age_s} s: 7 of 8", "sink-2") for age_s in (20, 40, 80)),
    ]
    assert logged == [
        f"savepoint 1 in progress for {counts} subtasks have acknowledged it, waiting for {task}, with 3.2 MB queued"
        " in front of its barrier"
        for counts, task in texts
    ]


@pytest.mark.parametrize("triggered_s", [0.0, 11.44, 22.27, 24.77])
async def test_a_slow_checkpoint_is_logged_once_at_each_time(autojump_clock: MockClock, triggered_s: float) -> None:
    """Ages that were computed anew from these times lay just below the limit, and the clock never moved again."""
    counted: list[float] = []
    logged: list[float] = []

    class Logs(Commands):
        def data_ahead(self, checkpoint_id: int, subtasks: Any) -> int:
            counted.append(trio.current_time())
            return 0

        def checkpoint_is_slow(self, checkpoint: CheckpointInProgress) -> None:
            logged.append(round(checkpoint.age_s, 3))

    jobs = [JobTask("source", 9)]
    await trio.sleep(triggered_s)
    coordinator = CheckpointCoordinator(jobs, CheckpointSettings(timeout_s=50.0), now_s=trio.current_time())
    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        checkpoints: JobCheckpoints = made(coordinator, Storage(fails=False), None, Logs(), nursery, None, [])
        checkpoints.request(savepoint=True)
        for subtask in range(8):
            await trio.sleep(5.5)
            checkpoints.acknowledged(1, TaskFile("source", subtask, 10, 1), {})
        nursery.cancel_scope.cancel()
    assert logged == [10, 20, 40]
    assert len(counted) == 3, "queues are counted only for what is logged"


async def test_a_savepoint_stops_the_job_unless_a_part_restarts_after_its_trigger() -> None:
    """One that was requested before a failure and triggered after the restart was reported as kept from stopping."""

    async def in_thread(call: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call()

    coordinator = CheckpointCoordinator([JobTask("source", 1)], CheckpointSettings(), now_s=trio.current_time())
    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        checkpoints: JobCheckpoints = made(coordinator, Storage(fails=False), None, Commands(), nursery, in_thread, [])
        checkpoints.pause("the job starts")
        request = checkpoints.request(savepoint=True, stops=True)
        for _ in range(2):  # the failure, and the task that is lost with it
            checkpoints.pause("not all tasks run")
        checkpoints.resume(lambda _: False)
        checkpoints.acknowledged(1, TaskFile("source", 0, 10, 1), {})
        await request.ended.wait()
        assert request.report is not None
        assert request.report.is_complete
        assert checkpoints.stops_the_job(1)
        checkpoints.pause("a commit failed")
        checkpoints.resume(lambda _: True)
        assert not checkpoints.stops_the_job(1)
        nursery.cancel_scope.cancel()
