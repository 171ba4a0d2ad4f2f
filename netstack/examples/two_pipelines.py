"""Two pipelines that know nothing of each other, in one job: kill a process of one, and the other does not notice.

    netstack run netstack.examples.two_pipelines:job --taskmanagers 2 --slots 1

    left numbers -> (by remainder) -> left sum        right numbers -> (by remainder) -> right sum

What to look at: each pipeline has a slot sharing group of its own, so with one slot a TaskManager they are in different
processes. Each is a pipelined region: what fails is started again together, from the last checkpoint. At the end each
sum says how many numbers it got, and their sum: nothing was lost, nothing came twice.
"""

from __future__ import annotations

import trio

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings


class Numbers:
    """A source: the numbers from 0 on, a few in every hundredth of a second."""

    def __init__(self, count: int, per_s: int) -> None:
        """Args: how many in all, and in a second."""
        self.count = count
        self.at_once = max(1, per_s // 100)
        self.next = 0

    async def read(self) -> list[int] | None:
        """The next few."""
        await trio.sleep(0.01)
        first = self.next
        self.next = min(self.count, first + self.at_once)
        return [*range(first, self.next)] or None

    def snapshot(self, unsent: int) -> int:
        """How far it is."""
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        """Goes on from there; the job has one subtask of it."""
        (self.next,) = states


def remainder(number: int) -> int:
    """The key of a number."""
    return number % 100


class Sum:
    """Counts and adds the numbers of every key."""

    def open(self, context: OperatorContext) -> None:
        """Asks for its state."""
        self.sums = context.keyed_state("sums", (0, 0))

    def process(self, number: int, out: Output) -> None:
        """One more."""
        count, total = self.sums[number % 100]
        self.sums[number % 100] = (count + 1, total + number)

    def finish(self) -> dict[str, int]:
        """The result of this subtask."""
        return {
            "count": sum(count for count, _ in self.sums.values()),
            "sum": sum(total for _, total in self.sums.values()),
        }


def job(seconds: int = 30, per_s: int = 1000, interval_s: float = 1.0) -> StreamEnvironment:
    """The job.

    Args:
        seconds: how long it takes.
        per_s: numbers of each pipeline in a second.
        interval_s: a checkpoint is taken so often.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=interval_s))
    both = StreamEnvironment("two pipelines", settings=settings)
    for side in ("left", "right"):
        parameters = {"count": seconds * per_s, "per_s": per_s}
        numbers = both.source(Numbers, name=f"{side} numbers", parameters=parameters).slot_sharing_group(side)
        numbers.with_format("int64").key_by(remainder).process(Sum, name=f"{side} sum")
    return both
