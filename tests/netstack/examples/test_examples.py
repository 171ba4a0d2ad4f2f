"""The examples do what they say: exact, also after a restart in the middle; and they have a plan."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from task.tasks import run_to_its_end, running
from trio.testing import MockClock

from netstack.cluster.task.context import OperatorContext
from netstack.examples import keyed_join, two_pipelines, word_count
from netstack.schedule import StreamEnvironment, make_plan, plan_text


def in_folder(job: StreamEnvironment, folder: Path) -> StreamEnvironment:
    job.settings = dataclasses.replace(job.settings, checkpoint_folder=str(folder / "checkpoints"))
    return job


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Lines of very different lengths; the last one without an end."""
    chance = random.Random(7)
    lines = [
        " ".join(chance.choices(["to", "be", "or", "not", "that", "is", "the", "question"], k=chance.randrange(60)))
        for _ in range(300)
    ]
    path = tmp_path / "text"
    path.write_text("\n".join(lines) + " end")
    return path


def top(path: Path, most: int = 10) -> list[list[Any]]:
    counts = Counter(word_count.split(path.read_text()))
    return [[word, count] for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
async def test_words_are_counted(autojump_clock: MockClock, text: Path, parallelism: int, tmp_path: Path) -> None:
    run = await run_to_its_end(in_folder(word_count.job(str(text), parallelism), tmp_path))
    assert run.result("top") == [top(text)]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 1), (1, 4)])
async def test_words_are_counted_once_through_a_restart(
    autojump_clock: MockClock, text: Path, before: int, after: int, tmp_path: Path
) -> None:
    async with running(in_folder(word_count.job(str(text), before), tmp_path)) as run:
        await run.checkpoint(1, unaligned=before == after)
        before_end = len(run.outcomes) < len(run.tasks)
    run = await run_to_its_end(in_folder(word_count.job(str(text), after), tmp_path), restore=1)
    assert run.result("top") == [top(text)]
    assert before_end


def test_a_position_in_a_file_is_the_first_line_that_was_not_sent(text: Path) -> None:
    lines = text.read_text().splitlines(keepends=True)
    for unsent in (0, 1, 100, 256):
        source = word_count.Lines(str(text))
        source.open(OperatorContext("lines", "lines", 0, 1, 128, 0))
        actual = source.read()
        assert actual == lines[:256]
        again = word_count.Lines(str(text))
        again.open(OperatorContext("lines", "lines", 0, 1, 128, 0))
        again.restore([source.snapshot(unsent)])
        rest: list[str] = []
        while (more := again.read()) is not None:
            rest += more
        assert rest == lines[256 - unsent :]


async def test_two_pipelines_lose_and_repeat_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    def job() -> StreamEnvironment:
        return in_folder(two_pipelines.job(seconds=3), tmp_path)

    async with running(job()) as run:
        assert len(run.tasks) == 4
        await trio.sleep(1.3)
        await run.checkpoint(1)
        await trio.sleep(0.5)
    run = await run_to_its_end(job(), restore=1)
    for side in ("left", "right"):
        assert run.result(f"{side} sum") == [{"count": 3000, "sum": sum(range(3000))}]


async def test_orders_meet_their_customers(autojump_clock: MockClock, tmp_path: Path) -> None:
    run = await run_to_its_end(in_folder(keyed_join.job(orders=2000, customers=50), tmp_path))
    homes = dict(map(tuple, keyed_join.customers(50)))
    expected: Counter[str] = Counter()
    for number, cents in keyed_join.orders(2000, 50):
        expected[homes.get(number, "nobody")] += cents
    assert run.result("countries") == [dict(sorted(expected.items()))]


@pytest.mark.parametrize(
    "job", [word_count.job("/dev/null"), two_pipelines.job(), keyed_join.job()], ids=lambda job: job.name
)
def test_they_have_a_plan(job: StreamEnvironment) -> None:
    assert "not chained" in plan_text(make_plan(job.stream_graph()))
