"""Counts the words of a file, and goes on from its last checkpoint when a process is killed.

    netstack run netstack.examples.word_count:job --input FILE
    netstack run netstack.examples.word_count:job --input FILE -p parallelism=4 --taskmanagers 4 --slots 1

    lines -> split -> (by word) -> count -> (to one) -> top

What to look at: `Lines` knows where it is, so it can go on from there, also with another number of subtasks. `Count`
has keyed state, which the runtime keeps. `netstack plan` shows that `lines -> split` is one task, and why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings

LINES_AT_ONCE: Final = 256


class Lines:
    """A source: the lines of a file, each once. Every subtask reads a range of bytes: the lines that begin in it."""

    def __init__(self, path: str) -> None:
        """Args: of the file, which every TaskManager must see."""
        self.path = path
        self.ranges: list[list[int]] = []  # still to be read: [from, to]
        self.starts: list[int] = []  # where each of the lines begins that were read last

    def open(self, context: OperatorContext) -> None:
        """Shares the file out."""
        size_bytes = os.path.getsize(self.path)
        first = size_bytes * context.subtask // context.parallelism
        last = size_bytes * (context.subtask + 1) // context.parallelism
        self.ranges = [[first, last]]

    def restore(self, states: list[list[list[int]]]) -> None:
        """What the old subtasks had not read; nothing, in a subtask more than there were."""
        self.ranges = [each for ranges in states for each in ranges]

    def read(self) -> list[str] | None:
        """The next lines."""
        while self.ranges:
            lines = self._read(self.ranges[0])
            if lines:
                return lines
            del self.ranges[0]
        return None

    def _read(self, part: list[int]) -> list[str]:
        """The next lines that begin in a range, which then begins behind them."""
        first, last = part
        lines: list[str] = []
        self.starts = []
        with open(self.path, "rb") as file:
            file.seek(max(0, first - 1))
            if first:
                file.readline()  # to the end of the line that began before
            start = file.tell()
            while start < last and len(lines) < LINES_AT_ONCE:
                line = file.readline()
                self.starts.append(start)
                lines.append(line.decode(errors="replace"))
                start += len(line)
            part[0] = start
        return lines

    def snapshot(self, unsent: int) -> list[list[int]]:
        """What is still to be read: of the lines read last so many were not sent."""
        ranges = [list(each) for each in self.ranges]
        if unsent:
            ranges[0][0] = self.starts[-unsent]
        return ranges


def split(line: str) -> Iterable[str]:
    """The words of a line."""
    return re.findall(r"\w+", line.lower())


def itself(word: str) -> str:
    """The key of a word."""
    return word


class Count:
    """How often each word came; all at the end."""

    def open(self, context: OperatorContext) -> None:
        """Asks for its state."""
        self.counts = context.keyed_state("counts", 0)

    def process(self, word: str, out: Output) -> None:
        """One more."""
        self.counts[word] += 1

    def finish(self, out: Output) -> None:
        """There are no more words."""
        for word, count in self.counts.items():
            out.collect([word, count])


class Top:
    """The words that came most often."""

    def __init__(self, most: int) -> None:
        """Args: how many of them."""
        self.most = most
        self.found: list[list[str | int]] = []

    def process(self, counted: list[str | int]) -> None:
        """One word."""
        self.found.append(counted)

    def finish(self) -> list[list[str | int]]:
        """The result of the job."""
        return sorted(self.found, key=lambda counted: (-int(counted[1]), counted[0]))[: self.most]

    def snapshot(self) -> list[list[str | int]]:
        """What came so far."""
        return list(self.found)

    def restore(self, states: list[list[list[str | int]]]) -> None:
        """Goes on."""
        self.found = [counted for state in states for counted in state]


def job(input: str, parallelism: int = 2, most: int = 10, interval_s: float = 1.0) -> StreamEnvironment:
    """The job.

    Args:
        input: path of the file.
        parallelism: of everything but the last step.
        most: how many words are told.
        interval_s: a checkpoint is taken so often.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=interval_s, unaligned=True))
    words = StreamEnvironment("word count", parallelism=parallelism, settings=settings)
    lines = words.source(Lines, name="lines", parameters={"path": os.path.abspath(input)})
    counts = lines.flat_map(split, name="split").with_format("str").key_by(itself).process(Count, name="count")
    counts.global_().sink(Top, name="top", most=most).set_parallelism(1)
    return words
