"""Python stacks of tasks, and the operators that their frames belong to.

Takes: the text that `faulthandler` writes, coroutines of waiting tasks, code locations of operators. Gives: frames.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sysconfig
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, final

from ...base.own_packages import package_folders
from ..control.codec import Attempt, Plain

FRAMES_AT_MOST: Final = 100
SOURCE_CHARACTERS: Final = 200
_LINE: Final = re.compile(r'^\s*File "(.*)", line (\d+|\?\?\?) in (.*)$')
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
"""How `faulthandler` writes characters outside ASCII."""

_HEAD: Final = "(most recent call first)"
_TASKS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks.py")
_EXAMPLES: Final = str(package_folders()[0] / "examples" / "_").removesuffix("_")
_NOT_USERS: Final = (
    *(os.path.join(os.path.abspath(sysconfig.get_path(name)), "") for name in ("stdlib", "purelib", "platlib")),
    *(f"{folder}{os.sep}" for folder in package_folders()),
    "<frozen",
)


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack.

    Attributes:
        line: line number; 0 if unknown.
    """

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether the frame is user code: not of netstack, Python or an installed package."""
        return self.file.startswith(_EXAMPLES) or not self.file.startswith(_NOT_USERS)

    def document(self) -> Plain:
        """Returns the frame as plain data."""
        source = linecache.getline(self.file, self.line).strip()[:SOURCE_CHARACTERS]
        return {"file": self.file, "line": self.line, "function": self.function, "source": source}


def is_tasks(frames: list[Frame]) -> bool:
    """Whether a stack belongs to a task, not to the event loop itself."""
    return any(frame.file == _TASKS and frame.function == "live" for frame in frames)


def task_frames(frames: list[Frame]) -> list[Frame]:
    """Returns the part of a stack that belongs to a task, without the frames that started it."""
    for number, frame in enumerate(frames):
        if frame.file == _TASKS and frame.function == "live":
            return frames[:number]
    return frames


def parse_stack(text: str) -> list[Frame]:
    """Returns the last stack that `faulthandler` has written, innermost frame first."""
    frames: list[Frame] = []
    for part in text.split(_HEAD):  # since Python 3.14 a C stack follows after a crash
        matches = [match for line in part.splitlines() if (match := _LINE.match(line)) is not None]
        if matches:
            frames = [
                Frame(_unescaped(each[1]), int(each[2]) if each[2].isdigit() else 0, _unescaped(each[3]))
                for each in matches
            ]
    return frames[:FRAMES_AT_MOST]


def _unescaped(text: str) -> str:
    """Undoes the escapes of `faulthandler`, but for halves of characters, which no file can hold in UTF-8."""

    def character(match: re.Match[str]) -> str:
        code = int(match[match.lastindex or 0], 16)
        return match[0] if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)

    return _ESCAPED.sub(character, text)


def coroutine_stack(coroutine: Coroutine[Any, Any, Any]) -> list[Frame]:
    """Returns the stack of a waiting coroutine, innermost frame first."""
    frames: list[Frame] = []
    awaited: Any = coroutine
    while awaited is not None and len(frames) < FRAMES_AT_MOST:
        frame = (
            getattr(awaited, "cr_frame", None)
            or getattr(awaited, "gi_frame", None)
            or getattr(awaited, "ag_frame", None)
        )
        if frame is not None:
            frames.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames[::-1]


def stack_row(attempt: Attempt, task: str, slot: int | None, frames: list[Frame], *, is_blocked: bool) -> Plain:
    """Returns the stack of a task as plain data."""
    return {
        "task": task,
        "subtask": attempt[1],
        "attempt": attempt[2],
        "slot": slot,
        "is_blocked": is_blocked,
        "frames": [frame.document() for frame in task_frames(frames)],
    }


@final
class CodeTable:
    """The code locations of the operators of all tasks in one process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Attempt], tuple[str, list[tuple[str, str, str, int, int]]]] = {}

    def add(self, line: str) -> bool:
        """Adds the code locations of an attempt from JSON; returns False if the line is something else."""
        try:
            document = json.loads(line)
            vertex, subtask, attempt = document["attempt"]
            rows = [
                (operator, file, function, int(first), int(last))
                for operator, file, function, first, last in document["rows"]
            ]
            self._rows[document["job_id"], (vertex, subtask, attempt)] = document["task"], rows
        except (ValueError, TypeError, KeyError):
            return False
        return True

    def forget(self, job_id: str) -> None:
        """Removes the tasks of an ended job."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != job_id}

    def located(self, frames: list[Frame]) -> Plain:
        """Finds the task and the operator of a stack, and its innermost line of user code.

        Returns:
            `task`, `subtask`, `operator` if operator code is on the stack; `file`, `line`, `function` of the innermost
            frame of user code, else of the innermost frame.
        """
        if not frames:
            return {}
        innermost = next((frame for frame in frames if frame.is_users), frames[0])
        where = innermost.document()
        for frame in frames:
            for (_, attempt), (task, rows) in self._rows.items():
                for operator, file, function, first, last in rows:
                    if frame.file == file and frame.function == function and first <= frame.line <= last:
                        return {**where, "task": task, "subtask": attempt[1], "operator": operator}
        return where
