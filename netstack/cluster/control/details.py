"""Schema of the channel details with which a TaskManager answers `AskDetails`.

Takes: documents. Gives: the column names of both ends of a channel; an error for a malformed document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...base.text.safe_text import safe_repr
from .codec import Plain

TASKMANAGER_KEYS: Final = ("memory_bytes", "free_memory_bytes", "network")
"""Top-level keys of the document besides `jobs` and `took_s`."""

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
"""Columns of an input channel (`ChannelStatistics`). `producer` and `attempt` identify the writing task; `peer` is the
dialled address, empty for a local channel."""

OUTPUT_COLUMNS: Final = ("subpartition", "queued_buffers", "backlog_buffers", "credit", "is_blocked", "buffers_sent")
"""Columns of a subpartition (`SubpartitionStatistics`)."""

_CELLS: Final = (int, bool, str, type(None))

TEXT_CHARACTERS: Final = 1024
"""Maximum length of a text of the details, such as the address of a peer."""

_NUMBER: Final = (int, float)
_OF_A_TASK: Final = {
    "attempt": (list,),
    "records_in": (int,),
    "records_out": (int,),
    "busy_s": _NUMBER,
    "idle_s": _NUMBER,
    "backpressured_s": _NUMBER,
    "barriers": (dict, type(None)),
    "inputs": (list,),
    "outputs": (list,),
}
_OF_AN_INPUT: Final = {"channels": (int,), "floating": (dict, type(None)), "rows": (list,)}
_OF_AN_OUTPUT: Final = {"pool": (dict, type(None)), "rows": (list,)}


def check_details(document: Plain) -> None:
    """Checks that every part which a snapshot reads has exactly its type.

    Raises:
        ValueError: a part is missing or malformed; the text names it.
    """
    _check("details", document, {"took_s": _NUMBER, "jobs": (dict,), "network": (dict, type(None))})
    for name in TASKMANAGER_KEYS:
        if name not in document:
            raise ValueError(f"the details have no {name}")
        _check_values(name, document[name])
    for job in document["jobs"].values():
        _check("a job", job, {"tasks": (list,), "network": (dict, type(None))})
        _check_values("the network of a job", job["network"])
        for task in job["tasks"]:
            _check("a task", task, _OF_A_TASK)
            if [*map(type, task["attempt"])] != [int, int, int]:
                raise ValueError("an attempt is three ints: vertex, subtask, attempt")
            _check_values("barriers", task["barriers"])
            for each in task["inputs"]:
                _check("an input", each, _OF_AN_INPUT)
                _check_values("floating", each["floating"])
                _check_rows("inputs", each["rows"], INPUT_COLUMNS)
                if any(type(row[5]) is not str for row in each["rows"]):
                    raise ValueError("the peer of a channel is not a text")
            for each in task["outputs"]:
                _check("an output", each, _OF_AN_OUTPUT)
                _check_values("pool", each["pool"])
                _check_rows("outputs", each["rows"], OUTPUT_COLUMNS)


def _check(what: str, document: object, kinds: Mapping[str, tuple[type, ...]]) -> None:
    if type(document) is not dict:
        raise ValueError(f"{what} is not a table")
    for name, allowed in kinds.items():
        value = document.get(name, _MISSING)
        if type(value) not in allowed:
            raise ValueError(f"{name} of {what} is {'missing' if value is _MISSING else type(value).__name__}")
        if type(value) in _NUMBER and not 0 <= value < math.inf:
            raise ValueError(f"{name} of {what} is {value}, which is not an amount")


_MISSING: Final = object()


def _check_rows(ends: str, rows: Iterable[object], columns: Sequence[str]) -> None:
    for row in rows:
        if type(row) is not list or len(row) != len(columns) or any(type(cell) not in _CELLS for cell in row):
            raise ValueError(f"rows of {ends} have other columns than {columns}")
        for cell in row:
            if type(cell) is str:
                _check_text(ends, cell)


def _check_values(what: str, document: object) -> None:
    """Checks that all texts of plain data are short lines, and all numbers finite."""
    values = [document]
    while values:
        value = values.pop()
        if type(value) is dict:
            values += (*value, *value.values())
        elif type(value) is list:
            values += value
        elif type(value) is str:
            _check_text(what, value)
        elif type(value) is float and not math.isfinite(value):
            raise ValueError(f"{what} has the number {value}")
        elif type(value) is bytes:
            raise ValueError(f"{what} has bytes")


def _check_text(what: str, text: str) -> None:
    if len(text) > TEXT_CHARACTERS or not text.isprintable():
        raise ValueError(
            f"{what} has a text of {len(text)} characters ({safe_repr(text, 40)}); it must be one printable line of at"
            f" most {TEXT_CHARACTERS}"
        )
