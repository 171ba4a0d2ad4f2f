"""The rows of README's table: which measurements each is made of, and what is aimed at.

Takes: nothing. Gives: `ROWS`, and the measurements they need, each once.

A figure is a rate divided by another one's: a peer's, or that of the same build under other settings. Of a latency it
is that of netstack divided by the peer's, so less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from netstack.config import KIB
from netstack.units import format_duration, format_latency, three_digits

from ..spec import RunSpec

BUILDS: Final = ("compiled", "python")

Result = Mapping[str, Any]
Figure = Callable[[Result], float | None]


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """One thing that is measured.

    Attributes:
        spec: its settings, without a length.
        engine: `netstack`, which is measured in both builds, or a peer.
        job: which of `jobs` it is instead; its peers are `loop` and `queue`, and of `spec` nothing counts.
        taskmanagers: it is an all-to-all on so many of them; 0 for two processes.
        seconds: how long, in the unit of the command's `--seconds`.
    """

    spec: RunSpec
    engine: str = "netstack"
    job: str = ""
    taskmanagers: int = 0
    seconds: float = 1.0

    @property
    def builds(self) -> tuple[str, ...]:
        """In which builds it is measured; a peer has none."""
        return BUILDS if self.engine == "netstack" else ("",)


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        text: what is measured.
        ours: what netstack does.
        other: what it is divided by: a peer, or netstack under other settings; None shows the figure itself.
        goals: compiled, and in Python.
        figure: which number of a result.
        shown: the number with its unit.
        is_less_better: for times.
    """

    text: str
    ours: Measured
    other: Measured | None
    goals: tuple[float, float]
    figure: Figure
    shown: Callable[[float], str]
    is_less_better: bool = False


def measured_once(rows: Sequence[Row]) -> list[Measured]:
    """Everything the rows need, each once, in their order."""
    found: dict[Measured, None] = {}
    for row in rows:
        found[row.ours] = None
        if row.other is not None:
            found[row.other] = None
    return list(found)


def _rate(result: Result) -> float | None:
    return result.get("records_per_s")


def _payload(result: Result) -> float | None:
    return result.get("payload_mb_per_s")


def _p50(result: Result) -> float | None:
    found: float | None = result["latency_us"]["p50"]
    return found


def _records(value: float) -> str:
    return f"{three_digits(value / 1e6)} M/s"


def _megabytes(value: float) -> str:
    return f"{value:,.0f} MB/s"


def _bulk(exclusive: int, floating: int, segment: int) -> RunSpec:
    return RunSpec(
        record_bytes=1 << 20,
        emit="batch",
        exclusive_buffers=exclusive,
        floating_buffers=floating,
        segment_size_bytes=segment,
        verify="sample",
    )


_BATCH: Final = RunSpec(emit="batch", verify="sample")
_RECORD: Final = RunSpec()
_ARROW: Final = RunSpec(emit="arrow")
_PACED: Final = RunSpec(rate_per_s=1000.0, buffer_timeout_s=0.0)
_MESH: Final = RunSpec(emit="batch")


def _rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    default = RunSpec()
    for text, exclusive, floating, segment, goals in (
        ("default buffers", default.exclusive_buffers, default.floating_buffers, 32 * KIB, (0.35, 0.2)),
        ("16 + 16 of 32 KiB", 16, 16, 32 * KIB, (0.45, 0.3)),
        ("16 + 16 of 128 KiB", 16, 16, 128 * KIB, (0.65, 0.45)),
    ):
        spec = _bulk(exclusive, floating, segment)
        bare = Measured(replace(_bulk(16, 16, 32 * KIB), verify="all"), "raw")  # its only settings are the records
        rows.append(Row(f"1 MiB by batch, {text}: bare loop", Measured(spec), bare, goals, _payload, _megabytes))
    zmq = Measured(_RECORD, "zmq")
    rows += (
        Row("8 B by batch, default buffers: pyzmq", Measured(_BATCH), zmq, (120, 70), _rate, _records),
        Row("8 B one by one, `async for`: pyzmq", Measured(_RECORD), zmq, (6, 2.5), _rate, _records),
        Row(
            "8 B one by one, `next_records`: pyzmq",
            Measured(replace(_RECORD, read="buffer")),
            zmq,
            (10, 3),
            _rate,
            _records,
        ),
    )
    flight = Measured(_ARROW, "flight")
    rows += (
        Row("columnar int64, default buffers: Flight", Measured(_ARROW), flight, (1.2, 0.7), _rate, _records),
        Row(
            "columnar int64, 16 + 16 of 256 KiB: Flight",
            Measured(replace(_ARROW, exclusive_buffers=16, floating_buffers=16, segment_size_bytes=256 * KIB)),
            flight,
            (2.5, 2),
            _rate,
            _records,
        ),
    )
    paced = Measured(_PACED, "zmq", seconds=2)
    rows += (
        Row(
            "p50 at 1,000/s, timeout 0, trio: pyzmq",
            Measured(_PACED, seconds=2),
            paced,
            (1.5, 3),
            _p50,
            format_latency,
            is_less_better=True,
        ),
        Row(
            "p50 at 1,000/s, timeout 0, blocking reader: pyzmq",
            Measured(replace(_PACED, read="blocking"), seconds=2),
            paced,
            (1.0, 1.7),
            _p50,
            format_latency,
            is_less_better=True,
        ),
    )
    for timeout_s, goals in ((0.001, (0.98, 0.95)), (0.0, (0.95, 0.85))):
        rows.append(
            Row(
                f"8 B one by one, timeout {format_duration(timeout_s)}: 100 ms",
                Measured(replace(_RECORD, buffer_timeout_s=timeout_s)),
                Measured(_RECORD),
                goals,
                _rate,
                _records,
            )
        )
    for channels, seconds, goals in ((1_000, 2.0, (0.9, 0.8)), (10_000, 4.0, (0.7, 0.55))):
        rows.append(
            Row(
                f"8 B one by one, {channels:,} channels: one",
                Measured(replace(_RECORD, channels=channels), seconds=seconds),
                Measured(_RECORD),
                goals,
                _rate,
                _records,
            )
        )
    rows += (
        Row(
            "8 B by batch, 1,000 channels: one",
            Measured(replace(_BATCH, channels=1_000)),
            Measured(_BATCH),
            (0.5, 0.4),
            _rate,
            _records,
        ),
        Row(
            "4 x 4 all-to-all on two TaskManagers, 8 B by batch",
            Measured(_MESH, taskmanagers=2),
            None,
            (170e6, 110e6),
            _rate,
            _records,
        ),
    )
    for text, job, engine, goals in (
        ("word count, a user's job: a loop in one process", "word count", "loop", (0.6, 0.5)),
        ("word count, a user's job: multiprocessing.Queue", "word count", "queue", (0.6, 0.5)),
        ("six operators in a chain: a loop in one process", "chain", "loop", (0.9, 0.9)),
    ):
        ours, peer = (Measured(_RECORD, each, job, seconds=4) for each in ("netstack", engine))
        rows.append(Row(text, ours, peer, goals, _rate, _records))
    return tuple(rows)


ROWS: Final = _rows()
