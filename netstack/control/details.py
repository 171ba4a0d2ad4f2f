"""What a TaskManager tells of its channels when it is asked (`AskDetails`): the columns of the rows, and their check.

Takes: documents. Gives: names of columns for both ends; an error for a document that nobody could read.
"""

from __future__ import annotations

from typing import Final

from .codec import Plain

TASKMANAGER_KEYS: Final = ("memory_bytes", "free_memory_bytes", "network")
"""Of the document itself, beside `jobs` and `took_s`."""

INPUT_COLUMNS: Final = (
    "channel",
    "producer",
    "attempt",
    "subpartition",
    "is_local",
    "peer",
    "queued_buffers",
    "queued_bytes",
    "exclusive",
    "free_exclusive",
    "free_floating",
    "unannounced_credit",
    "sender_backlog",
    "buffers",
    "is_finished",
)
"""Of a channel at its consumer; see `ChannelStatistics`. `producer` and `attempt` are those of the task that writes,
`peer` the address that was dialled, empty for a local channel."""

OUTPUT_COLUMNS: Final = ("subpartition", "queued_buffers", "backlog_buffers", "credit", "is_blocked", "buffers_sent")
"""Of a channel at its producer; see `SubpartitionStatistics`."""


_PLAIN: Final = frozenset({int, bool, str, type(None)})
"""What a cell of a row is."""


def check_details(document: Plain) -> None:
    """Raises `KeyError`, `TypeError` or `ValueError` for what snapshots could not be made of."""
    float(document["took_s"])
    for name in TASKMANAGER_KEYS:
        document[name]
    for job in document["jobs"].values():
        if job["network"] is not None:
            dict(job["network"])
        for task in job["tasks"]:
            if [*map(type, task["attempt"])] != [int, int, int]:
                raise ValueError("an attempt is three ints: vertex, subtask, attempt")
            for name in ("records_in", "records_out", "barriers"):
                task[name]
            for ends, kind, columns in (("inputs", "floating", INPUT_COLUMNS), ("outputs", "pool", OUTPUT_COLUMNS)):
                for each in task[ends]:
                    each[kind]
                    for row in each["rows"]:
                        if type(row) is not list or len(row) != len(columns) or not _PLAIN.issuperset(map(type, row)):
                            raise ValueError(f"rows of {ends} have other columns than {columns}")
            for each in task["inputs"]:
                int(each["channels"])
                if any(type(row[5]) is not str for row in each["rows"]):
                    raise ValueError("the peer of a channel is no text")
