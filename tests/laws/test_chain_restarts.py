"""Whatever checkpoints a job goes on from, and however it is cut then: every record counts once, in its order.

Jobs of a source, plain operators, an operator behind a key and a sink with state of its own, chained or not, with any
parallelism. They are stopped at any moment, and go on from their last checkpoint: aligned, unaligned, timed; after a
savepoint with other chains. Records wait in queues all the time, because the operator behind the key is slow.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from task.task_functions import Collect, Seen, SlowNumbers, double, key_of, last_channel, twice
from task.tasks import run_to_its_end, running
from trio_runs import run_virtual

from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings

COUNT = 120


@dataclass(frozen=True)
class Shape:
    """How the job is cut in one run."""

    is_chained: bool
    keyed: int
    sinks: int


@dataclass(frozen=True)
class Step:
    """One run: from the last checkpoint, for a while, a checkpoint, a while."""

    shape: Shape
    mode: str
    before_s: float
    after_s: float


WAYS = st.sampled_from(["rebalance", "rescale", "shuffle", "global_", "broadcast", "custom"])
SHAPES = st.builds(Shape, st.booleans(), st.integers(1, 3), st.integers(1, 3))
STEPS = st.builds(
    Step,
    SHAPES,
    st.sampled_from(["aligned", "unaligned", "timed", "savepoint"]),
    st.sampled_from([0.001, 0.011, 0.05]),
    st.sampled_from([0.0, 0.01]),
)


def job_of(folder: str, shape: Shape, sources: int, way: str) -> StreamEnvironment:
    chosen = StreamSettings(
        is_chaining_enabled=shape.is_chained,
        checkpoints=CheckpointSettings(unaligned=True),
        checkpoint_folder=folder,
    )
    job = StreamEnvironment("job", parallelism=sources, max_parallelism=32, settings=chosen)
    numbers = job.source(SlowNumbers, name="source", parameters={"count": COUNT, "at_once": 11})
    plain = numbers.map(double, name="double").flat_map(twice, name="twice")
    seen = plain.key_by(key_of).process(Seen, name="seen").set_parallelism(shape.keyed)
    stream = seen.partition_custom(last_channel) if way == "custom" else getattr(seen, way)()
    stream.sink(Collect, name="sink").set_parallelism(shape.sinks)
    return job


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 2), WAYS, st.lists(STEPS, min_size=1, max_size=3), SHAPES)
def test_every_record_counts_once(sources: int, way: str, steps: list[Step], last: Shape) -> None:
    run_virtual(play, sources, way, steps, last)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), WAYS, st.lists(STEPS, min_size=1, max_size=4), SHAPES)
def test_every_record_counts_once_in_many_runs(sources: int, way: str, steps: list[Step], last: Shape) -> None:
    run_virtual(play, sources, way, steps, last)


async def play(sources: int, way: str, steps: list[Step], last: Shape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint_id: int | None = None
        before: Shape | None = None
        for number, step in enumerate(steps, 1):
            shape = fitting(step.shape, before, steps, number, way)
            async with running(job_of(folder, shape, sources, way), restore=checkpoint_id) as run:
                await trio.sleep(step.before_s)
                await run.checkpoint(
                    number,
                    unaligned=step.mode == "unaligned",
                    timeout_s=0.003 if step.mode == "timed" else 0.0,
                    stops=step.mode == "savepoint",
                )
                await trio.sleep(step.after_s)
            checkpoint_id, before = number, shape
        shape = fitting(last, before, steps, len(steps) + 1, way)
        run = await run_to_its_end(job_of(folder, shape, sources, way), restore=checkpoint_id)
    wanted = [2 * (1_000_000 * source + number) for source in range(sources) for number in range(COUNT)]
    check_once(run.result("sink"), wanted * (shape.sinks if way == "broadcast" else 1))
    keyed = [part for subtask in run.result("seen") for part in subtask]
    check_once(keyed, wanted)
    for part in keyed:  # equal keys are together, and of each source in its order
        assert len({key_of(number) for number in part}) == 1
        for source in range(sources):
            mine = [number for number in part if number // 2_000_000 == source]
            assert mine == sorted(mine)


def fitting(shape: Shape, before: Shape | None, steps: list[Step], number: int, way: str) -> Shape:
    """Other chains only behind a savepoint; another parallelism always, but that everybody's record is everybody's."""
    if before is None:
        return shape
    sinks = before.sinks if way == "broadcast" else shape.sinks
    is_chained = shape.is_chained if steps[number - 2].mode == "savepoint" else before.is_chained
    return Shape(is_chained, shape.keyed, sinks)


def check_once(parts: list[list[Any]], wanted: list[int]) -> None:
    actual = sorted(number for part in parts for number in part)
    assert actual == sorted(2 * wanted)
