"""Which attempts of one vertex are slow, told from how long those took that have finished.

Takes: seconds, and bytes where they are known. Gives: flags.

Rules, as in Flink's ExecutionTimeBasedSlowTaskDetector: nothing is slow before `baseline_ratio` of the subtasks have
finished, or before it has run for `baseline_lower_bound_s`. What is slow has taken `baseline_multiplier` times the
median of the finished ones; where it is known what each reads, seconds a byte are compared, so a subtask with
more to do may take longer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..graph.speculation_settings import SpeculationSettings
from ..structures.arrays import FlagArray

Seconds = npt.NDArray[np.float64]


def slow(
    running_s: Seconds,
    finished_s: Seconds,
    parallelism: int,
    settings: SpeculationSettings,
    running_bytes: Seconds | None = None,
    finished_bytes: Seconds | None = None,
) -> FlagArray:
    """For each attempt that runs, whether it is slow.

    Args:
        running_s: how long each has been running.
        finished_s: how long those took that have finished.
        parallelism: of the vertex.
        settings: what counts as slow.
        running_bytes: what each of the running ones reads; None where that is not known.
        finished_bytes: likewise.
    """
    is_long: FlagArray = running_s >= settings.baseline_lower_bound_s
    if finished_s.size < round(parallelism * settings.baseline_ratio):
        return np.zeros(running_s.size, np.bool_)
    if not finished_s.size:
        return is_long  # a ratio of 0: the lower bound is all there is
    if running_bytes is not None and finished_bytes is not None:
        running_s = running_s / np.maximum(running_bytes, 1)
        finished_s = finished_s / np.maximum(finished_bytes, 1)
    found: FlagArray = is_long & (running_s >= settings.baseline_multiplier * np.median(finished_s))
    return found
