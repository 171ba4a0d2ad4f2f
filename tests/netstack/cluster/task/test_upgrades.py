"""What may change between a savepoint and the job that begins from it: each row of `how-to/upgrade.md`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from task.task_functions import Collect, Count, CountAtEnd, SlowNumbers, double, key_of
from task.tasks import Run, run_to_its_end, running
from trio.testing import MockClock

from netstack.base.errors import StateMismatch
from netstack.cluster.jobmanager.job_master.savepoints import SavepointContents, check_savepoint
from netstack.schedule import StreamEnvironment, StreamSettings, generate_job
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.storage import CheckpointStorage

COUNT = 200
ALL = Counter(key_of(2 * number) for number in range(COUNT))


class AverageAtEnd(CountAtEnd):
    """Counts in halves, where it was ones."""

    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", 0.0)

    def process(self, number: int, out: Any) -> None:
        self.counts[key_of(number)] += 0.5


class ListAtEnd(CountAtEnd):
    """Keeps the numbers under another name."""

    def open(self, context: Any) -> None:
        self.numbers = context.keyed_state("numbers", list)

    def process(self, number: int, out: Any) -> None:
        self.numbers[key_of(number)].append(number)

    def finish(self) -> Any:
        return [[key, len(numbers)] for key, numbers in sorted(self.numbers.items())]


class PairNumbers(SlowNumbers):
    """Its state is another one now, and it reads the old one too."""

    def snapshot(self, unsent: int) -> Any:
        return [self.next - unsent, "two"]

    def restore(self, states: list[Any]) -> None:
        (state,) = states
        self.next = state if isinstance(state, int) else state[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def counting(
    folder: Path,
    *,
    name: str = "count",
    uid: str = "",
    source: Any = SlowNumbers,
    process: Any = CountAtEnd,
    before: str = "",
    parallelism: int = 1,
    max_parallelism: int = 64,
    is_chained: bool = True,
    counts: bool = True,
) -> StreamEnvironment:
    """A job that counts numbers by key.

    Args:
        folder: of its checkpoints.
        name: of the operator with state.
        uid: of it.
        source: of the numbers.
        process: what counts.
        before: a second operator with state, in front of the first.
        parallelism: of those.
        max_parallelism: number of key groups.
        is_chained: whether operators are chained.
        counts: whether there is the first at all.
    """
    settings = StreamSettings(
        is_chaining_enabled=is_chained, checkpoints=CheckpointSettings(), checkpoint_folder=str(folder)
    )
    job = StreamEnvironment("job", parallelism=1, max_parallelism=max_parallelism, settings=settings)
    stream: Any = job.source(source, name="source", parameters={"count": COUNT}).map(double, name="double")
    if before:
        seen = stream.key_by(key_of).process(Count, name=before)
        seen.sink(Collect, name="seen")
    if counts:
        stream = stream.key_by(key_of).process(process, name=name).set_parallelism(parallelism)
        stream = stream.uid(uid) if uid else stream
    stream.sink(Collect, name="sink").set_parallelism(1)
    return job


async def upgraded(
    folder: Path, before: StreamEnvironment, after: StreamEnvironment, *, allow: bool = False
) -> tuple[Run, tuple[str, ...]]:
    """Stops a job with a savepoint, begins another one from it; and what that leaves behind."""
    async with running(before) as run:
        await trio.sleep(0.01)
        await run.checkpoint(1, stops=True)
        await run.wait()
    contents = SavepointContents.of(CheckpointStorage(folder).snapshots(1))
    graph = after.stream_graph()
    left = check_savepoint("/chk-1", contents, graph, generate_job(graph).job, allow_missing=allow)
    return await run_to_its_end(after, restore=1), left


def counts_of(run: Run, name: str = "count") -> Counter[int]:
    return Counter({key: count for part in run.result(name) for key, count in part})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"name": "tally", "uid": "count"}),
        ({"uid": "c"}, {"name": "tally", "uid": "c"}),
        ({"name": "tally", "uid": "c"}, {"name": "source 2", "uid": "c"}),
        ({}, {"before": "added"}),
        ({}, {"is_chained": False}),
        ({"is_chained": False}, {"parallelism": 3}),
        ({"parallelism": 3}, {"parallelism": 2, "max_parallelism": 7}),
        ({}, {"source": PairNumbers}),
        ({"source": PairNumbers}, {"source": PairNumbers, "parallelism": 2}),
    ],
)
async def test_the_job_goes_on_as_if_nothing_had_been(
    autojump_clock: MockClock, folder: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    run, left = await upgraded(folder, counting(folder, **before), counting(folder, **after))
    assert counts_of(run, after.get("name", "count")) == ALL
    assert left == ()


async def test_an_operator_that_is_removed_is_left_behind(autojump_clock: MockClock, folder: Path) -> None:
    with pytest.raises(StateMismatch, match="state 'counts' of operator 'count'"):
        await upgraded(folder / "1", counting(folder / "1"), counting(folder / "1", counts=False))
    run, left = await upgraded(folder / "2", counting(folder / "2"), counting(folder / "2", counts=False), allow=True)
    assert left == ("count",)
    (rest,) = run.result("sink")
    assert rest[-1] == 2 * (COUNT - 1)
    assert 0 not in rest  # the source has gone on where it was


async def test_numbers_become_wider(autojump_clock: MockClock, folder: Path) -> None:
    run, _ = await upgraded(folder, counting(folder), counting(folder, process=AverageAtEnd))
    half = sum(ALL.values()) / 2
    assert half < sum(counts_of(run).values()) < 2 * half


async def test_another_type_of_value_has_another_name(autojump_clock: MockClock, folder: Path) -> None:
    run, _ = await upgraded(folder, counting(folder), counting(folder, process=ListAtEnd))
    assert 0 < sum(counts_of(run).values()) < COUNT  # it began empty


async def test_another_type_of_key_begins_empty_with_another_uid(autojump_clock: MockClock, folder: Path) -> None:
    _, left = await upgraded(folder, counting(folder), counting(folder, uid="count 2"), allow=True)
    assert left == ("count",)
