"""The Python stacks of a job's tasks, collected from its TaskManagers.

Takes: requests of clients, answers of TaskManagers. Gives: one document, flame graphs, and texts about blocked slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, final

import trio

from ....base.text.safe_text import safe_text
from ...control.messages import AskStacks
from ...control.reports import Stacks
from ..log import checked_fields
from ..resource_manager.taskmanagers import TaskManagers
from .job_master import JobMaster

SAMPLED_S: Final = 2.0
"""Sampling time of a flame graph."""

NODES_AT_MOST: Final = 4000
NAME_CHARACTERS: Final = 160
ROWS_AT_MOST: Final = 8192
FRAMES_AT_MOST: Final = 100

WAITING: Final = "(no task code: the event loop waits or serves the network)"

ANSWER_S: Final = 5.0
"""Limit for the answer of a TaskManager; a later one is listed without stacks."""


@final
class StackQueries:
    """Pending requests for stacks."""

    def __init__(self, taskmanagers: TaskManagers) -> None:
        self._taskmanagers = taskmanagers
        self._tokens = itertools.count(1)
        self._waiting: dict[int, tuple[set[str], trio.MemorySendChannel[tuple[str, dict[str, Any]]]]] = {}
        self._sampling = trio.Lock()
        self._sampled: tuple[str, float, list[dict[str, Any]]] = "", 0.0, []

    async def flame_graph(self, master: JobMaster, vertex: int) -> dict[str, Any]:
        """Samples the code of a vertex.

        One job is sampled at a time; concurrent requests for the same job share the samples.

        Returns:
            The root of a tree: `name`, `value` (samples), `children` (called functions, most frequent first).

        Cancellation: drops the samples in progress.
        """
        asked_s = trio.current_time()
        async with self._sampling:
            job_id, at_s, rows = self._sampled
            if job_id != master.job_id or at_s < asked_s:
                rows = (await self.ask(master, SAMPLED_S))["tasks"]
                self._sampled = master.job_id, trio.current_time(), rows
            if not self._sampling.statistics().tasks_waiting:
                self._sampled = "", 0.0, []
        topology = master.scheduler.topology
        places = {
            (slot.location.taskmanager, slot.index)
            for subtask in topology.subtasks_of(vertex)
            if (slot := master.tasks.places.get(subtask)) is not None
        }
        return flame_tree(rows, topology.job.vertices[vertex].name, places)

    async def ask(self, master: JobMaster, sampled_s: float = 0.0) -> dict[str, Any]:
        """Returns the current or sampled stacks of a job's tasks.

        Args:
            master: master of the job.
            sampled_s: sampling time; 0: one snapshot.

        Returns:
            `tasks`: for each stack `taskmanager`, `slot`, `task`, `subtask`, `is_blocked` (of samples `count`),
            `frames` (innermost first: `file`, `line`, `function`); `silent`: names of TaskManagers that did not answer
            within `ANSWER_S`.

        Cancellation: drops later answers.
        """
        names = {slot.location.taskmanager for slot in master.tasks.places.values()}
        names &= {each.location.name for each in self._taskmanagers.all()}
        token = next(self._tokens)
        send, receive = trio.open_memory_channel[tuple[str, dict[str, Any]]](len(names) + 1)
        self._waiting[token] = {*names}, send
        entries: list[dict[str, Any]] = []
        silent = set(names)
        try:
            for name in names:
                self._taskmanagers.send(name, AskStacks(token, master.job_id, sampled_s))
            with trio.move_on_after(sampled_s + ANSWER_S):
                while silent:
                    name, document = await receive.receive()
                    silent.discard(name)
                    entries += [{**row, "taskmanager": name} for row in _checked_rows(document)]
        finally:
            del self._waiting[token]
        return {"tasks": entries, "silent": sorted(silent)}

    def on_answer(self, name: str, message: Stacks) -> None:
        """Handles the answer of a TaskManager."""
        asked, answers = self._waiting.get(message.token, (set(), None))
        if answers is not None and name in asked:  # once, and nobody answers for another one
            asked.remove(name)
            answers.send_nowait((name, message.document))


def flame_tree(rows: list[dict[str, Any]], task: str, places: set[tuple[str, int]]) -> dict[str, Any]:
    """Converts samples to a call tree.

    Args:
        rows: untrusted samples of a job from TaskManagers.
        task: name of the vertex. Samples of other vertices are ignored; samples without operator code count, since any
            task in the slot may have caused them.
        places: TaskManagers and slots that have a subtask of the vertex.

    Returns:
        A tree as from `StackQueries.flame_graph` with at most `NODES_AT_MOST` nodes; deeper calls are cut.
    """
    root: dict[str, Any] = {"name": "root", "value": 0, "children": {}}
    left = NODES_AT_MOST
    for row in rows:
        count, slot = row.get("count"), row.get("slot")
        if type(count) is not int or count < 1 or row.get("task") not in ("", task):
            continue
        if slot is not None and (type(slot) is not int or (row["taskmanager"], slot) not in places):
            continue
        node = root
        node["value"] += count
        for name in [_frame_name(frame) for frame in reversed(row["frames"])] or [WAITING]:
            children = node["children"]
            if name not in children:
                if not left:
                    break
                left -= 1
                children[name] = {"name": name, "value": 0, "children": {}}
            node = children[name]
            node["value"] += count
    return _listed(root)


def _frame_name(frame: dict[str, Any]) -> str:
    file = "/".join(str(frame.get("file", "")).split("/")[-2:])
    return safe_text(f"{frame.get('function')} ({file}:{frame.get('line')})", NAME_CHARACTERS)


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    children = sorted(node["children"].values(), key=lambda child: -child["value"])
    return {"name": node["name"], "value": node["value"], "children": [_listed(child) for child in children]}


_ROW: Final = {"task": str, "subtask": int, "attempt": int, "slot": int, "is_blocked": bool, "count": int}
_FRAME: Final = {"file": str, "line": int, "function": str, "source": str}


def _present(document: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    """Returns the fields of `checked_fields` that the document has."""
    return {name: value for name, value in checked_fields(document, kinds).items() if name in document}


def _checked_rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the stacks in the answer of a TaskManager; leaves out what is none."""
    rows = document.get("tasks")
    for row in rows[:ROWS_AT_MOST] if type(rows) is list else ():
        frames = row.get("frames") if type(row) is dict else None
        if type(frames) is list and all(type(frame) is dict for frame in frames):
            entry = _present(row, _ROW)
            yield {**entry, "frames": [_present(frame, _FRAME) for frame in frames[:FRAMES_AT_MOST]]}
