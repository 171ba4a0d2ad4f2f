"""What a job asks for, as data: adaptive parallelism, restarts after failures, second attempts for slow tasks.

Takes: values. Gives: frozen settings; `adaptive.parallelism`, `failover.restart` and `speculation` act on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from ...errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class CutSettings:
    """How inputs are cut.

    Attributes:
        skewed_factor: a subpartition counts as skewed above this many times the median,
        skewed_threshold_bytes: and above this.
        max_channels_per_task: bound on what one subtask reads of one input, in subpartitions of partitions.
    """

    skewed_factor: float = 4.0
    skewed_threshold_bytes: int = 256 << 20
    max_channels_per_task: int = 32_768


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """How parallelism is decided.

    Attributes:
        min_parallelism: fewest subtasks of a vertex.
        max_parallelism: most subtasks of a vertex; the vertex's own maximum counts where it is lower. So many
            subpartitions are written for a vertex that is decided later.
        data_volume_per_task_bytes: what a subtask should read.
        default_source_parallelism: of a vertex without inputs; None is `max_parallelism`. A source that can tell how
            much it reads gets fewer where that is enough.
        is_rounded: decides as Flink 1.15 does: to powers of two, broadcast inputs counted, and subpartitions shared
            out evenly instead of bytes.
        cut: how inputs are cut.

    Raises:
        ConfigError: bounds that nothing fits.
    """

    min_parallelism: int = 1
    max_parallelism: int = 128
    data_volume_per_task_bytes: int = 16 << 20
    default_source_parallelism: int | None = None
    is_rounded: bool = False
    cut: CutSettings = field(default_factory=CutSettings)

    def __post_init__(self) -> None:
        """Refuses bounds that nothing fits."""
        least, most = self.bounds
        if not 1 <= least <= most:
            raise ConfigError(
                f"min_parallelism={self.min_parallelism}, max_parallelism={self.max_parallelism}: give"
                " 1 <= min <= max" + (", with a power of two between them" if self.is_rounded else "")
            )
        if self.data_volume_per_task_bytes < 1:
            raise ConfigError(f"data_volume_per_task_bytes={self.data_volume_per_task_bytes}; give at least 1")
        if self.default_source_parallelism is not None and self.default_source_parallelism < 1:
            raise ConfigError(f"default_source_parallelism={self.default_source_parallelism}; give at least 1, or None")

    @property
    def most(self) -> int:
        """No vertex whose parallelism is decided ever has more subtasks: so many subpartitions are written for it."""
        return max(self.bounds[1], self.default_source_parallelism or 1)

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most subtasks; powers of two when rounded."""
        if not self.is_rounded or min(self.min_parallelism, self.max_parallelism) < 1:
            return self.min_parallelism, self.max_parallelism
        return 1 << (self.min_parallelism - 1).bit_length(), 1 << self.max_parallelism.bit_length() - 1


KINDS: Final = ("none", "fixed_delay", "exponential", "failure_rate")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """How a job restarts.

    Attributes:
        kind: `none`, `fixed_delay`, `exponential` or `failure_rate`.
        delay_s: before each restart; of `exponential` the first delay.
        attempts: so many restarts, of `exponential` without a quiet time between them; None is without end. Not of
            `failure_rate`.
        max_delay_s: of `exponential` the longest.
        multiplier: of `exponential`, from one delay to the next.
        quiet_s: of `exponential`: no failure for so long, and the next delay is the first again.
        max_failures: of `failure_rate`: so many are tolerated in any interval.
        interval_s: of `failure_rate`: how long that is.

    Raises:
        ConfigError: another kind.
    """

    kind: str = "exponential"
    delay_s: float = 1.0
    attempts: int | None = None
    max_delay_s: float = 60.0
    multiplier: float = 1.5
    quiet_s: float = 3600.0
    max_failures: int = 1
    interval_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuses another kind; numbers are checked by the strategy."""
        if self.kind not in KINDS:
            raise ConfigError(f"restart kind {self.kind!r}; give {', '.join(KINDS)}")


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
