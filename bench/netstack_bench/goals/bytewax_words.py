"""The word count in Bytewax: the dataflow that its processes run.

Takes: a folder with parts of a text. Gives: in it, for each process, when it began to read (`began-PID`) and the
counts of its words with the time when it had the last of them (`counts-PID`). Times are those of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from netstack.examples.word_count import LINES_AT_ONCE, split


def flow(folder: str) -> Any:
    """Builds the dataflow; its processes share the parts of the text, and the words by their keys."""
    import bytewax.operators as op
    from bytewax.connectors.files import DirSource
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    place = Path(folder)

    class Parts(DirSource):  # type: ignore[misc]  # Bytewax has no annotations where it is missing
        def build_part(self, *of_part: Any) -> Any:
            (place / f"began-{os.getpid()}").write_text(repr(time.monotonic()))
            return super().build_part(*of_part)

    class Counts(StatelessSinkPartition):  # type: ignore[misc]
        """Keeps the counts in memory, because Bytewax's own sinks of files wait for the disk."""

        def __init__(self) -> None:
            self._counts: dict[str, int] = {}
            self._ended_s = 0.0

        def write_batch(self, items: list[tuple[str, int]]) -> None:
            self._counts.update(items)
            self._ended_s = time.monotonic()

        def close(self) -> None:
            (place / f"counts-{os.getpid()}").write_text(json.dumps([self._ended_s, self._counts]))

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, *of_worker: Any) -> Counts:
            return Counts()

    dataflow = Dataflow("words")
    lines = op.input("lines", dataflow, Parts(place, glob_pat="part-*", batch_size=LINES_AT_ONCE))
    counts = op.count_final("count", op.flat_map("split", lines, split), lambda word: word)
    op.output("counts", counts, Sink())
    return dataflow
