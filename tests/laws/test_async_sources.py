"""Whenever checkpoints come: what a source has advanced by before it waits is sent, once, and its reads end.

A source counts on, then awaits, then returns what it counted, sometimes nothing. Checkpoints, savepoints and aborts
come at any moment of a read; the job is stopped at any moment and goes on from its last checkpoint.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import trio
from hypothesis import given, settings, strategies as st
from task.task_functions import Collect
from task.tasks import running
from trio_runs import run_virtual

from netstack.cluster.task.context import OperatorContext
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings

COUNT = 60


class Advancing:
    """A source that advances, then awaits; it counts calls that overlap another method of it."""

    is_reading = False

    def __init__(self, pauses_s: list[float], at_once: int, empty_every: int) -> None:
        self.next, self.pauses_s, self.at_once, self.reads = 0, pauses_s, at_once, 0
        self.empty_every = empty_every

    def open(self, context: OperatorContext) -> None:
        self.first = context.subtask * 1_000_000

    async def read(self) -> list[int] | None:
        assert not self.is_reading
        self.reads += 1
        at_once = self.at_once if self.reads % self.empty_every else 0
        first, self.next = self.next, min(self.next + at_once, COUNT)
        self.is_reading = True
        await trio.sleep(self.pauses_s[self.reads % len(self.pauses_s)])
        self.is_reading = False
        if at_once and first == COUNT:
            return None
        return [self.first + number for number in range(first, self.next)]

    def snapshot(self, unsent: int) -> int:
        assert not self.is_reading
        return self.next - unsent

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        assert not self.is_reading

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


@dataclass(frozen=True)
class Run:
    """From the last checkpoint on: for a while, checkpoints that are given up, one that is complete, a while."""

    before_s: float
    given_up: int
    unaligned: bool
    stops: bool
    after_s: float


PAUSES = st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.3, 4.0]), min_size=1, max_size=5)
RUNS = st.builds(
    Run,
    st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.005, 0.5]),
)


@settings(max_examples=15, deadline=None)
@given(PAUSES, st.integers(1, 9), st.integers(2, 9), st.integers(1, 2), st.lists(RUNS, max_size=4))
def test_every_record_arrives_once(
    pauses_s: list[float], at_once: int, empty_every: int, sources: int, runs: list[Run]
) -> None:
    run_virtual(play, pauses_s, at_once, empty_every, sources, runs)


async def play(pauses_s: list[float], at_once: int, empty_every: int, sources: int, runs: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = StreamEnvironment(
            "job",
            parallelism=sources,
            settings=StreamSettings(checkpoints=CheckpointSettings(unaligned=True), checkpoint_folder=folder),
        )
        parameters: dict[str, Any] = {"pauses_s": pauses_s, "at_once": at_once, "empty_every": empty_every}
        job.source(Advancing, name="source", parameters=parameters).rebalance().sink(Collect, name="sink")
        number, last = 0, None
        for each in runs:
            async with running(job, restore=last) as run:
                await trio.sleep(each.before_s)
                for _ in range(each.given_up):
                    number += 1
                    run.trigger(number)
                    await trio.sleep(0.002)
                    for task in run.tasks.values():
                        task.abort_checkpoint(number)
                    run.declined.pop(number, None)
                number += 1
                await run.checkpoint(number, unaligned=each.unaligned, stops=each.stops)
                last = number
                await trio.sleep(each.after_s)
        async with running(job, restore=last) as run:
            await run.wait()
        actual = sorted(record for part in run.result("sink") for record in part)
        assert actual == sorted(1_000_000 * source + record for source in range(sources) for record in range(COUNT))
