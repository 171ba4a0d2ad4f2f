"""A source that is a function, after a restart: it goes on behind what was sent, and leaves turns to others."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from task.task_functions import CLOCK, Collect, Indexed, as_array, indexed, numbers, ticking
from task.tasks import run_to_its_end, running
from trio.testing import MockClock

from netstack.base.errors import ConfigError, StateMismatch
from netstack.cluster.task import iterable_source
from netstack.cluster.task.chain_loop import TURN_S
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.snapshot import TaskSnapshot


def job_of(folder: Path, source: Any, **parameters: Any) -> StreamEnvironment:
    settings = StreamSettings(checkpoints=CheckpointSettings(), checkpoint_folder=str(folder))
    job = StreamEnvironment("job", settings=settings)
    job.source(source, name="source", parameters=parameters).sink(Collect, name="sink")
    return job


async def sent(folder: Path, job: StreamEnvironment, position: Any) -> None:
    """Leaves a checkpoint in which so many records were sent."""
    async with running(job) as run:
        await run.checkpoint(1, stops=True)
        await run.wait()
        storage = run.storage
    assert storage is not None
    (task,) = run.job.vertices
    state = {"source": {"own": position}, "sink": {"own": []}}
    file = storage.write_task(2, TaskSnapshot(task.name, 0, state))
    manifest = storage.newest()
    assert manifest is not None
    storage.complete(type(manifest.manifest)(2, manifest.manifest.created_at, {task.name: 1}, (file,)))


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK[0] = 1000.0
    monkeypatch.setattr(iterable_source, "perf_counter", lambda: CLOCK[0])


@pytest.mark.parametrize("record_s", [1e-5, 1e-4])
async def test_skipping_leaves_turns_to_others_and_takes_checkpoints(
    autojump_clock: MockClock, tmp_path: Path, ticks: None, record_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "netstack")
    count, position = 60_000, 59_000
    job = job_of(tmp_path, ticking, count=count, record_s=record_s)
    await sent(tmp_path, job, position)
    turns: list[float] = []
    began_s = CLOCK[0]
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def others() -> None:
            while True:
                turns.append(CLOCK[0])
                await trio.lowlevel.checkpoint()

        async with running(job, restore=2, ticks=lambda: CLOCK[0]) as run:
            await run.checkpoint(3)
            assert CLOCK[0] - began_s < position * record_s / 2  # it did not wait for the records
            await run.wait()
        nursery.cancel_scope.cancel()
    assert run.result("sink") == [[*range(position, count)]]
    longest_s = max(late - early for early, late in itertools.pairwise(turns) if early > began_s)
    assert longest_s <= 3 * TURN_S
    lines = [each for each in caplog.messages if "is skipping the records" in each]
    assert len(lines) == int(position * record_s / iterable_source.LOG_INTERVAL_S)
    run = await run_to_its_end(job, restore=3)
    assert run.result("sink") == [[*range(position, count)]]


@pytest.mark.parametrize("source", [numbers, as_array, indexed])
async def test_a_sequence_goes_on_at_its_position(autojump_clock: MockClock, tmp_path: Path, source: Any) -> None:
    job = job_of(tmp_path, source, count=1000)
    await sent(tmp_path, job, 990)
    Indexed.asked.clear()
    run = await run_to_its_end(job, restore=2)
    assert run.result("sink") == [[*range(990, 1000)]]
    assert Indexed.asked in ([], [*range(990, 1000)])


@pytest.mark.parametrize("source", [numbers, ticking])
async def test_fewer_records_than_were_sent(autojump_clock: MockClock, tmp_path: Path, source: Any) -> None:
    more = {} if source is numbers else {"record_s": 1e-6}
    await sent(tmp_path, job_of(tmp_path, source, count=1000, **more), 990)
    with pytest.raises(StateMismatch, match="500 records, but 990"):
        await run_to_its_end(job_of(tmp_path, source, count=500, **more), restore=2)


async def test_the_position_of_a_class_is_none(autojump_clock: MockClock, tmp_path: Path) -> None:
    await sent(tmp_path, job_of(tmp_path, numbers), [5])
    with pytest.raises(StateMismatch, match=r"'source' is a function, .* list"):
        await run_to_its_end(job_of(tmp_path, numbers), restore=2)


def unordered() -> set[str]:
    return {"a", "b"}


def no_iterable() -> int:
    return 5


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (unordered, "returned a set, whose order differs from process to process"),
        (no_iterable, "returned an int; a"),
    ],
)
async def test_what_a_restart_cannot_replay_is_refused(
    autojump_clock: MockClock, tmp_path: Path, source: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=f"source 'source' {text}"):
        await run_to_its_end(job_of(tmp_path, source))


def needs(count: int) -> range:
    return range(count)


async def test_a_function_that_lacks_a_parameter_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'source': needs cannot be called .*: 'cou"):
        await run_to_its_end(job_of(tmp_path, needs))


async def test_a_function_that_does_not_know_its_subtask_has_one(autojump_clock: MockClock, tmp_path: Path) -> None:
    job = job_of(tmp_path, numbers)
    job.parallelism = 2
    with pytest.raises(ConfigError, match=r"its subtask, .* 2 subtasks"):
        await run_to_its_end(job)
    run = await run_to_its_end(job_of(tmp_path, numbers, count=3))
    assert run.result("sink") == [[0, 1, 2]]
