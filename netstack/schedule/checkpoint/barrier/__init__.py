"""Barrier handling of one task: decides when a checkpoint begins, which channels block, and when it is aborted.

There are two handlers with the same interface. `BarrierHandler` is exactly-once: aligned, unaligned, or aligned with a
timeout. `BarrierTracker` is at-least-once: it only counts barriers. Channels are numbered across all gates of the task.
"""

from .handler import BarrierHandler
from .ports import (
    AbortReason,
    AlignmentStatistics,
    BarrierStatistics,
    CannotCheckpoint,
    CheckpointedInputs,
    CheckpointTask,
)
from .tracker import BarrierTracker

__all__ = [
    "AbortReason",
    "AlignmentStatistics",
    "BarrierHandler",
    "BarrierStatistics",
    "BarrierTracker",
    "CannotCheckpoint",
    "CheckpointTask",
    "CheckpointedInputs",
]
