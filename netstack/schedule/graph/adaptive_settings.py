"""What a job asks for where its parallelism is decided while it runs, as data; `adaptive.parallelism` decides.

Takes: values. Gives: frozen settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

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
