"""The words of a file, counted stage after stage; how many count them is decided when it is known how many there are.

Takes: a file. Gives: the most frequent words, from its one sink.

    netstack run netstack.examples:batch_word_count --input FILE [-p volume=65536] [-p top=10]
    netstack plan netstack.examples:batch_word_count --input FILE

Three stages with files between them: nobody waits for a consumer, so one slot is enough. Words are hashed to as many
subpartitions as there may be counters; each counter reads a range of them that holds about `volume` bytes.
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
    """The job.

    Args:
        input: path of a text file that every TaskManager can read.
        volume: bytes that each subtask of a vertex is to read.
        readers: subtasks that read the file, each a part of it.
        top: so many words are returned.
    """
    settings = StreamSettings(
        is_batch=True, is_dynamic=True, adaptive=AdaptiveSettings(data_volume_per_task_bytes=volume)
    )
    job = StreamEnvironment("batch word count", settings=settings)
    read = job.source(words, name="read", parameters={"path": input}).set_parallelism(readers)
    counted = read.key_by(itself).process(Count, name="count")
    counted.sink(Top, name="top", count=top).set_parallelism(1)
    return job


def words(context: Any, path: str) -> Iterator[str]:
    """The words of this subtask's part of the file: of the lines that begin in it."""
    size = os.path.getsize(path)
    start = size * context.subtask // context.parallelism
    stop = size * (context.subtask + 1) // context.parallelism
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            start += len(file.readline()) - 1  # a line that began before is the other subtask's
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
    """What the words are grouped by."""
    return word


class Count:
    """How often each word came; told at the end."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def process(self, word: str, out: Any) -> None:
        """One more."""
        self._counts[word] += 1

    def finish(self, out: Any) -> None:
        """All counts, on to the sink."""
        for word, count in self._counts.items():
            out.collect([word, count])


class Top:
    """The most frequent words."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: list[tuple[int, str]] = []
        self._total = 0

    def process(self, counted: list[Any]) -> None:
        """A word with its count."""
        word, count = counted
        self._found.append((-count, word))
        self._total += count

    def finish(self, out: Any) -> dict[str, Any]:
        """What the sink returns."""
        self._found.sort()
        return {"words": self._total, "top": [[word, -count] for count, word in self._found[: self._count]]}
