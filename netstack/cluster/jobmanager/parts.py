"""What the parts of one JobManager share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...network.waiting.threads import InThread
from ...schedule.descriptors.blob_store import MemoryBlobStore
from .config import JobManagerConfig
from .datasets import Datasets
from .resource_manager.slot_manager import SlotManager
from .resource_manager.taskmanagers import TaskManagers
from .store import JobStore


@final
@dataclass(frozen=True, slots=True)
class JobManagerParts:
    """The parts that the others use.

    Attributes:
        blobs: offloaded data of the running jobs.
        in_thread: runs blocking calls.
    """

    config: JobManagerConfig
    store: JobStore
    slots: SlotManager
    taskmanagers: TaskManagers
    blobs: MemoryBlobStore
    datasets: Datasets
    in_thread: InThread
