"""Two independent pipelines in one job: if a process of one is killed, the other continues without interruption.

    netstack run netstack.examples.two_pipelines:job --taskmanagers 2 --slots 1

    left numbers -> (by remainder) -> left sum        right numbers -> (by remainder) -> right sum

What to look at: each pipeline has its own slot sharing group, so with one slot per TaskManager they run in different
processes. Each is a pipelined region, whose tasks restart together from the last checkpoint. At the end each sum
reports the count and the sum of its numbers, which shows that no number was lost or processed twice.
"""

from __future__ import annotations

import trio

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings


class Numbers:
    """A source of the numbers from 0 on, a few per hundredth of a second."""

    def __init__(self, count: int, per_s: int) -> None:
        """Args: how many numbers in all, and per second."""
        self.count = count
        self.at_once = max(1, per_s // 100)
        self.next = 0

    async def read(self) -> list[int] | None:
        """Returns the next numbers."""
        await trio.sleep(0.01)
        first = self.next
        self.next = min(self.count, first + self.at_once)
        return [*range(first, self.next)] or None

    def snapshot(self, unsent: int) -> int:
        """Returns the next number to send."""
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        """Restores the position; the source has one subtask."""
        (self.next,) = states


def remainder(number: int) -> int:
    """Returns the key of a number."""
    return number % 100


class Sum:
    """Counts and adds the numbers of every key."""

    def open(self, context: OperatorContext) -> None:
        """Gets the keyed state."""
        self.sums = context.keyed_state("sums", (0, 0))

    def process(self, number: int, out: Output) -> None:
        """Adds one number."""
        count, total = self.sums[number % 100]
        self.sums[number % 100] = (count + 1, total + number)

    def finish(self) -> dict[str, int]:
        """Returns the result of this subtask."""
        return {
            "count": sum(count for count, _ in self.sums.values()),
            "sum": sum(total for _, total in self.sums.values()),
        }


def job(seconds: int = 30, per_s: int = 1000, interval_s: float = 1.0) -> StreamEnvironment:
    """Builds the job.

    Args:
        seconds: duration of the job.
        per_s: numbers per second of each pipeline.
        interval_s: checkpoint interval.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=interval_s))
    both = StreamEnvironment("two pipelines", settings=settings)
    for side in ("left", "right"):
        parameters = {"count": seconds * per_s, "per_s": per_s}
        numbers = both.source(Numbers, name=f"{side} numbers", parameters=parameters).slot_sharing_group(side)
        numbers.with_format("int64").key_by(remainder).process(Sum, name=f"{side} sum")
    return both
