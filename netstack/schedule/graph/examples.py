"""An example job: `netstack plan netstack.schedule.graph.examples:word_count`. A plan needs no operator code."""

from __future__ import annotations

from .stream_builder import StreamEnvironment


def word_count() -> StreamEnvironment:
    """Reads lines, splits them in four subtasks, counts words by key, prints them in one."""
    job = StreamEnvironment("word count", parallelism=4)
    lines = job.source("words:read_lines", name="lines").set_parallelism(1)
    counts = lines.flat_map("words:split", name="split").key_by("words:word").process("words:Count", name="count")
    counts.filter("words:is_frequent", name="frequent").rebalance().sink("words:show", name="show").set_parallelism(1)
    return job
