"""Counts the words of a file, and continues from its last checkpoint when a process is killed.

    netstack run netstack.examples.word_count:job --input FILE
    netstack run netstack.examples.word_count:job --input FILE -p parallelism=4 --taskmanagers 4 --slots 1

    lines -> split -> (by word) -> count -> (to one) -> top

What to look at: `Lines` stores its position, so it can continue from there, also with another number of subtasks.
`Count` has keyed state, which the runtime stores. `netstack plan` shows that `lines -> split` is one task, and why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings

LINES_AT_ONCE: Final = 256


class Lines:
    """A source of the lines of a file. Every subtask reads the lines that begin in its range of bytes."""

    def __init__(self, path: str) -> None:
        """Args: the path of the file, which every TaskManager must be able to read."""
        self.path = path
        self.ranges: list[list[int]] = []  # ranges still to be read: [start, end]
        self.starts: list[int] = []  # offsets of the lines read last

    def open(self, context: OperatorContext) -> None:
        """Determines the range of this subtask."""
        size_bytes = os.path.getsize(self.path)
        first = size_bytes * context.subtask // context.parallelism
        last = size_bytes * (context.subtask + 1) // context.parallelism
        self.ranges = [[first, last]]

    def restore(self, states: list[list[list[int]]]) -> None:
        """Takes over what the former subtasks had not read; nothing in an additional subtask."""
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
        """Reads the next lines that begin in a range, and moves the start of the range."""
        first, last = part
        lines: list[str] = []
        self.starts = []
        with open(self.path, "rb") as file:
            file.seek(max(0, first - 1))
            if first:
                file.readline()  # skips the line that began before the range
            start = file.tell()
            while start < last and len(lines) < LINES_AT_ONCE:
                line = file.readline()
                self.starts.append(start)
                lines.append(line.decode(errors="replace"))
                start += len(line)
            part[0] = start
        return lines

    def snapshot(self, unsent: int) -> list[list[int]]:
        """Returns the ranges still to be read, including the `unsent` last lines."""
        ranges = [list(each) for each in self.ranges]
        if unsent:
            ranges[0][0] = self.starts[-unsent]
        return ranges


def split(line: str) -> Iterable[str]:
    """Splits a line into words."""
    return re.findall(r"\w+", line.lower())


def itself(word: str) -> str:
    """Returns the key of a word: the word itself."""
    return word


class Count:
    """Counts each word, and emits the counts at the end."""

    def open(self, context: OperatorContext) -> None:
        """Gets the keyed state."""
        self.counts = context.keyed_state("counts", 0)

    def process(self, word: str, out: Output) -> None:
        """Counts one word."""
        self.counts[word] += 1

    def finish(self, out: Output) -> None:
        """Emits all counts."""
        for word, count in self.counts.items():
            out.collect([word, count])


class Top:
    """Collects the most frequent words."""

    def __init__(self, most: int) -> None:
        """Args: the number of words to return."""
        self.most = most
        self.counts: list[list[str | int]] = []

    def process(self, counted: list[str | int]) -> None:
        """Stores the count of one word."""
        self.counts.append(counted)

    def finish(self) -> list[list[str | int]]:
        """Returns the result of the job."""
        return sorted(self.counts, key=lambda counted: (-int(counted[1]), counted[0]))[: self.most]

    def snapshot(self) -> list[list[str | int]]:
        """Returns the counts received so far."""
        return list(self.counts)

    def restore(self, states: list[list[list[str | int]]]) -> None:
        """Restores the counts."""
        self.counts = [counted for state in states for counted in state]


def job(input: str, parallelism: int = 2, most: int = 10, interval_s: float = 1.0) -> StreamEnvironment:
    """Builds the job.

    Args:
        input: path of the file.
        parallelism: parallelism of all operators but the last one.
        most: number of words to return.
        interval_s: checkpoint interval.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=interval_s, unaligned=True))
    words = StreamEnvironment("word count", parallelism=parallelism, settings=settings)
    lines = words.source(Lines, name="lines", path=os.path.abspath(input))
    counts = lines.flat_map(split, name="split").with_format("str").key_by(itself).process(Count, name="count")
    counts.global_().sink(Top, name="top", most=most).set_parallelism(1)
    return words
