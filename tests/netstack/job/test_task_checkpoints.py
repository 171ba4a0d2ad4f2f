"""The checkpoints of one task, with everything around it by hand."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

import netstack.job.task_checkpoints
from netstack.checkpoint.barrier import AbortReason, AlignmentStatistics, CheckpointDeclined
from netstack.checkpoint.snapshot import TaskFile
from netstack.checkpoint.storage import CheckpointStorage
from netstack.events import Alignment, CancelCheckpointMarker, CheckpointBarrier, Event
from netstack.job.input import TaskInput
from netstack.job.mailbox import Mailbox
from netstack.job.operators import BoundOperator, TaskContext
from netstack.job.output import TaskOutput
from netstack.job.task_checkpoints import SubtaskReport, TaskCheckpoints
from netstack.runtime.network_environment import NetworkEnvironment

KEY = ("before-0>task.0", 0)


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(**arguments)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def barrier(checkpoint_id: int, alignment: Alignment = Alignment.UNALIGNED, timeout_s: float = 0) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, 0, alignment, round(timeout_s * 1e9))


def aligned_in(checkpoint_id: int, duration_s: float = 0.0) -> AlignmentStatistics:
    return AlignmentStatistics(checkpoint_id, 1, 0, round(duration_s * 1e9), False)


class Partition:
    """An output with two subpartitions."""

    partition_id = "task-0>after.0"
    subpartitions = (0, 1)
    on_barrier: Any = None


class Bench:
    """Stands for output, input, operator, control and manager of the task."""

    def __init__(self) -> None:
        self.partitions: tuple[Any, ...] = (Partition(),)
        self.log: list[Any] = []
        self.state = 0
        self.captured: dict[int, dict[tuple[str, int], bytes]] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []

    # Output.
    async def broadcast(self, event: Event) -> None:
        self.log.append(event)

    def forget_barrier(self, checkpoint_id: int) -> None:
        self.log.append(f"forget {checkpoint_id}")

    def time_out_barrier(self, checkpoint_id: int) -> None:
        self.log.append(f"time out {checkpoint_id}")

    # Input.
    def in_flight(self) -> dict[tuple[str, int], bytes]:
        return {}

    def take_captured(self, checkpoint_id: int) -> dict[tuple[str, int], bytes]:
        return self.captured.pop(checkpoint_id, {})

    # Operator.
    def process(self, record: Any, out: Any) -> None:
        raise AssertionError("no records here")

    def snapshot(self) -> int:
        return self.state

    # Control.
    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: SubtaskReport) -> None:
        self.log.append((checkpoint_id, report.input_bytes, report.output_bytes))

    def declined(self, checkpoint_id: int, context: TaskContext, reason: str) -> None:
        self.log.append((checkpoint_id, reason))

    # Manager.
    def now(self) -> float:
        return trio.current_time()

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((deadline_s, callback))

    def overtaken(self, checkpoint_id: int, *pieces: bytes) -> None:
        for index, piece in enumerate(pieces):
            self.partitions[0].on_barrier(index, checkpoint_id, piece)

    def said(self) -> list[Any]:
        said, self.log = self.log, []
        return said


async def at_once(function: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


@asynccontextmanager
async def checkpoints(folder: Path, *, has_output: bool = True) -> AsyncIterator[tuple[TaskCheckpoints, Bench]]:
    bench = Bench()
    if not has_output:
        bench.partitions = ()
    made = TaskCheckpoints(
        TaskContext("task", 0, 1, 128, 1),
        BoundOperator(bench, is_source=False, name="task"),
        cast(TaskOutput, bench),
        bench,
        CheckpointStorage(folder),
        cast(NetworkEnvironment, bench),
        Mailbox(),
        at_once,
    )
    made.inputs = cast(TaskInput, bench)
    async with trio.open_nursery() as nursery:
        made.nursery = nursery
        yield made, bench


async def settle(made: TaskCheckpoints) -> None:
    await made.perform()
    await trio.testing.wait_all_tasks_blocked()


@virtual
async def test_the_barrier_goes_first_and_what_was_overtaken_is_stored(tmp_path: Path) -> None:
    async with checkpoints(tmp_path) as (made, bench):
        made.trigger(barrier(1), aligned_in(1))
        assert made.is_due
        bench.state = 5  # of the record that was in hand
        await settle(made)
        bench.state = 6
        assert bench.said() == [barrier(1)]
        bench.overtaken(1, b"abc", b"")
        bench.captured[1] = {KEY: b"in"}
        made.inputs_complete(1, aligned_in(1, 0.5))
        assert made.is_gathering
        await settle(made)
        assert not made.is_gathering
        assert bench.said() == [(1, 2, 3)]
    assert [*(tmp_path / "chk-00000001").glob("task-0.*.state")]


@virtual
async def test_aligned_barriers_wait_for_nothing_and_timed_ones_for_the_queue(tmp_path: Path) -> None:
    async with checkpoints(tmp_path) as (made, bench):
        made.trigger(barrier(1, Alignment.ALIGNED), aligned_in(1))
        made.inputs_complete(1, aligned_in(1))
        await settle(made)
        assert bench.said() == [barrier(1, Alignment.ALIGNED), (1, 0, 0)]
        assert bench.timers == []
        timed = CheckpointBarrier(2, 0, Alignment.ALIGNED, 3_000_000_000, 1_000_000_000)
        made.trigger(timed, aligned_in(2))
        made.inputs_complete(2, aligned_in(2))
        await settle(made)
        assert bench.said() == [timed]
        ((deadline_s, time_out),) = bench.timers
        assert deadline_s - trio.current_time() == pytest.approx(2)
        time_out()
        assert bench.said() == ["time out 2"]
        bench.overtaken(2, b"", b"xy")
        await settle(made)
        assert bench.said() == [(2, 0, 2)]


@virtual
async def test_a_checkpoint_that_was_given_up_goes_no_further(tmp_path: Path) -> None:
    async with checkpoints(tmp_path) as (made, bench):
        made.abort_here(1)
        with pytest.raises(CheckpointDeclined):
            made.trigger(barrier(1), aligned_in(1))
        made.abort(1, AbortReason.DECLINED)
        await settle(made)
        assert bench.said() == [CancelCheckpointMarker(1)]  # the coordinator knows
        made.trigger(barrier(2), aligned_in(2))
        await settle(made)
        made.abort_here(2)
        assert bench.said() == [barrier(2), "forget 2"]
        bench.overtaken(2, b"a", b"b")
        made.inputs_complete(2, aligned_in(2))
        await settle(made)
        assert bench.said() == []
        made.trigger(barrier(3), aligned_in(3))
        made.abort(3, AbortReason.SUBSUMED)
        await settle(made)
        assert bench.said() == [barrier(3), "forget 3", (3, AbortReason.SUBSUMED.value), CancelCheckpointMarker(3)]
        with pytest.raises(CheckpointDeclined):
            made.trigger(barrier(3), aligned_in(3))
        for checkpoint_id in range(10, 200):
            made.abort_here(checkpoint_id)
        with pytest.raises(CheckpointDeclined):
            made.trigger(barrier(199), aligned_in(199))


@virtual
async def test_the_coordinator_and_the_handler_may_both_trigger(tmp_path: Path) -> None:
    async with checkpoints(tmp_path, has_output=False) as (made, bench):
        received_s = trio.current_time()
        await trio.sleep(2)
        made.trigger_here(barrier(1), received_s)
        await settle(made)
        sent, stored = bench.said()
        assert sent.elapsed_ns == 2_000_000_000  # it waited for the task
        assert stored == (1, 0, 0)
        # The ends of the producers come afterwards, and complete the same checkpoint in the handler.
        bench.captured[1] = {}
        made.trigger(barrier(1), aligned_in(1))
        made.inputs_complete(1, aligned_in(1))
        made.abort(1, AbortReason.SUBSUMED)
        await settle(made)
        assert bench.said() == []
        assert bench.captured == {}
        made.trigger(barrier(2), aligned_in(2))
        made.trigger_here(barrier(2), received_s)  # the other way round
        made.inputs_complete(2, aligned_in(2))
        await settle(made)
        assert bench.said() == [barrier(2), (2, 0, 0)]
        made.close()
        made.trigger_here(barrier(3), received_s)
        assert not made.is_due


@virtual
async def test_too_much_channel_state_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netstack.job.task_checkpoints, "MAX_CHANNEL_STATE_BYTES", 10)
    async with checkpoints(tmp_path) as (made, bench):
        made.trigger(barrier(1), aligned_in(1))
        await settle(made)
        bench.overtaken(1, b"123456", b"123456")
        sent, forgot, declined = bench.said()
        assert (sent, forgot, declined[0]) == (barrier(1), "forget 1", 1)
        assert "10 is the most" in declined[1]
        made.inputs_complete(1, aligned_in(1))
        await settle(made)
        assert bench.said() == []
        assert not made.is_gathering
