"""The settings of `recover`.

Takes: settings from the command line. Gives: `RecoverSpec` to every process and the result.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, Literal

from netstack.buffer.requirements import LANDING_SEGMENTS
from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.config import NetworkConfig
from netstack.errors import ConfigError
from netstack.units import format_duration

from .records import Records

Mode = Literal["aligned", "unaligned", "timed"]

MODES: Final[tuple[Mode, ...]] = ("aligned", "unaligned", "timed")
MASTER: Final = "jobmanager"
"""The process of the JobManager."""

MOST_SINKS: Final = 4
"""With --change-parallelism."""

SEGMENT_BYTES: Final = 4096
_SPARE_SEGMENTS: Final = 64
_LONG_SEGMENTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverSpec:
    """Settings of one series of runs.

    Attributes:
        runs: jobs run from their beginning to their end.
        kills: planned for each; a job that ends sooner has fewer.
        seed: of the records, the kills and the changes of parallelism.
        records: of all sources together, in each run.
        mode: of the checkpoints.
        interval_s: from one checkpoint to the next.
        aligned_timeout_s: of `timed`: how old a checkpoint may become before it turns unaligned.
        change_parallelism: whether every restart has another number of sinks.
        sources: subtasks that make records; as many splits. There are as many TaskManagers as subtasks.
        sinks: subtasks that count them, at first.
        keys: how many there are.
        rate_per_s: records a second of all sinks together; less than the sources make, so that records wait everywhere.
    """

    runs: int = 20
    kills: int = 3
    seed: int = 0
    records: int = 30_000
    mode: Mode = "unaligned"
    interval_s: float = 0.1
    aligned_timeout_s: float = 0.02
    change_parallelism: bool = False
    sources: int = 2
    sinks: int = 2
    keys: int = 500
    rate_per_s: float = 20_000.0

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, naming the flag."""
        for flag, value, least in (
            ("--runs", self.runs, 1),
            ("--kills", self.kills, 0),
            ("--records", self.records, 1),
            ("--sources", self.sources, 1),
            ("--sinks", self.sinks, 1),
            ("--keys", self.keys, 1),
        ):
            if value < least:
                raise ConfigError(f"{flag} {value}: the least is {least}")
        if self.mode not in MODES:
            raise ConfigError(f"--mode {self.mode}: give one of {', '.join(MODES)}")
        if not self.rate_per_s > 0:
            raise ConfigError(f"--rate {self.rate_per_s:g}: give more than 0 records a second")
        for flag, seconds in (("--interval", self.interval_s), ("--aligned-timeout", self.aligned_timeout_s)):
            if not seconds > 0:
                raise ConfigError(f"{flag} {format_duration(seconds)}: give more than 0")

    @property
    def stream(self) -> Records:
        """All records of a run."""
        return Records(seed=self.seed, keys=self.keys, long_bytes=_LONG_SEGMENTS * SEGMENT_BYTES)

    def checkpoints(self) -> CheckpointSettings:
        """When checkpoints are taken, and how."""
        return CheckpointSettings(
            interval_s=self.interval_s,
            unaligned=self.mode != "aligned",
            aligned_timeout_s=self.aligned_timeout_s if self.mode == "timed" else 0.0,
        )

    def network(self) -> NetworkConfig:
        """The settings of every TaskManager: small buffers, so that there are many, and records that span them."""
        most = max(self.sinks, MOST_SINKS) + self.sources
        segments = 16 * most + LANDING_SEGMENTS * most + _SPARE_SEGMENTS
        return NetworkConfig(segment_size_bytes=SEGMENT_BYTES, memory_bytes=segments * SEGMENT_BYTES)

    def as_dict(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RecoverSpec:
        """The inverse of `as_dict`; unknown names are an error."""
        return cls(**values)
