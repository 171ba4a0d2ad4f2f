"""Failure reports: errors with the user's source lines, as plain data that other processes store and print.

Takes: a report from `tracebacks.describe`, possibly untrusted. Gives: a checked report, and its text.

A report is `{"errors": [error, ...]}`; the first error is the one that was raised. An error is a dict:

- `type`: name of its class; `message`: its text.
- `how`: its relation: `raised` (the first), `cause` or `context` of the error before it in the list (Python's
  `__cause__` and `__context__`), `beside`: raised in the same group as the first.
- `frames`: the outermost first. Each is `{"file", "line", "function", "source"}`, or `{"folded": text}` for omitted
  frames.

Rules: a report has at most `MAX_BYTES` as JSON. Every text is on one line and printable (`shown`). A failure without a
Python error, such as the death of a process, has the empty report `{}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ..base.text.safe_text import safe_text

MAX_BYTES: Final = 16 << 10
MAX_ERRORS: Final = 8
MAX_FRAMES: Final = 32
"""The most frames of one error; the middle of a longer traceback is folded."""

TYPE_CHARACTERS: Final = 120
MESSAGE_CHARACTERS: Final = 2000
FILE_CHARACTERS: Final = 300
SOURCE_CHARACTERS: Final = 200
MAX_LINE: Final = 1 << 31

_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|\A<frozen ")

HOWS: Final = ("raised", "cause", "context", "beside")
_JOINED: Final = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
}


def size_bytes(plain: object) -> int:
    """The size of plain data as stored JSON, in bytes."""
    return len(json.dumps(plain))


def checked_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a report of a peer and makes its texts printable.

    Raises:
        ValueError: it is not a report, or is larger than `MAX_BYTES`.
    """
    if not report:
        return {}
    errors = report.get("errors")
    if len(report) != 1 or type(errors) is not list or not 1 <= len(errors) <= MAX_ERRORS:
        raise ValueError(
            f"a failure report must be empty or have exactly the field errors, with 1 to {MAX_ERRORS} entries"
        )
    made = {"errors": [_checked_error(error, number) for number, error in enumerate(errors)]}
    if size_bytes(made) > MAX_BYTES:
        raise ValueError(f"a failure report of {size_bytes(made)} bytes; the maximum is {MAX_BYTES}")
    return made


def _checked_error(error: Any, number: int) -> dict[str, Any]:
    if type(error) is not dict or error.keys() != {"type", "message", "how", "frames"}:
        raise ValueError("an error of a failure report must have type, message, how and frames")
    frames, how = error["frames"], error["how"]
    if type(frames) is not list or len(frames) > 2 * MAX_FRAMES + 1:
        raise ValueError(f"an error of a failure report must have a list of at most {2 * MAX_FRAMES + 1} frames")
    if how not in (HOWS[1:] if number else HOWS[:1]):
        raise ValueError("the field how of an error in a failure report does not fit its position")
    return {
        "type": _checked_text(error["type"], TYPE_CHARACTERS),
        "message": _checked_text(error["message"], MESSAGE_CHARACTERS),
        "how": how,
        "frames": [_checked_frame(frame) for frame in frames],
    }


def _checked_frame(frame: Any) -> dict[str, Any]:
    if type(frame) is dict and frame.keys() == {"folded"}:
        return {"folded": _checked_text(frame["folded"], TYPE_CHARACTERS)}
    if type(frame) is not dict or frame.keys() != {"file", "line", "function", "source"}:
        raise ValueError("a frame of a failure report must have file, line, function and source, or folded")
    if type(frame["line"]) is not int or not 0 <= frame["line"] < MAX_LINE:
        raise ValueError("a frame of a failure report has no valid line number")
    return {
        "file": _checked_text(frame["file"], FILE_CHARACTERS),
        "line": frame["line"],
        "function": _checked_text(frame["function"], TYPE_CHARACTERS),
        "source": _checked_text(frame["source"], SOURCE_CHARACTERS),
    }


def _checked_text(text: Any, limit: int) -> str:
    if type(text) is not str:
        raise ValueError("a text of a failure report is not a str")
    return safe_text(text, limit)


def raised_at(report: Mapping[str, Any]) -> str:
    """The user's line at which the first error, or else its cause, was raised, as `file.py:12`; empty without one.

    Of an error that a library raised it is the line that called the library; a line of the library helps nobody.
    """
    for error in report.get("errors", ()):
        frames = [frame for frame in error["frames"] if "line" in frame]
        own = [frame for frame in frames if _LIBRARY.search(frame["file"]) is None]
        if own and error["how"] != "beside":
            return f"{own[-1]['file'].rpartition('/')[2]}:{own[-1]['line']}"
    return ""


def with_place(text: str, report: Mapping[str, Any]) -> str:
    """A failure's text, followed by the place where it was raised, if known."""
    place = raised_at(report)
    return f"{text}, at {place}" if place else text


def rendered(report: Mapping[str, Any], *, folded: bool = True) -> str:
    """Formats a report like Python's traceback, without a trailing newline; empty if it has no visible frame.

    Args:
        report: a checked report.
        folded: whether to mention omitted frames.
    """
    chains: list[list[Mapping[str, Any]]] = []
    errors = report.get("errors", ())
    if not any("line" in frame for error in errors for frame in error["frames"]):
        return ""
    for error in errors:
        if error["how"] in _JOINED:
            chains[-1].append(error)
        else:
            chains.append([error])
    return "\n\nAlso raised:\n\n".join(_chain(chain, folded) for chain in chains)


def _chain(errors: list[Mapping[str, Any]], folded: bool) -> str:
    parts = []
    for error in reversed(errors):
        parts.append("\n".join(_lines(error, folded)))
        if error["how"] in _JOINED:
            parts.append(_JOINED[error["how"]])
    return "\n\n".join(parts)


def _lines(error: Mapping[str, Any], folded: bool) -> list[str]:
    lines = []
    is_shown = any("line" in frame for frame in error["frames"])
    for frame in error["frames"] if is_shown else ():
        if "folded" not in frame:
            lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
            if frame["source"]:
                lines.append(f"    {frame['source']}")
        elif folded:
            lines.append(f"  ... {frame['folded']}")
    if lines:
        lines.insert(0, "Traceback (most recent call last):")
    message = error["message"]
    return [*lines, f"{error['type']}: {message}" if message else error["type"]]
