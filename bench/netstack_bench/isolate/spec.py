"""The settings of `isolate`, and the times of its three phases.

Time is counted in ticks of 10 ms from the common start, so that phases, windows and bins have exact edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError

from ..spec import MIN_RECORD_BYTES, Settings, TransportName, naming_segment_size, network_of, refuse_below

Phase = Literal["before", "during", "after"]
Subtask = Literal["B.3", "B.4"]

PHASES: Final[tuple[Phase, ...]] = ("before", "during", "after")
SUBTASKS: Final[tuple[Subtask, ...]] = ("B.3", "B.4")
SIBLING: Final[Subtask] = "B.3"
STALLED: Final[Subtask] = "B.4"
PRODUCERS: Final[dict[Subtask, str]] = {"B.3": "A.1", "B.4": "A.2"}

TICK_NS: Final = 10_000_000
TICK_S: Final = TICK_NS / 1e9
BIN_TICKS: Final = 10
"""Ticks in a bin of the series: 100 ms."""

BUFFER_TIMEOUT_S: Final = 0.01
"""Shorter than a bin, so that a slow rate does not arrive in bursts."""

_LEAST_PHASE_TICKS: Final = 10
_EDGE_TICKS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolateSpec(Settings):
    """Settings of one comparison; each field but `buffer_timeout_s` is a flag of the command."""

    seconds: float = 2.0
    rate_per_s: float | None = 5000.0
    record_bytes: int = 4096
    slow_rate_per_s: float = 0.0
    exclusive_buffers: int = 2
    floating_buffers: int = 8
    segment_size_bytes: int = 32 * 1024
    transport: TransportName = "tcp"
    buffer_timeout_s: float = BUFFER_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.phase_ticks < _LEAST_PHASE_TICKS:
            raise ConfigError(f"--seconds {self.seconds:g}: a phase takes at least {_LEAST_PHASE_TICKS * TICK_S:g} s")
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise ConfigError(f"--rate {self.rate_per_s:g}: give more than 0 records a second, or none")
        if self.slow_rate_per_s < 0:
            raise ConfigError(f"--slow-rate {self.slow_rate_per_s:g}: give 0 to stall, or more")
        if self.rate_per_s is not None and self.slow_rate_per_s >= self.rate_per_s:
            raise ConfigError(
                f"--slow-rate {self.slow_rate_per_s:g} is not below --rate {self.rate_per_s:g}: B.4 would not be slow"
            )
        refuse_below(
            ("--record-bytes", self.record_bytes, MIN_RECORD_BYTES),
            ("--exclusive-buffers", self.exclusive_buffers, 0),
            ("--floating-buffers", self.floating_buffers, 1),
        )
        with naming_segment_size(self.segment_size_bytes):
            self.network(credit=True)

    @property
    def phase_ticks(self) -> int:
        """Ticks in a phase."""
        return round(self.seconds / TICK_S)

    @property
    def ticks(self) -> int:
        """Ticks in all three phases."""
        return len(PHASES) * self.phase_ticks

    def window(self, phase: Phase) -> tuple[int, int]:
        """First tick of a phase that counts, and the tick after the last.

        Its first and last 0.2 s (or 10 % of it, if that is less) do not count: buffers fill and drain there.
        """
        start = PHASES.index(phase) * self.phase_ticks
        edge = min(_EDGE_TICKS, math.ceil(self.phase_ticks / 10))
        return start + edge, start + self.phase_ticks - edge

    def bins(self) -> list[tuple[int, int]]:
        """First tick of each bin, and the tick after its last; the last bin may be shorter."""
        return [(first, min(first + BIN_TICKS, self.ticks)) for first in range(0, self.ticks, BIN_TICKS)]

    def edges(self) -> list[int]:
        """Every tick at which a bin or a window begins or ends, in order."""
        return sorted({tick for stretch in (*self.bins(), *map(self.window, PHASES)) for tick in stretch})

    def network(self, *, credit: bool) -> NetworkConfig:
        """The settings of either TaskManager, with memory for both gates and partitions."""
        segments = 2 * (self.exclusive_buffers + self.floating_buffers + 2)
        without: dict[str, Any] = {"credit_based": False, "heartbeat_interval_s": None}
        return network_of(self, segments, **({} if credit else without))
