"""What a batch job asks for where some of its tasks are slow, as data; `schedule.speculation` acts on it.

Takes: values. Gives: frozen settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...errors import ConfigError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """When a task is slow, and what is done about it.

    Names and defaults are those of Flink's `execution.batch.speculative.*` and `slow-task-detector.*`.

    Attributes:
        max_concurrent_executions: attempts of one subtask at a time, the first one included.
        block_slow_node_duration_s: a host that had a slow task gets no new ones for so long.
        check_interval_s: how often slow tasks are looked for.
        baseline_lower_bound_s: nothing that has run for less is slow.
        baseline_ratio: slow tasks of a vertex are looked for when this part of its subtasks has finished.
        baseline_multiplier: what takes so many times the median of those is slow; bytes count where they are known.

    Raises:
        ConfigError: numbers that mean nothing.
    """

    max_concurrent_executions: int = 2
    block_slow_node_duration_s: float = 60.0
    check_interval_s: float = 1.0
    baseline_lower_bound_s: float = 60.0
    baseline_ratio: float = 0.75
    baseline_multiplier: float = 1.5

    def __post_init__(self) -> None:
        """Refuses numbers that mean nothing."""
        if self.max_concurrent_executions < 2:
            raise ConfigError(
                f"max_concurrent_executions={self.max_concurrent_executions}; give at least 2, or no speculation"
            )
        if not 0 <= self.baseline_ratio < 1:
            raise ConfigError(f"baseline_ratio={self.baseline_ratio}; give 0 up to, and without, 1")
        if not self.check_interval_s > 0 or not self.baseline_multiplier > 0:
            raise ConfigError(
                f"check_interval_s={self.check_interval_s}, baseline_multiplier={self.baseline_multiplier}; give more"
                " than 0"
            )
        for name in ("block_slow_node_duration_s", "baseline_lower_bound_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)}; give at least 0")
