"""The Python stacks of a job's tasks: asked of every TaskManager that runs some, and put together.

Takes: the question of a client, the answers of TaskManagers. Gives: one document, and texts about blocked slots.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, final

import trio

from ..control.messages import AskStacks, SlotBlocked, Stacks
from ..shown import shown_text

if TYPE_CHECKING:
    from .job_master import JobMaster
    from .service import JobManager

ANSWER_S: Final = 5.0
"""A TaskManager that has not answered by then is listed without stacks."""


@final
class StackQueries:
    """The questions for stacks that are under way.

    Args:
        manager: reaches TaskManagers.
    """

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._tokens = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[tuple[str, dict[str, Any]]]] = {}

    async def ask(self, master: JobMaster) -> dict[str, Any]:
        """Where the code of a job's tasks is now.

        Args:
            master: of the job.

        Returns:
            `tasks`: for each stack `taskmanager`, `slot`, `task`, `subtask`, `is_blocked`, `frames` (innermost first:
            `file`, `line`, `function`); `silent`: names of TaskManagers that did not answer within `ANSWER_S`.

        Cancellation: answers that come later are dropped.
        """
        names = {slot.location.taskmanager for slot in master.tasks.places.values()}
        names &= {each.location.name for each in self._manager.taskmanagers.all()}
        token = next(self._tokens)
        send, receive = trio.open_memory_channel[tuple[str, dict[str, Any]]](len(names) + 1)
        self._waiting[token] = send
        found: list[dict[str, Any]] = []
        silent = set(names)
        try:
            for name in names:
                self._manager.send(name, AskStacks(token, master.job_id))
            with trio.move_on_after(ANSWER_S):
                while silent:
                    name, document = await receive.receive()
                    silent.discard(name)
                    rows = document.get("tasks")
                    for row in rows if type(rows) is list else ():
                        frames = row.get("frames") if type(row) is dict else None
                        if type(frames) is list and all(type(frame) is dict for frame in frames):
                            found.append({**row, "taskmanager": name})
        finally:
            del self._waiting[token]
        return {"tasks": found, "silent": sorted(silent)}

    def on_answer(self, name: str, message: Stacks) -> None:
        """A TaskManager has answered."""
        waiting = self._waiting.get(message.token)
        if waiting is not None:
            with contextlib.suppress(trio.WouldBlock):  # it answers more than once
                waiting.send_nowait((name, message.document))


def place_of(message: SlotBlocked) -> dict[str, Any]:
    """Where a blocked slot's code is: the fields of `SlotBlocked.where`, each of its type or None."""
    kinds = {"task": str, "subtask": int, "operator": str, "file": str, "line": int, "function": str}
    values = {name: message.where.get(name) for name in kinds}
    return {name: value if type(value) is kinds[name] else None for name, value in values.items()}


def blocked_text(message: SlotBlocked) -> str:
    """A blocked slot in one sentence."""
    where = place_of(message)
    place = f"{where['file']}:{where['line']} in {where['function']}" if where["file"] else "?"
    operator = f"operator {where['operator']!r}, " if where["operator"] else ""
    task = f"task {where['task']} ({where['subtask']}), " if where["task"] else ""
    return shown_text(f"its event loop has not turned for {message.blocked_s:.0f} s: {task}{operator}at {place}", 600)
