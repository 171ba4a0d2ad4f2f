"""The settings of `checkpoints`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack.base.units import format_duration

from ..spec import MIN_RECORD_BYTES, Settings, naming_segment_size, network_of, refuse_below

Mode = Literal["aligned", "unaligned", "timed"]

MODES: Final[tuple[Mode, ...]] = ("aligned", "unaligned", "timed")

WARM_UP_S: Final = 0.5
"""Time until every buffer before the sinks is full."""

SINKS: Final = 2
"""Subtasks of the sink; more than one, so that records are distributed by key."""

MOST_PRESSURE: Final = 0.99
_LEAST_SECONDS: Final = 0.2
_LEAST_STRETCH_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsSpec(Settings):
    """Settings of one comparison; each field is a flag of the command.

    At a pressure the sinks take (1 - pressure) of their undisturbed rate.
    """

    seconds: float = 3.0
    interval_s: float = 0.1
    modes: tuple[Mode, ...] = MODES
    aligned_timeout_s: float = 0.05
    pressures: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9, 0.95)
    channels: int = 4
    record_bytes: int = 100
    keys: int = 10_000
    exclusive_buffers: int = 2
    floating_buffers: int = 8
    segment_size_bytes: int = 32 * 1024

    def __post_init__(self) -> None:
        if not self.seconds >= _LEAST_SECONDS:
            raise ConfigError(f"--seconds {self.seconds:g}: the minimum is {_LEAST_SECONDS:g}")
        if not self.interval_s > 0:
            raise ConfigError(f"--interval {format_duration(self.interval_s)}: give more than 0")
        if not self.aligned_timeout_s > 0:
            raise ConfigError(
                f"--aligned-timeout {format_duration(self.aligned_timeout_s)}: give more than 0, or use the mode"
                " unaligned"
            )
        unknown = [mode for mode in self.modes if mode not in MODES]
        if unknown or not self.modes or len(set(self.modes)) < len(self.modes):
            raise ConfigError(f"--modes {','.join(self.modes)}: give some of {','.join(MODES)}, each once")
        wrong = [pressure for pressure in self.pressures if not 0 <= pressure <= MOST_PRESSURE]
        if wrong or not self.pressures or list(self.pressures) != sorted(set(self.pressures)):
            text = ",".join(f"{pressure:g}" for pressure in self.pressures)
            raise ConfigError(f"--pressure {text}: give rising numbers from 0 (no limit) to {MOST_PRESSURE:g}")
        refuse_below(
            ("--channels", self.channels, 1),
            ("--record-bytes", self.record_bytes, MIN_RECORD_BYTES),
            ("--keys", self.keys, 1),
            ("--exclusive-buffers", self.exclusive_buffers, 0),
            ("--floating-buffers", self.floating_buffers, 1),
        )
        with naming_segment_size(self.segment_size_bytes):
            self.network()

    @property
    def stretch_s(self) -> float:
        """Length of each stretch with or without checkpoints: a few checkpoints, and `seconds` at most."""
        return min(self.seconds, max(_LEAST_STRETCH_S, 2.5 * self.interval_s))

    @property
    def stretches(self) -> int:
        """Number of stretches with checkpoints."""
        return round(self.seconds / self.stretch_s)

    def network(self) -> NetworkConfig:
        """The settings of either TaskManager, with memory for its gates and partitions."""
        each = self.exclusive_buffers + self.floating_buffers + 2
        return network_of(self, SINKS * self.channels * each + self.floating_buffers)
