"""Samples the stacks of tasks for flame graphs; costs nothing without a request.

Takes: slot processes, or the thread of this event loop. Gives: stacks with their frequencies.

A signal whose handler is in C samples a slot process, so sampling also works while its event loop is blocked or an
extension holds the interpreter. If all slots share this event loop, another thread samples the loop's stack.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from ...network.waiting.threads import in_thread
from ..control.codec import Plain
from .stacks import FRAMES_AT_MOST, Frame, is_tasks, task_frames

if TYPE_CHECKING:
    from .slot import Slot

PERIOD_S: Final = 0.05
"""Interval of samples of one process; each interrupts it for about 100 us."""

MOST_S: Final = 10.0
"""Maximum sampling time."""

STACKS_AT_MOST: Final = 300
"""Maximum number of different stacks in an answer; the rarest are left out."""

_Met: TypeAlias = "Counter[tuple[int | None, str, int, tuple[Frame, ...]]]"


async def sampled_slots(slots: Iterable[Slot], duration_s: float) -> list[Plain]:
    """Samples the stacks of slot processes.

    Returns:
        Rows as from `_rows`.

    Cancellation: leaves no state behind.
    """
    met: _Met = Counter()

    async def look(slot: Slot) -> None:
        while True:
            began_s = trio.current_time()
            frames, where = await slot.stack()
            if frames:
                met[slot.number, str(where.get("task", "")), int(where.get("subtask", -1)), _of_task(frames)] += 1
            await trio.sleep(max(0.0, PERIOD_S - (trio.current_time() - began_s)))

    with trio.move_on_after(min(duration_s, MOST_S)):
        async with trio.open_nursery() as nursery:
            for slot in slots:
                nursery.start_soon(look, slot)
    return _rows(met)


async def sampled_loop(thread: int, duration_s: float) -> list[Plain]:
    """Samples the stack of the thread of an event loop, which runs tasks of all jobs.

    Returns:
        Rows as from `_rows`, without the names of tasks.

    Cancellation: waits for the end of the sampling.
    """
    return _rows(await in_thread(partial(_looked_at, thread, min(duration_s, MOST_S))))


def _looked_at(thread: int, duration_s: float) -> _Met:
    met: _Met = Counter()
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        frames: list[Frame] = []
        frame = sys._current_frames().get(thread)
        while frame is not None and len(frames) < FRAMES_AT_MOST:
            frames.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
            frame = frame.f_back
        met[None, "", -1, _of_task(frames)] += 1
        time.sleep(PERIOD_S)
    return met


def _of_task(frames: list[Frame]) -> tuple[Frame, ...]:
    """Returns the part of a stack that belongs to a task, innermost frame first; empty if no task was running."""
    return tuple(task_frames(frames)) if is_tasks(frames) else ()


def _rows(met: _Met) -> list[Plain]:
    """Returns for each stack `slot`, `task`, `subtask` (empty and -1 without operator code), `count`, `frames`.

    `frames` is empty if no task was running, mostly because the event loop was waiting.
    """
    return [
        {
            "slot": slot,
            "task": task,
            "subtask": subtask,
            "count": count,
            "frames": [{"file": frame.file, "line": frame.line, "function": frame.function} for frame in frames],
        }
        for (slot, task, subtask, frames), count in met.most_common(STACKS_AT_MOST)
    ]
