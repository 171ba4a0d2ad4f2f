"""Counts the words of a file in a batch job, whose parallelism is chosen once the number of words is known.

Takes: a file. Gives: the most frequent words, from its one sink.

    netstack run netstack.examples:batch_word_count --input FILE [-p volume=65536] [-p top=10]
    netstack plan netstack.examples:batch_word_count --input FILE

The job has three stages with files between them. No producer waits for its consumer, so one slot is enough. Words are
hashed to as many subpartitions as there may be counters; each counter reads a range of them with about `volume` bytes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..schedule.graph.settings import AdaptiveSettings
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamSettings

READ_BYTES = 1 << 20


def batch_word_count(input: str, volume: int = 16 << 20, readers: int = 2, top: int = 20) -> StreamEnvironment:
    """Builds the job.

    Args:
        input: path of a text file that every TaskManager can read.
        volume: number of bytes that each subtask of a vertex should read.
        readers: number of subtasks that read the file.
        top: number of words to return.
    """
    settings = StreamSettings(
        is_batch=True, is_dynamic=True, adaptive=AdaptiveSettings(data_volume_per_task_bytes=volume)
    )
    job = StreamEnvironment("batch word count", settings=settings)
    read = job.source(words, name="read", path=input).set_parallelism(readers)
    counted = read.key_by(itself).process(Count, name="count")
    counted.sink(Top, name="top", count=top).set_parallelism(1)
    return job


def words(context: Any, path: str) -> Iterator[str]:
    """Yields the words of all lines that begin in this subtask's part of the file."""
    size = os.path.getsize(path)
    start = size * context.subtask // context.parallelism
    stop = size * (context.subtask + 1) // context.parallelism
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            start += len(file.readline()) - 1  # a line that began before this part belongs to the previous subtask
        while start < stop:
            block = file.readlines(min(READ_BYTES, stop - start))
            if not block:
                return
            for line in block:
                if start >= stop:
                    return
                start += len(line)
                yield from re.findall(r"\w+", line.decode(errors="replace").lower())


def itself(word: str) -> str:
    """Returns the key of a word: the word itself."""
    return word


class Count:
    """Counts each word, and emits the counts at the end."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def process(self, word: str, out: Any) -> None:
        """Counts one word."""
        self._counts[word] += 1

    def finish(self, out: Any) -> None:
        """Emits all counts."""
        for word, count in self._counts.items():
            out.collect([word, count])


class Top:
    """Collects the most frequent words."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._words: list[tuple[int, str]] = []
        self._total = 0

    def process(self, counted: list[Any]) -> None:
        """Stores the count of one word."""
        word, count = counted
        self._words.append((-count, word))
        self._total += count

    def finish(self, out: Any) -> dict[str, Any]:
        """Returns the result of the job."""
        self._words.sort()
        return {"words": self._total, "top": [[word, -count] for count, word in self._words[: self._count]]}
