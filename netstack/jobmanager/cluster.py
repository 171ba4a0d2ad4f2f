"""What a job needs of the rest of the world: TaskManagers, slots, signs of life.

The `JobManager` is one, for all of its jobs; tests may be another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..control.messages import Message
from ..schedule.slots.slots import PhysicalSlot
from .datasets import DatasetRecord


class Cluster(Protocol):
    """What a job needs of the JobManager."""

    def send(self, taskmanager: str, message: Message) -> None:
        """Tells a TaskManager something; nothing happens when it is gone."""

    async def wait_room(self, taskmanager: str) -> None:
        """Waits until more may be sent to a TaskManager."""

    def require(self, job_id: str, missing: int) -> None:
        """The job lacks so many slots."""

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """The job does not need these."""

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """The job wants no more slots of these for now; replaces what was said before."""

    def heard_s(self, taskmanager: str) -> float | None:
        """When it was last heard; None when it is gone."""

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Has these say something soon."""

    def describe_slots(self) -> str:
        """What slots there are, in words."""

    async def put_committing(self, job_id: str) -> None:
        """Notes on disk that the job begins to commit. Raises `NetstackError`: it cannot be written."""

    async def keep_dataset(self, dataset: DatasetRecord) -> None:
        """The job leaves this behind. Raises `NetstackError`: it cannot be kept, and is dropped."""
