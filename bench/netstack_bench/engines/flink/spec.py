"""The settings of a run on a real Flink: those of a run of ours that the installed version has too.

Takes: a `RunSpec`. Gives: a `FlinkSpec`, and the line that asks the JVM for this cell.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

from netstack.base.errors import ConfigError
from netstack.base.units import format_duration, format_size

from ...spec import RunSpec, constants_of
from ...store import replace_file
from .jar import profile

_LEAST_SEGMENT_BYTES = 4096


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkSpec(RunSpec):
    """Settings of one run on a real Flink: one source, and a sink for each channel."""

    ENGINE_KIND: ClassVar[str] = "flink"
    START_S: ClassVar[float] = 0.6

    @classmethod
    def of(cls, spec: RunSpec) -> FlinkSpec:
        """The same work on Flink, with its constants, whatever ours has in their place. In 1.x buffers can be set.

        Raises:
            ConfigError: Flink, or this peer of it, has no such setting; the text names the flag.
        """
        if isinstance(spec, cls):
            return spec
        default, acts_as = RunSpec(), profile()
        buffers = (
            ("--exclusive-buffers", spec.exclusive_buffers, default.exclusive_buffers),
            ("--floating-buffers", spec.floating_buffers, default.floating_buffers),
        )
        for flag, value, only in (
            ("--transport", spec.transport, "tcp"),
            ("--emit", spec.emit, "record"),
            ("--read", spec.read, "record"),
            ("--write", spec.write, "task"),
            ("--connections", spec.connections, 1),
            ("--credit", spec.credit, True),
            ("--checksum", spec.checksum, False),
            *(buffers if acts_as == "flink" else ()),
        ):
            if value != only:
                raise ConfigError(f"--peer flink has no {flag} {value}; leave {flag} or --peer flink out")
        for flag in spec.line_flags:
            raise ConfigError(f"--peer flink has no {flag}; leave {flag} or --peer flink out")
        for flag, duration_s in (
            ("--buffer-timeout", spec.buffer_timeout_s),
            ("--debloat", spec.debloat_s),
            ("--checkpoint-interval", spec.checkpoint_interval_s),
        ):
            if duration_s is not None and abs(duration_s * 1000 - round(duration_s * 1000)) > 1e-6:
                raise ConfigError(f"{flag} {format_duration(duration_s)} with --peer flink: give whole milliseconds")
        segment = spec.segment_size_bytes
        if segment < _LEAST_SEGMENT_BYTES or segment & (segment - 1):
            raise ConfigError(
                f"--segment-size {format_size(segment)} with --peer flink: give a power of two from 4KiB on"
            )
        # A sink of Flink is a subtask with an input gate of its own.
        gates = "each" if spec.channels > 1 and spec.checkpoints == "none" else spec.gates
        fixed = {"acts_as": acts_as, "profile": False, "verify": "all", "gates": gates}
        settings = {**spec.as_dict(), **constants_of(acts_as), **fixed}
        return cls(**settings)

    @property
    def run_id(self) -> str:
        """The id of netstack's run that behaves as Flink, and a suffix."""
        return f"{RunSpec(**self.as_dict()).run_id}-flink"

    def line(self) -> dict[str, Any]:
        """What the JVM is asked for."""
        buffers = {
            "exclusive_buffers": self.exclusive_buffers,
            "floating_buffers": self.floating_buffers,
            "overdraft_buffers": self.overdraft_buffers,
        }
        return {
            **({} if self.acts_as == "flink" else buffers),
            "record_bytes": self.record_bytes,
            "channels": self.channels,
            "timeout_ms": -1 if self.buffer_timeout_s is None else round(self.buffer_timeout_s * 1000),
            "rate": self.rate_per_s or 0,
            "consume_rate": self.consume_rate_per_s or 0,
            "seconds": self.seconds or 0,
            "records": self.records or 0,
            "warmup_seconds": self.effective_warmup_s,
            "segment_bytes": self.segment_size_bytes,
            "debloat_ms": 0 if self.debloat_s is None else round(self.debloat_s * 1000),
            "memory_bytes": self.memory_bytes or 0,
            "checkpoint_ms": 0 if self.checkpoints == "none" else round(self.checkpoint_interval_s * 1000),
            "unaligned": self.checkpoints == "unaligned",
        }

    @property
    def effective_warmup_s(self) -> float:
        """Left out at the start: a third of the run at most."""
        return self.warmup_s if self.seconds is None else min(self.warmup_s, self.seconds / 3)


_CELLS: Final = (
    # A record waits for the flusher, or not at all.
    RunSpec(rate_per_s=7, seconds=9, buffer_timeout_s=0.1),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.1),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.01),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.001),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.0),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.1, channels=100),
    # Full buffers leave before the timeout.
    RunSpec(record_bytes=1024, rate_per_s=10_000, seconds=3, buffer_timeout_s=0.1),
    RunSpec(record_bytes=1024, rate_per_s=10_000, seconds=3, buffer_timeout_s=None),
    # Back-pressure: data in flight, and the time that each side waits.
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=4, warmup_s=1.3),
    RunSpec(record_bytes=8, consume_rate_per_s=100_000, seconds=4, warmup_s=1.3),
    RunSpec(record_bytes=1024, consume_rate_per_s=200, seconds=12, warmup_s=4, debloat_s=1.0),
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=8, warmup_s=2, debloat_s=1.0),
    # Barriers that wait behind what is queued, and barriers that overtake it.
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=6, warmup_s=1.3, checkpoints="aligned"),
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=6, warmup_s=1.3, checkpoints="unaligned"),
    # Several sinks, each slower than its share.
    RunSpec(record_bytes=1024, channels=16, consume_rate_per_s=16_000, seconds=6, warmup_s=2),
    # As fast as it goes: what shorter timeouts cost.
    RunSpec(seconds=2, buffer_timeout_s=0.1),
    RunSpec(seconds=2, buffer_timeout_s=0.001),
)

_CELLS_OF_1: Final = tuple(
    RunSpec(
        record_bytes=1024,
        consume_rate_per_s=2000,
        seconds=4,
        warmup_s=1.3,
        exclusive_buffers=exclusive,
        floating_buffers=floating,
    )
    for exclusive, floating in ((1, 1), (8, 32))
)

_SKEWED_ROWS: Final = 1000
_SKEWED_KEYS: Final = 64


def cells(folder: Path) -> tuple[RunSpec, ...]:
    """The eighteen cells of Flink 2.3, or twenty of 1.x, in `netstack-bench emulation`.

    A pass over them takes about five minutes: each on Flink, as Flink, and as netstack is.

    Args:
        folder: holds, or receives, the rows of the cell with skewed keys.
    """
    rows, text = folder / "skewed-rows.csv", _skewed()
    if not rows.exists() or rows.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(rows, lambda aside: aside.write_text(text))
    skewed = RunSpec(input_path=str(rows), key_column="key", channels=4, consume_rate_per_s=8000, seconds=6, warmup_s=2)
    return (*_CELLS, skewed, *(_CELLS_OF_1 if profile() == "flink-1.x" else ()))


def _skewed() -> str:
    """Rows of 1 KiB; key k is as likely as (k + 1) ** -2, in an order without a period."""
    weights = [(key + 1) ** -2 for key in range(_SKEWED_KEYS)]
    keys = random.Random(0).choices(range(_SKEWED_KEYS), weights, k=_SKEWED_ROWS)
    return "key,filler\n" + "".join(f"{key:02},{'x' * 1021}\n" for key in keys)
