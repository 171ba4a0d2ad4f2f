"""Checkpoint barriers of one task: when a checkpoint begins, which channels wait for it, and when it is given up.

Two handlers with one outside: `BarrierHandler` cuts exactly (aligned, unaligned, or aligned until a timeout),
`BarrierTracker` counts only, at least once. Both see every input of the task: channels are numbered through all gates.
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
