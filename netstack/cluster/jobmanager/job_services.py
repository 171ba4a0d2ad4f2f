"""What surrounds the master of a job: the JobManager's services and parts, and the job's coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, final

from ...network.waiting.threads import InThread
from ...schedule.descriptors.blob_store import MemoryBlobStore
from ...schedule.instructions import EndJob
from ...schedule.slots.slots import PhysicalSlot
from ..control.codec import Message, Plain
from .config import JobManagerConfig
from .datasets import DatasetRecord, Datasets
from .resource_manager.slot_manager import SlotManager
from .resource_manager.taskmanagers import TaskManagers
from .store import JobStore


class JobCoordinator(Protocol):
    """User code of a job that runs in the JobManager's process."""

    def event(self, vertex: str, subtask: int, event: Plain) -> None:
        """Handles an event that a task sent (`InvokableTask.send`)."""

    def refused(self, taskmanager: str, reason: str) -> None:
        """Handles a TaskManager that rejected or stopped the job; the JobManager offers the job again later."""

    def ended(self, end: EndJob) -> None:
        """Handles the end of the job; its results are known, TaskManagers are still releasing resources."""


class JobServices(Protocol):
    """The JobManager's interface for its jobs."""

    def send(self, taskmanager: str, message: Message) -> None:
        """Sends a message to a TaskManager; does nothing if it is lost."""

    async def wait_room(self, taskmanager: str) -> None:
        """Waits until the link of a TaskManager has room."""

    def require(self, job_id: str, total: int) -> None:
        """Sets the number of slots that a job is to be offered in all (`RequireSlots`)."""

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """Returns slots that a job no longer needs."""

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """Sets the TaskManagers of which the job accepts no more slots; replaces the earlier set."""

    def heard_s(self, taskmanager: str) -> float | None:
        """Returns when a TaskManager was last heard; None if it is lost."""

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Pings TaskManagers."""

    def describe_slots(self) -> str:
        """Describes the existing slots in words."""

    async def put_committing(self, job_id: str) -> None:
        """Stores on disk that the job begins to commit. Raises `NetstackError` if that fails."""

    async def keep_dataset(self, dataset: DatasetRecord) -> None:
        """Keeps a dataset of a finished job. Raises `NetstackError` if it cannot be kept and is dropped."""


@final
@dataclass(frozen=True, slots=True)
class JobManagerParts:
    """The parts that the others use.

    Attributes:
        blobs: offloaded data of the running jobs.
    """

    config: JobManagerConfig
    store: JobStore
    slots: SlotManager
    taskmanagers: TaskManagers
    blobs: MemoryBlobStore
    datasets: Datasets
    in_thread: InThread
