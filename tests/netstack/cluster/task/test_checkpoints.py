"""Checkpoints of chains: exactly once through restarts, with other parallelism and chains; ends, stops, refusals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from task import task_functions, tasks
from task.task_functions import (
    Collect,
    CountAtEnd,
    InterruptedReads,
    Join,
    LiveState,
    LongReads,
    SlowNumbers,
    Unstorable,
    double,
    is_even,
    key_of,
    numbers_of_subtask,
)
from task.tasks import Run, run_to_its_end, running
from trio.testing import MockClock

from netstack.base.errors import (
    CheckpointError,
    CheckpointStorageError,
    OperatorFailed,
    OperatorUnusable,
    StateMismatch,
)
from netstack.cluster.jobmanager.job_master.savepoints import SavepointContents, check_savepoint
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.finals import NO_CHECKPOINT, FinalStates
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.snapshot import TaskFile, TaskSnapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.descriptors.information import EdgeId
from netstack.schedule.graph.job_generator import generate_job

MODES = pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
COUNT = 200


def environment(
    folder: Path, *, is_chained: bool = True, parallelism: int = 2, unaligned: bool = False
) -> StreamEnvironment:
    settings = StreamSettings(
        is_chaining_enabled=is_chained,
        checkpoints=CheckpointSettings(unaligned=unaligned),
        checkpoint_folder=str(folder),
    )
    return StreamEnvironment("job", parallelism=parallelism, max_parallelism=64, settings=settings)


def counting(folder: Path, *, sources: int = 2, counters: int = 2, **options: Any) -> StreamEnvironment:
    """Numbers of 0 to COUNT per source, counted by key; every record that was processed is in the keyed state."""
    job = environment(folder, **options)
    stream = (
        job.source(SlowNumbers, name="source", parameters={"count": COUNT})
        .set_parallelism(sources)
        .map(double)
        .set_parallelism(sources)
    )
    counted = stream.key_by(key_of).process(CountAtEnd, name="count").set_parallelism(counters)
    counted.sink(Collect, name="sink").set_parallelism(counters)
    return job


def expected(sources: int = 2) -> Counter[int]:
    return Counter(key_of(2 * (1_000_000 * source + number)) for source in range(sources) for number in range(COUNT))


def counts(run: Run) -> Counter[int]:
    actual: Counter[int] = Counter()
    for part in run.result("count"):
        for key, count in part:
            assert key not in actual
            actual[key] = count
    return actual


@MODES
@pytest.mark.parametrize("counters", [1, 2, 3])
async def test_a_restart_counts_every_record_once(
    autojump_clock: MockClock, tmp_path: Path, unaligned: bool, counters: int
) -> None:
    async with running(counting(tmp_path, unaligned=unaligned)) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1, unaligned=unaligned)
        await trio.sleep(0.005)
    run = await run_to_its_end(counting(tmp_path, unaligned=unaligned, counters=counters), restore=1)
    assert counts(run) == expected()


async def test_state_is_that_of_the_barrier_though_it_changes_before_it_is_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def later(function: Callable[[], Any]) -> Any:
        await trio.sleep(0.01)
        return function()

    def job() -> StreamEnvironment:
        job = environment(tmp_path, parallelism=1)
        job.source(SlowNumbers, name="source", count=COUNT).sink(LiveState, name="sink")
        return job

    monkeypatch.setattr(tasks, "at_once", later)
    async with running(job()) as run:
        await trio.sleep(0.006)
        await run.checkpoint(1)
    run = await run_to_its_end(job(), restore=1)
    (actual,) = run.result("sink")
    assert actual["seen"] == [*range(COUNT)]
    (committed,) = actual["committed"]
    assert 0 < len(committed) < COUNT // 2
    assert committed == [*range(len(committed))]


async def test_many_checkpoints_and_restarts(autojump_clock: MockClock, tmp_path: Path) -> None:
    last = None
    for checkpoint_id in itertools.count(1):
        async with running(counting(tmp_path, unaligned=True, counters=1 + checkpoint_id % 3), restore=last) as run:
            await trio.sleep(0.007)
            if run.outcomes or checkpoint_id == 9:
                break
            await run.checkpoint(checkpoint_id, unaligned=True)
            last = checkpoint_id
            await trio.sleep(0.003)
    run = await run_to_its_end(counting(tmp_path), restore=last)
    assert counts(run) == expected()


async def test_a_savepoint_survives_other_chains_and_another_parallelism(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(counting(tmp_path, is_chained=True)) as run:
        await trio.sleep(0.006)
        await run.checkpoint(1)
    async with running(counting(tmp_path, is_chained=False, counters=5), restore=1) as run:
        assert len(run.tasks) == 4 + 10
        await trio.sleep(0.006)
        await run.checkpoint(2)
    run = await run_to_its_end(counting(tmp_path, is_chained=True, counters=1), restore=2)
    assert counts(run) == expected()


async def test_stop_with_savepoint_ends_without_finish_and_goes_on_elsewhere(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(counting(tmp_path)) as run:
        await trio.sleep(0.02)
        await run.checkpoint(1, stops=True)
        await run.wait()
        assert run.result("count") == []  # finish was not called: the job is not over
        assert all(outcome.final is not None for outcome in run.outcomes.values())
    run = await run_to_its_end(counting(tmp_path, counters=3), restore=1)
    assert counts(run) == expected()


async def test_a_failed_stop_goes_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(counting(tmp_path)) as run:
        await trio.sleep(0.02)
        run.trigger(1, stops=True)
        await trio.sleep(1.0)
        before = [task.statistics().records_out for task in run.tasks.values()]
        await trio.sleep(1.0)
        assert [task.statistics().records_out for task in run.tasks.values()] == before
        for task in run.tasks.values():
            task.abort_checkpoint(1)
        await run.wait()
        assert counts(run) == expected()


@MODES
async def test_a_task_that_has_ended_leaves_its_last_state(
    autojump_clock: MockClock, tmp_path: Path, unaligned: bool
) -> None:
    def two(folder: Path) -> StreamEnvironment:
        job = environment(folder, unaligned=unaligned)
        short = job.source(SlowNumbers, name="short", parameters={"count": 5})
        long = job.source(SlowNumbers, name="long", parameters={"count": COUNT})
        short.key_by(key_of).connect(long.key_by(key_of), Join).key_by("task.task_functions:pair_key").process(
            "task.task_functions:CountPairs", name="count"
        )
        return job

    async with running(two(tmp_path)) as run:
        await run.until(lambda: ("short", 0) in run.outcomes and ("short", 1) in run.outcomes)
        await run.checkpoint(1, unaligned=unaligned)
    run = await run_to_its_end(two(tmp_path), restore=1)
    actual = {key: count for part in run.result("count") for key, count in part}
    assert actual == {"left": 10, "right": 2 * COUNT}


async def test_a_full_disk_makes_the_end_of_a_task_wait(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = FinalStates.write, [3]

    def full(finals: FinalStates, snapshot: TaskSnapshot) -> TaskFile:
        if left[0]:
            left[0] -= 1
            raise CheckpointStorageError("no space left on device")
        return write(finals, snapshot)

    monkeypatch.setattr(FinalStates, "write", full)
    job = environment(tmp_path, parallelism=1)
    job.source(SlowNumbers, name="numbers").sink(Collect, name="all")
    async with running(job) as run:
        await run.wait()
        assert (left, run.declined) == ([0], {NO_CHECKPOINT: "no space left on device; next try in 4 s"})


async def test_state_that_cannot_be_stored_fails_the_task_with_its_path(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    job = environment(tmp_path, parallelism=1)
    job.source(SlowNumbers).process(Unstorable, name="odd")
    async with running(job) as run:
        await trio.sleep(0.01)
        run.trigger(1)
        with pytest.raises(CheckpointError, match=r"'odd'\]\['own'\]\['deep'\]\[1\]\['bad'\]: .* builtins.set"):
            await run.wait()


async def test_operators_hear_that_a_checkpoint_is_complete(autojump_clock: MockClock, tmp_path: Path) -> None:
    job = environment(tmp_path, parallelism=1)
    job.source(SlowNumbers).sink("task.task_functions:Committed", name="sink")
    async with running(job) as run:
        for checkpoint_id in (1, 2):
            await trio.sleep(0.01)
            await run.checkpoint(checkpoint_id)
        await run.wait()
        assert run.result("sink") == [[1, 2]]


async def test_in_flight_records_on_an_edge_that_is_chained_now_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    def slow(*, is_chained: bool) -> StreamEnvironment:
        job = environment(tmp_path, parallelism=1, is_chained=is_chained, unaligned=True)
        source = job.source(SlowNumbers, name="source", parameters={"pause_s": 0.0001, "at_once": 100})
        source.process("task.task_functions:Slow", name="slow")
        return job

    async with running(slow(is_chained=False)) as run:
        await trio.sleep(0.05)
        await run.checkpoint(1, unaligned=True)
    contents = SavepointContents.of(CheckpointStorage(tmp_path).snapshots(1))
    for is_chained in (False, True):
        graph = slow(is_chained=is_chained).stream_graph()
        check = partial(check_savepoint, "/chk-1", contents, graph, generate_job(graph).job)
        if not is_chained:
            assert check(allow_missing=False) == ()
            continue
        with pytest.raises(StateMismatch, match=r"source -> slow, but .* this edge is inside a chain.*savepoint"):
            check(allow_missing=False)
        assert check(allow_missing=True) == ("source -> slow",)


async def test_a_function_source_keeps_its_place_and_its_parallelism(autojump_clock: MockClock, tmp_path: Path) -> None:
    def job_of(parallelism: int) -> StreamEnvironment:
        job = environment(tmp_path, parallelism=parallelism)
        source = job.source(numbers_of_subtask, name="source", parameters={"count": 300}).filter(is_even)
        source.process("task.task_functions:Slow", name="slow").sink(Collect, name="sink")
        return job

    async with running(job_of(1)) as run:
        await trio.sleep(0.05)
        await run.checkpoint(1)
    run = await run_to_its_end(job_of(1), restore=1)
    assert run.result("sink") == [[*range(0, 300, 2)]]
    with pytest.raises(StateMismatch, match="keep its parallelism 1"):
        await run_to_its_end(job_of(2), restore=1)


async def test_new_subtasks_of_an_operator_with_state_are_told_that_there_is_nothing_for_them(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(told_states(tmp_path, 1)) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1)
    run = await run_to_its_end(told_states(tmp_path, 3), restore=1)
    assert run.result("count") == [[["mine"]], [[]], [[]]]


def told_states(folder: Path, parallelism: int) -> StreamEnvironment:
    job = environment(folder, parallelism=1)
    stream = job.source(SlowNumbers, name="source", parameters={"count": COUNT})
    stream.rebalance().sink("task.task_functions:TellsStates", name="count").set_parallelism(parallelism)
    return job


def reading(folder: Path, source: type) -> StreamEnvironment:
    task_functions.LOG.clear()
    job = environment(folder, parallelism=1)
    job.source(source, name="source").sink(Collect, name="sink")
    return job


async def test_a_read_is_never_interrupted_and_mail_is_served_meanwhile(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(reading(tmp_path, LongReads)) as run:
        (task,) = run.tasks.values()
        await trio.sleep(1)
        run.trigger(1)  # and nobody waits for it any more before the read returns
        await trio.sleep(1)
        task.abort_checkpoint(1)
        run.trigger(2)
        await run.complete(2)
        assert trio.current_time() == pytest.approx(60, abs=0.1)
        assert task_functions.LOG[:3] == ["begin", "end", "snapshot"]
        assert 1 not in run.files
        await run.wait()
        assert task_functions.LOG.count("complete 2") == 1
        assert trio.current_time() == pytest.approx(180, abs=0.1)
        assert run.result("sink") == [[1, 2]]


async def test_a_job_stops_with_a_savepoint_behind_the_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(reading(tmp_path, LongReads)) as run:
        await trio.sleep(1)
        await run.checkpoint(1, stops=True)
        await run.wait()
        assert trio.current_time() == pytest.approx(60, abs=0.1)
    run = await run_to_its_end(reading(tmp_path, LongReads), restore=1)
    assert run.result("sink") == [[1, 2]]


async def test_the_end_of_a_task_interrupts_a_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(reading(tmp_path, LongReads)):
        await trio.sleep(1)
    assert task_functions.LOG == ["begin", "cancelled"]
    assert trio.current_time() == pytest.approx(1, abs=0.1)


async def test_a_source_that_can_be_interrupted_is(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(reading(tmp_path, InterruptedReads)) as run:
        await trio.sleep(1)
        await run.checkpoint(1)
        assert trio.current_time() == pytest.approx(1, abs=0.1)
        await run.wait()
        assert task_functions.LOG[:5] == ["begin", "cancelled", "snapshot", "begin", "cancelled"]
        assert run.result("sink") == [[1, 2]]


def renamed(folder: Path, name: str, uid: str = "", **options: Any) -> StreamEnvironment:
    job = environment(folder, parallelism=1)
    source = options.get("source", SlowNumbers)
    counted = job.source(source, name="source", parameters={"count": COUNT}).key_by(key_of)
    stream = counted.process(options.get("process", CountAtEnd), name=name)
    (stream.uid(uid) if uid else stream).sink(Collect, name="sink")
    return job


async def test_an_operator_with_a_uid_may_be_renamed(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(renamed(tmp_path, "count", "c")) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1, stops=True)
        await run.wait()
    run = await run_to_its_end(renamed(tmp_path, "tally", "c"), restore=1)
    (actual,) = run.result("tally")
    assert dict(actual) == Counter(key_of(number) for number in range(COUNT))


async def test_records_in_flight_follow_the_uids_of_their_edge(autojump_clock: MockClock, tmp_path: Path) -> None:
    def slow(source: str, name: str) -> StreamEnvironment:
        job = environment(tmp_path, parallelism=1, is_chained=False, unaligned=True)
        numbers = job.source(SlowNumbers, name=source, parameters={"count": COUNT, "pause_s": 0.0001, "at_once": 10})
        numbers = numbers.uid("numbers").set_parallelism(2)
        numbers.process("task.task_functions:Slow", name=name).uid("slow").sink(Collect, name="sink")
        return job

    async with running(slow("source", "count")) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1, unaligned=True)
    contents = SavepointContents.of(CheckpointStorage(tmp_path).snapshots(1))
    assert EdgeId("numbers", "slow") in contents.in_flight
    run = await run_to_its_end(slow("other source", "tally"), restore=1)
    (actual,) = run.result("sink")
    assert sorted(actual) == [1_000_000 * source + number for source in range(2) for number in range(COUNT)]


class CountInLists(CountAtEnd):
    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", list)


async def test_a_state_that_begins_with_another_type_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with running(renamed(tmp_path, "count")) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1)
    with pytest.raises(StateMismatch, match=r"'counts' .* list, .* int "):
        await run_to_its_end(renamed(tmp_path, "count", process=CountInLists), restore=1)


class OtherNumbers(SlowNumbers):
    def restore(self, states: list[Any]) -> None:
        self.next = states[0].position


async def test_a_restore_that_fails_on_another_version_s_state_is_no_accident(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(counting(tmp_path)) as run:
        await run.checkpoint(1)
    job = environment(tmp_path)
    job.source(OtherNumbers, name="source").map(double).key_by(key_of).process(CountAtEnd, name="count").sink(
        Collect, name="sink"
    )
    with pytest.raises(OperatorUnusable, match=r"operator 'source': AttributeError: 'int' object has no .*'position'"):
        await run_to_its_end(job, restore=1)


class AwayNumbers(SlowNumbers):
    def restore(self, states: list[Any]) -> None:
        raise ConnectionError("the database is away")


async def test_a_restore_that_fails_for_the_world_s_sake_is_tried_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(renamed(tmp_path, "count")) as run:
        await run.checkpoint(1)
    with pytest.raises(OperatorFailed, match="the database is away") as failed:
        await run_to_its_end(renamed(tmp_path, "count", source=AwayNumbers), restore=1)
    assert not failed.value.is_permanent
