"""Settings of a job: adaptive parallelism, restarts after failures, speculative execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from ...base.errors import ConfigError
from ...base.setting_types import check_types


@final
@dataclass(frozen=True, slots=True)
class CutSettings:
    """How the inputs of an adaptive vertex are cut.

    Attributes:
        skewed_factor: a subpartition is skewed above this many times the median, and above the threshold.
        skewed_threshold_bytes: the threshold.
        max_channels_per_task: the most (partition, subpartition) pairs that one subtask reads of one input.
    """

    skewed_factor: float = 4.0
    skewed_threshold_bytes: int = 256 << 20
    max_channels_per_task: int = 32_768

    def __post_init__(self) -> None:
        check_types(self)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """How the parallelism of vertices is decided at run time.

    Attributes:
        min_parallelism: fewest subtasks of a vertex.
        max_parallelism: most subtasks of a vertex, unless its own maximum is lower. Producers write this many
            subpartitions for a vertex that is decided later.
        data_volume_per_task_bytes: wanted bytes per subtask.
        default_source_parallelism: of a vertex without inputs; None: `max_parallelism`. A source of known size gets
            fewer subtasks if these suffice.
        is_rounded: decides like Flink 1.15: powers of two, with broadcast inputs counted, and even numbers of
            subpartitions instead of bytes.
        cut: how inputs are cut.

    Raises:
        ConfigError: bounds that no parallelism fits.
    """

    min_parallelism: int = 1
    max_parallelism: int = 128
    data_volume_per_task_bytes: int = 16 << 20
    default_source_parallelism: int | None = None
    is_rounded: bool = False
    cut: CutSettings = field(default_factory=CutSettings)

    def __post_init__(self) -> None:
        check_types(self)
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
        """The largest parallelism that can be decided: the number of subpartitions that producers write."""
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
    """The restart strategy of a job.

    Attributes:
        kind: `none`, `fixed_delay`, `exponential` or `failure_rate`.
        delay_s: before each restart; for `exponential` the first delay.
        attempts: the most restarts, for `exponential` without a quiet time between them; None: no limit. Not for
            `failure_rate`.
        max_delay_s: for `exponential` the longest delay.
        multiplier: for `exponential`, from one delay to the next.
        quiet_s: for `exponential`: after so long without a failure the next delay is the first again.
        max_failures: for `failure_rate`: failures tolerated in any interval.
        interval_s: for `failure_rate`: the length of the interval.

    Raises:
        ConfigError: an unknown kind.
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
        check_types(self)
        if self.kind not in KINDS:
            raise ConfigError(f"restart kind {self.kind!r}; give {', '.join(KINDS)}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """Speculative execution: when a task is slow, and what follows.

    Names and defaults are those of Flink's `execution.batch.speculative.*` and `slow-task-detector.*`.

    Attributes:
        max_concurrent_executions: the most concurrent attempts of one subtask, the first one included.
        block_slow_node_duration_s: how long a host with a slow task gets no new tasks.
        check_interval_s: between two checks for slow tasks.
        baseline_lower_bound_s: no task that has run for less is slow.
        baseline_ratio: a vertex is checked when this part of its subtasks has finished.
        baseline_multiplier: a task is slow when it takes this many times their median; per byte, where bytes are known.

    Raises:
        ConfigError: numbers out of range.
    """

    max_concurrent_executions: int = 2
    block_slow_node_duration_s: float = 60.0
    check_interval_s: float = 1.0
    baseline_lower_bound_s: float = 60.0
    baseline_ratio: float = 0.75
    baseline_multiplier: float = 1.5

    def __post_init__(self) -> None:
        check_types(self)
        if self.max_concurrent_executions < 2:
            raise ConfigError(
                f"max_concurrent_executions={self.max_concurrent_executions}; give at least 2, or remove speculation"
            )
        if not 0 <= self.baseline_ratio < 1:
            raise ConfigError(f"baseline_ratio={self.baseline_ratio}; give at least 0 and less than 1")
        if not self.check_interval_s > 0 or not self.baseline_multiplier > 0:
            raise ConfigError(
                f"check_interval_s={self.check_interval_s}, baseline_multiplier={self.baseline_multiplier}; give more"
                " than 0"
            )
        for name in ("block_slow_node_duration_s", "baseline_lower_bound_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)}; give at least 0")
