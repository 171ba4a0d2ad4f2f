"""Stacks that are sampled from outside of tasks, for flame graphs: nothing happens where nobody asks.

Takes: slots that are processes, or the thread of this event loop. Gives: stacks, and how often each was met.

A slot's process is asked by a signal whose handler is in C, so also while its event loop is blocked or an extension
holds the interpreter. Where all slots share this event loop a thread looks at the stack of the loop's.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from ..control.codec import Plain
from ..runtime.threads import in_thread
from .stacks import FRAMES_AT_MOST, Frame, is_tasks, task_frames

if TYPE_CHECKING:
    from .slot import Slot

PERIOD_S: Final = 0.05
"""Between two looks at one process: each interrupts it for some 100 us."""

MOST_S: Final = 10.0
"""Whoever asks for longer is given this."""

STACKS_AT_MOST: Final = 300
"""Different ones in an answer; the rarest are left out."""

_Met: TypeAlias = "Counter[tuple[int | None, str, int, tuple[Frame, ...]]]"


async def sampled_slots(slots: Iterable[Slot], duration_s: float) -> list[Plain]:
    """The stacks of processes of slots.

    Returns:
        See `_rows`.

    Cancellation: nothing stays behind.
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
    """The stacks of the thread of an event loop, whose tasks are of any job.

    Args:
        thread: its identifier.
        duration_s: how long.

    Returns:
        See `_rows`; which task a stack is of is not known.

    Cancellation: waits for the end of the samples.
    """
    return _rows(await in_thread(partial(_looked_at, thread, min(duration_s, MOST_S))))


def _looked_at(thread: int, duration_s: float) -> _Met:
    met: _Met = Counter()
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        frames: list[Frame] = []
        frame_found = sys._current_frames().get(thread)
        while frame_found is not None and len(frames) < FRAMES_AT_MOST:
            frames.append(Frame(frame_found.f_code.co_filename, frame_found.f_lineno or 0, frame_found.f_code.co_name))
            frame_found = frame_found.f_back
        met[None, "", -1, _of_task(frames)] += 1
        time.sleep(PERIOD_S)
    return met


def _of_task(frames: list[Frame]) -> tuple[Frame, ...]:
    """What of a stack is a task's, innermost frame first; nothing where none was running."""
    return tuple(task_frames(frames)) if is_tasks(frames) else ()


def _rows(met: _Met) -> list[Plain]:
    """For each stack `slot`, `task`, `subtask` (empty and -1 where no operator's code is on it), `count`, `frames`.

    `frames` is empty for what the event loop, and no task, was doing: waiting, above all.
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
