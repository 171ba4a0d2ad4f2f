"""The end of tasks: commits in two phases, operators that hear of the last checkpoint, `finish` that is called once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from task.task_functions import LEDGER, Collect, EmitsInCommit, SlowNumbers, SumsUp, ToldSource, TwoPhase
from task.tasks import run_to_its_end, running
from trio.testing import MockClock

from netstack.base.errors import CheckpointError, ConfigError
from netstack.cluster.task.operators import Commits
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings

MODES = pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])


@pytest.fixture(autouse=True)
def _empty() -> None:
    LEDGER.clear()


def environment(folder: Path | None, *, unaligned: bool = False, parallelism: int = 1) -> StreamEnvironment:
    settings = StreamSettings()
    if folder is not None:
        settings = StreamSettings(checkpoints=CheckpointSettings(unaligned=unaligned), checkpoint_folder=str(folder))
    return StreamEnvironment("job", parallelism=parallelism, settings=settings)


def two_phases(folder: Path, *, unaligned: bool = False) -> StreamEnvironment:
    job = environment(folder, unaligned=unaligned)
    job.source(SlowNumbers, parameters={"count": 50}).rebalance().sink(TwoPhase, name="sink")
    return job


def committed() -> list[int]:
    return [row for rows in LEDGER for row in rows if rows != ["finish"]]


@MODES
async def test_the_last_records_are_committed_too(autojump_clock: MockClock, tmp_path: Path, unaligned: bool) -> None:
    async with running(two_phases(tmp_path, unaligned=unaligned)) as run:
        await trio.sleep(0.004)
        await run.checkpoint(1, unaligned=unaligned)
        await run.wait()
    assert LEDGER[-2] == ["finish"], "the last commit follows finish"
    assert committed() == [*range(50)]
    assert len(run.final_checkpoints) == 1


async def test_what_an_incomplete_checkpoint_prepared_is_committed_with_the_next(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(two_phases(tmp_path)) as run:
        await trio.sleep(0.003)
        run.trigger(1)
        await trio.sleep(0.002)
        for task in run.tasks.values():
            task.abort_checkpoint(1)
        assert LEDGER == []
        await run.checkpoint(2)
        await trio.sleep(0.001)
        assert len(LEDGER) == 2, "what was prepared for 1, and for 2"
        await run.wait()
    assert committed() == [*range(50)]


@pytest.mark.parametrize("is_chained", [True, False])
async def test_a_record_that_the_last_commit_emits_is_warned_of(
    autojump_clock: MockClock, tmp_path: Path, is_chained: bool, recwarn: pytest.WarningsRecorder
) -> None:
    job = environment(tmp_path)
    late = job.source(SlowNumbers, parameters={"count": 50}).process(EmitsInCommit, name="late")
    (late if is_chained else late.rebalance()).sink(Collect, name="sink")
    async with running(job) as run:
        await trio.sleep(0.004)
        await run.checkpoint(1)
        await run.wait()
    assert "operator 'late' emits after the end of its task, in close, in a com" in str(recwarn.pop().message)
    (records,) = run.result("sink")
    assert sorted(records) == [-1, *range(50)], "that of the first commit was sent"


class Numbered:
    """An operator that prepares 1, then 2, and so on (a `BoundOperator`)."""

    name = "sink"

    def __init__(self) -> None:
        self.prepared = 0
        self.committed: list[list[int]] = []

    def has(self, method: str) -> bool:
        return method in ("prepare_commit", "commit")

    async def call(self, method: str, *arguments: Any) -> int | None:
        if method == "prepare_commit":
            self.prepared += 1
            return self.prepared
        self.committed.append(*arguments)
        return None


async def test_a_checkpoint_commits_what_was_prepared_up_to_it_once() -> None:
    bound = Numbered()
    commits = Commits(bound)
    for checkpoint_id in (5, 6, 7):
        await commits.prepare(checkpoint_id)
    await commits.complete(6)  # 5 was a savepoint of a job that goes on, of whose end nobody is told
    assert (bound.committed, commits.snapshot()) == ([[1, 2]], [3])
    await commits.complete(6)
    await commits.complete(8)
    assert (bound.committed, commits.snapshot()) == ([[1, 2], [3]], [])


async def test_a_restart_commits_again_what_the_checkpoint_has_prepared(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(two_phases(tmp_path)) as run:
        await trio.sleep(0.004)
        await run.checkpoint(1)
        await trio.sleep(0.001)
        first = [*LEDGER]
        assert first
    await run_to_its_end(two_phases(tmp_path), restore=1)
    assert LEDGER[: 2 * len(first)] == [*first, *first], "it may have been lost with the process"
    del LEDGER[: len(first)]
    assert committed() == [*range(50)]


async def test_after_the_last_checkpoint_nothing_is_done_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    def job() -> StreamEnvironment:
        made = environment(tmp_path)
        made.source(SlowNumbers, parameters={"count": 50}).rebalance().process(SumsUp, name="sum").rebalance().sink(
            TwoPhase, name="sink"
        )
        return made

    run = await run_to_its_end(job())
    (last,) = run.final_checkpoints
    assert [["finish"], [sum(range(50))]] == LEDGER
    run = await run_to_its_end(job(), restore=last)
    assert [["finish"], [sum(range(50))], [sum(range(50))]] == LEDGER, "only the commit is repeated"
    assert run.result("sink") == ["finished"], "the result is still there"
    assert run.task("sum").statistics().records_out == 0


async def test_a_checkpoint_that_began_before_a_restart_does_not_confirm_the_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Stored late, on a slow disk, it ended tasks that it knew nothing of: their last records were never committed."""
    async with running(two_phases(tmp_path)) as run:
        await run.checkpoint(1)
    LEDGER.clear()
    async with running(two_phases(tmp_path), restore=1) as run:
        await run.until(lambda: ["finish"] in LEDGER)
        run.tasks["sink", 0].checkpoint_completed(1)
        await run.wait()
        assert run.final_checkpoints == [2]
    assert committed()[-1] == 49


async def test_a_source_hears_of_the_last_checkpoint_while_others_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    job = environment(tmp_path, parallelism=2)
    job.source(ToldSource, name="told", parameters={"count": 50}).rebalance().sink(Collect, name="sink")
    async with running(job) as run:
        await run.until(lambda: ("sink", 0) in run.outcomes and ("sink", 1) in run.outcomes)
        assert [key for key in run.tasks if key not in run.outcomes] == [("told", 0), ("told", 1)]
        await run.wait()
    assert LEDGER == [[50], [50]]
    assert sum(len(part) for part in run.result("sink")) == 100


async def test_a_stopped_job_commits_what_its_savepoint_has_prepared(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(two_phases(tmp_path)) as run:
        await trio.sleep(0.004)
        await run.checkpoint(1, stops=True)
        await run.wait()
        assert run.final_checkpoints == []
    first = committed()
    assert first
    assert ["finish"] not in LEDGER
    LEDGER.clear()
    await run_to_its_end(two_phases(tmp_path), restore=1)
    assert committed() == [*range(50)], "again what the savepoint has, then the rest"


async def test_without_checkpoints_a_task_waits_until_it_is_told_to_commit(autojump_clock: MockClock) -> None:
    job = environment(None)
    job.source(SlowNumbers, parameters={"count": 50}).rebalance().sink(TwoPhase, name="sink")
    async with running(job) as run:
        await run.until(lambda: run.reports["sink", 0].said_waiting)
        assert LEDGER == [["finish"]]
        run.tasks["sink", 0].checkpoint_completed(0)
        await run.until(lambda: len(run.outcomes) == len(run.tasks))
    assert [["finish"], [*range(50)]] == LEDGER


class OnlyPrepares(TwoPhase):
    commit: Callable[[list[list[int]]], None] = None  # type: ignore[assignment]


async def test_commits_need_a_method(autojump_clock: MockClock, tmp_path: Path) -> None:
    job = environment(tmp_path)
    job.source(SlowNumbers, parameters={"count": 50}).sink(OnlyPrepares, name="sink")
    with pytest.raises(ConfigError, match=r"'sink': OnlyPrepares .* no method commit"):
        await run_to_its_end(job)


async def test_prepared_commits_are_never_dropped(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(two_phases(tmp_path)) as run:
        await trio.sleep(0.004)
        await run.checkpoint(1)
    job = environment(tmp_path)
    job.source(SlowNumbers, parameters={"count": 50}).rebalance().sink(Collect, name="sink")
    with pytest.raises(CheckpointError, match=r"'sink' has 1 .* no method commit"):
        await run_to_its_end(job, restore=1)
