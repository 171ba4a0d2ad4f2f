"""Converts an exception to a failure report: the user's frames with source, causes, members of groups; bounded.

Takes: any exception. Gives: plain data (see `failure_report`).

Rules: nothing here raises, whatever the exception's class does. Frames of netstack, its libraries and Python's import
system are folded into a count. It reads source files, so it is for failures only.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import trio

from ..base.errors import NetstackError, OperatorFailed
from ..base.own_packages import OWN_PACKAGES
from ..base.text.safe_text import error_text, safe_text
from .failure_report import (
    FILE_CHARACTERS,
    MAX_BYTES,
    MAX_ERRORS,
    MAX_FRAMES,
    MAX_LINE,
    MESSAGE_CHARACTERS,
    SOURCE_CHARACTERS,
    TYPE_CHARACTERS,
    size_bytes,
)

_FOLDED: Final = {
    **dict.fromkeys(OWN_PACKAGES, "netstack"),
    "trio": "trio",
    "outcome": "trio",
    "contextlib": "contextlib",
    "msgpack": "msgpack",
    "lz4": "lz4",
}
_USERS: Final = "netstack.examples"
_IMPORT: Final = "importlib"
_HEAD: Final = 8
"""A long traceback keeps this many of the outermost frames; the rest are the innermost."""

_LEAST_BYTES: Final = 512
"""An error is omitted if less room than this is left."""

_Step = tuple[BaseException, str, tuple[TracebackType | None, ...]]
"""An exception, its relation to the one before it, and the tracebacks that lead to it, outermost first."""


def describe(error: BaseException) -> dict[str, Any]:
    """Returns the failure report of an exception.

    Args:
        error: any exception; an `OperatorFailed` is reported as the error of the user's function.
    """
    try:
        if isinstance(error, OperatorFailed):
            error = error.cause
        return _described(error)
    except Exception:  # an exception's class may override anything, even Python's own attributes
        return {}


def _described(error: BaseException) -> dict[str, Any]:
    left = MAX_BYTES - len('{"errors": []}')
    errors: list[dict[str, Any]] = []
    for raised, how, tracebacks in _related(error):
        made = _error(raised, how, tracebacks, left // 2)
        left -= size_bytes(made) + len(", ")
        errors.append(made)
        if len(errors) == MAX_ERRORS or left < 2 * _LEAST_BYTES:
            break
    return {"errors": errors}


def _related(error: BaseException) -> Iterator[_Step]:
    """Yields the exception, its causes, and the errors raised beside it; each once."""
    seen: set[int] = set()
    waiting: list[_Step] = [(error, "raised", ())]
    first = "raised"
    while waiting:
        each, how, outer = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        outer = (*outer[-MAX_ERRORS:], each.__traceback__)
        if isinstance(each, BaseExceptionGroup):
            waiting += [(member, how, outer) for member in reversed(each.exceptions)]
            continue
        if isinstance(each, trio.Cancelled) and (waiting or first == "beside"):
            continue  # a consequence of another error
        how, first = (first, "beside") if how == "raised" else (how, first)
        yield each, how, outer
        cause = each.__cause__
        if cause is not None:
            waiting.append((cause, "cause", ()))
        elif each.__context__ is not None and not each.__suppress_context__:
            waiting.append((each.__context__, "context", ()))


def _error(error: BaseException, how: str, tracebacks: tuple[TracebackType | None, ...], limit: int) -> dict[str, Any]:
    """Describes one error in at most `limit` bytes of JSON; its message gets at most half of them."""
    text = error_text(error)
    message = safe_text(text, MESSAGE_CHARACTERS)
    if size_bytes(message) > limit // 2:
        message = safe_text(text, limit // 24)  # JSON takes at most 12 bytes for a character
    made: dict[str, Any] = {"type": safe_text(type(error).__name__, TYPE_CHARACTERS), "message": message}
    made |= {"how": how, "frames": []}
    if size_bytes(made) > limit - len(', {"folded": ""}') - TYPE_CHARACTERS:
        return made | {"type": safe_text(type(error).__name__, 20), "message": message[:20]}
    made["frames"] = _frames(error, tracebacks, limit - size_bytes(made), is_first=how == "raised")
    return made


def _frames(
    error: BaseException, tracebacks: tuple[TracebackType | None, ...], limit: int, *, is_first: bool
) -> list[dict[str, Any]]:
    """Returns the visible frames and the counts of folded ones; the innermost are kept if there is no room for all."""
    entries: list[tuple[str, TracebackType]] = []
    for traceback in tracebacks:
        while traceback is not None:
            entries.append((_owner(traceback), traceback))
            traceback = traceback.tb_next
    if is_first and entries and all(owner for owner, _ in entries) and not isinstance(error, NetstackError):
        _, last = entries[-1]
        if not last.tb_frame.f_code.co_filename.startswith("<"):  # a generated function has no file to look at
            entries[-1] = "", last  # raised outside user code, with a text that is not ours: show the place
    if len(entries) > MAX_FRAMES and sum(not owner for owner, _ in entries) > MAX_FRAMES:
        users = [number for number, (owner, _) in enumerate(entries) if not owner]
        middle = range(users[_HEAD], users[_HEAD - MAX_FRAMES])
        entries = [("more" if number in middle else owner, each) for number, (owner, each) in enumerate(entries)]
    frames: list[dict[str, Any]] = []
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(_frame(error.filename, error.lineno or 0, "(not compiled)", error.text or ""))
    left = limit - 2 * len(', {"folded": ""}') - 2 * TYPE_CHARACTERS - size_bytes(frames)
    counted, owner = 0, ""
    for number in range(len(entries) - 1, -1, -1):  # the innermost first
        whose, traceback = entries[number]
        if whose:
            if counted and whose != owner:
                left -= _fold(frames, counted, owner)
                counted = 0
            counted, owner = counted + 1, whose
            continue
        if counted:
            left -= _fold(frames, counted, owner)
            counted = 0
        made = _frame_of(traceback)
        if left < size_bytes(made) + len(", "):
            counted, owner = number + 1, "more"
            break
        left -= size_bytes(made) + len(", ")
        frames.append(made)
    if counted:
        _fold(frames, counted, owner)
    return frames[::-1]


def _fold(frames: list[dict[str, Any]], count: int, owner: str) -> int:
    of = "more frames" if owner == "more" else f"frame{'' if count == 1 else 's'} of {owner}"
    made = {"folded": f"{count:,} {of}"}
    frames.append(made)
    return size_bytes(made) + len(", ")


def _owner(traceback: TracebackType) -> str:
    """The name under which a frame is folded; empty for user code."""
    frame = traceback.tb_frame
    module = str(frame.f_globals.get("__name__", ""))
    if module == _USERS or module.startswith(f"{_USERS}."):
        return ""
    if frame.f_code.co_filename.startswith("<frozen importlib") or module.partition(".")[0] == _IMPORT:
        return "import"
    return _FOLDED.get(module.partition(".")[0], "")


def _frame_of(traceback: TracebackType) -> dict[str, Any]:
    code, line = traceback.tb_frame.f_code, traceback.tb_lineno or 0
    try:  # with the module's globals, sources inside a zip file are found too
        source = linecache.getline(code.co_filename, line, traceback.tb_frame.f_globals)
    except Exception:  # the loader of the user's module may raise; the frame then has no source line
        source = ""
    return _frame(code.co_filename, line, code.co_qualname, source)


def _frame(file: str, line: int, function: str, source: str) -> dict[str, Any]:
    return {
        "file": safe_text(file, FILE_CHARACTERS),
        "line": max(0, min(line, MAX_LINE - 1)),
        "function": safe_text(function, TYPE_CHARACTERS),
        "source": safe_text(source.strip(), SOURCE_CHARACTERS),
    }
