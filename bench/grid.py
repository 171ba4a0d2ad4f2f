"""A sweep's grid of settings, spread out into the runs to make, in an order that is fair and can be repeated.

Takes: lists of buffer timeouts, record sizes and channel counts, and the settings common to all. Gives: `PlannedRun`s.

Rules: every point is one throughput run and one latency run. Each repeat is a whole pass over the grid in its own
shuffled order, so a machine that drifts (heat, neighbours) disturbs every point alike and not one end of a curve.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from netstack.errors import ConfigError

from .spec import RunSpec
from .units import format_duration, format_size

Kind = Literal["throughput", "latency"]

DEFAULT_TIMEOUTS_S: tuple[float | None, ...] = (None, 0.1, 0.01, 0.001, 0.0)
DEFAULT_RECORD_SIZES: tuple[int, ...] = (8, 1024)
DEFAULT_CHANNELS: tuple[int, ...] = (1, 16)
DEFAULT_SECONDS = 0.7  # 40 runs of it, the start of their processes included, take about a minute
DEFAULT_LATENCY_RATE_PER_S = 1000.0

START_S = 0.75  # two Python processes with numpy and trio come up, connect and go


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        spec: its settings.
        repeat: 0 for the first pass over the grid.
        order: its place in the sweep.
    """

    spec: RunSpec
    repeat: int
    order: int

    @property
    def kind(self) -> Kind:
        """What the run is for: with a rate it measures latency, without one throughput."""
        return run_kind(self.spec.rate_per_s)

    @property
    def key(self) -> tuple[str, int]:
        """What names the run in the store."""
        return self.spec.run_id, self.repeat

    @property
    def expected_s(self) -> float:
        """How long it will take, starting its processes included."""
        return START_S + (self.spec.seconds or DEFAULT_SECONDS)

    def __str__(self) -> str:
        timeout = format_duration(self.spec.buffer_timeout_s)
        return (
            f"{self.kind}, timeout {timeout}, {format_size(self.spec.record_bytes)} records, "
            f"{self.spec.channels} channel{'s' if self.spec.channels > 1 else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Everything that decides which runs a sweep makes.

    Attributes:
        timeouts_s: buffer timeouts; None is only full buffers.
        record_sizes: payload bytes of a record.
        channels: logical channels.
        seconds: of each throughput run.
        latency_seconds: of each latency run; None is as long as `seconds`.
        latency_rate_per_s: open-loop rate of the latency runs.
        repeats: passes over the grid.
        seed: decides the order.
        common: `RunSpec` settings that every run shares.
    """

    timeouts_s: tuple[float | None, ...] = DEFAULT_TIMEOUTS_S
    record_sizes: tuple[int, ...] = DEFAULT_RECORD_SIZES
    channels: tuple[int, ...] = DEFAULT_CHANNELS
    seconds: float = DEFAULT_SECONDS
    latency_seconds: float | None = None
    latency_rate_per_s: float = DEFAULT_LATENCY_RATE_PER_S
    repeats: int = 1
    seed: int = 0
    common: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses an empty grid."""
        for flag, values in (
            ("--timeouts", self.timeouts_s),
            ("--record-sizes", self.record_sizes),
            ("--channels", self.channels),
        ):
            if not values:
                raise ConfigError(f"{flag} is empty; give at least one value")
        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats}: the least is 1")

    def plan(self) -> list[PlannedRun]:
        """Every run, in the order to make them.

        Raises:
            ConfigError: a point that cannot work, before anything is measured.
        """
        specs = [
            spec
            for timeout_s in dict.fromkeys(self.timeouts_s)
            for record_bytes in dict.fromkeys(self.record_sizes)
            for channels in dict.fromkeys(self.channels)
            for spec in self._pair(timeout_s, record_bytes, channels)
        ]
        rng = random.Random(self.seed)
        runs: list[PlannedRun] = []
        for repeat in range(self.repeats):
            for spec in rng.sample(specs, len(specs)):
                runs.append(PlannedRun(spec, repeat, len(runs)))
        return runs

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, for the record of what was asked."""
        return {
            "timeouts_s": list(self.timeouts_s),
            "record_sizes": list(self.record_sizes),
            "channels": list(self.channels),
            "seconds": self.seconds,
            "latency_seconds": self.latency_seconds or self.seconds,
            "latency_rate_per_s": self.latency_rate_per_s,
            "repeats": self.repeats,
            "seed": self.seed,
            "common": dict(self.common),
        }

    def _pair(self, timeout_s: float | None, record_bytes: int, channels: int) -> tuple[RunSpec, RunSpec]:
        """The throughput run and the latency run of one point."""
        throughput = RunSpec(
            **{
                **self.common,
                "buffer_timeout_s": timeout_s,
                "record_bytes": record_bytes,
                "channels": channels,
                "seconds": self.seconds,
            }
        )
        latency = replace(throughput, rate_per_s=self.latency_rate_per_s, seconds=self.latency_seconds or self.seconds)
        return throughput, latency


def run_kind(rate_per_s: float | None) -> Kind:
    """A run at a fixed rate measures latency; one as fast as it goes measures throughput."""
    return "throughput" if rate_per_s is None else "latency"


def expected_seconds(runs: Iterable[PlannedRun]) -> float:
    """How long these runs will take together."""
    return sum(run.expected_s for run in runs)
