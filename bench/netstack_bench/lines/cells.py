"""The cells of `netstack-bench lines`: four lines, two numbers of buffers, two sizes of records; load and open loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from netstack.base.units import format_duration, format_size
from netstack.testing.shaped_line import Shape

from ..spec import RunSpec

MBIT: Final = 1_000_000 // 8
LINES: Final = (
    Shape(0.002, 200 * MBIT),
    Shape(0.010, 200 * MBIT),
    Shape(0.040, 100 * MBIT),
    Shape(0.040, 10 * MBIT),
)
_BUFFERS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"exclusive_buffers": 1, "floating_buffers": 1, "spare_buffers": 0},
)
_LOADED: Final = ("payload_mb_per_s", "p50", "p99")
_PACED: Final = ("p50", "p99")


@final
@dataclass(frozen=True, slots=True)
class LineCell:
    """One piece of work on one line; `spec` is without the line."""

    shape: Shape
    spec: RunSpec

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the compared figures."""
        return _LOADED if self.spec.rate_per_s is None else _PACED

    @property
    def emulated(self) -> RunSpec:
        """The same on one machine."""
        values = self.spec.as_dict() | {
            "round_trip_s": self.shape.round_trip_s,
            "link_bytes_per_s": self.shape.rate_bytes_per_s,
            "queue_bytes": self.shape.queue_bytes,
            "loss": self.shape.loss,
            "jitter_s": self.shape.jitter_s,
        }
        return RunSpec.from_dict(values)

    def __str__(self) -> str:
        spec, rate = self.spec, self.shape.rate_bytes_per_s
        line = f"{format_duration(self.shape.round_trip_s)} {'' if rate is None else f'{8 * rate / 1e6:g} Mbit/s'}"
        work = "under load" if spec.rate_per_s is None else f"{spec.rate_per_s:,g}/s"
        buffers = f"{spec.exclusive_buffers} + {spec.floating_buffers}"
        return f"{line}, {buffers} buffers, {format_size(spec.record_bytes)}, {work}"


def cells(seconds: float) -> tuple[LineCell, ...]:
    """All 24: sixteen under load; eight in an open loop at 1,000 records a second, or a quarter of the line."""
    made = []
    for shape in LINES:
        for record_bytes in (128, 16 * 1024):
            for buffers in _BUFFERS:
                spec = RunSpec(
                    seconds=seconds, warmup_s=seconds / 3, emit="batch", record_bytes=record_bytes, **buffers
                )
                made.append(LineCell(shape, spec))
            assert shape.rate_bytes_per_s is not None
            rate = float(min(1000, shape.rate_bytes_per_s // (4 * record_bytes)))
            paced = RunSpec(
                seconds=seconds, warmup_s=seconds / 3, record_bytes=record_bytes, rate_per_s=rate, buffer_timeout_s=0.0
            )
            made.append(LineCell(shape, paced))
    return tuple(made)
