"""The status of a pending checkpoint, as users see it.

Takes: what the coordinator and the queues know. Gives: a sentence and plain data: its age, which subtasks have not
acknowledged it, and how much data is queued in front of their barriers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from ....base.units import format_count
from ....schedule.checkpoint.instructions import Subtask

SHOWN: Final = 5
"""Maximum number of subtasks named."""

SLOW_S: Final = 10.0
"""Age at which a checkpoint in progress is logged first; then at twice the age of the last time."""


@final
@dataclass(frozen=True, slots=True)
class CheckpointInProgress:
    """A checkpoint that has been triggered and has not ended.

    Attributes:
        age_s: time since the trigger.
        acknowledged: number of subtasks that have acknowledged it.
        subtasks: number of all subtasks.
        waits_for: the first subtasks on the way of the barriers that have not acknowledged it, at most `SHOWN`.
        left_out: number of other such subtasks.
        ahead_bytes: data in front of their barriers, as TaskManagers reported it last. What a producer has sent and
            the subtask has not yet received does not count.
    """

    checkpoint_id: int
    is_savepoint: bool
    age_s: float
    acknowledged: int
    subtasks: int
    waits_for: tuple[Subtask, ...]
    left_out: int
    ahead_bytes: int

    @property
    def text(self) -> str:
        """One sentence without a full stop."""
        what = "savepoint" if self.is_savepoint else "checkpoint"
        return (
            f"{what} {self.checkpoint_id} in progress for {self.age_s:.0f} s: {self.acknowledged} of {self.subtasks}"
            f" subtasks have acknowledged it, {self._wait}"
        )

    @property
    def _wait(self) -> str:
        if not self.waits_for:
            return "and it is being stored"
        names = ", ".join(f"{task}-{subtask}" for task, subtask in self.waits_for)
        more = f" and {self.left_out} more" if self.left_out else ""
        if not self.ahead_bytes:
            return f"waiting for {names}{more}"
        barriers = "its barrier" if len(self.waits_for) == 1 else "their barriers"
        return f"waiting for {names}{more}, with {format_count(self.ahead_bytes)}B queued in front of {barriers}"

    def document(self) -> dict[str, Any]:
        """Returns plain data; `waits_for` are texts as in `text`, which is included."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "is_savepoint": self.is_savepoint,
            "age_s": self.age_s,
            "acknowledged": self.acknowledged,
            "subtasks": self.subtasks,
            "waits_for": [f"{task}-{subtask}" for task, subtask in self.waits_for],
            "left_out": self.left_out,
            "ahead_bytes": self.ahead_bytes,
            "text": self.text,
        }
