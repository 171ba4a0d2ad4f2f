"""The rows of the table of figures: the measurements that each row divides, and its goal.

Takes: nothing. Gives: `ROWS`, and the measurements they need, each once.

A figure is netstack's rate divided by another rate: that of a peer, or of the same build under other settings. A figure
of latencies is netstack's latency divided by the peer's, so less is better. Both sides verify the same: every record,
or, where batches are compared, every record of one delivery in 16. Flink's sink checks the order and the content of
each record and sums nothing up; the bare loop verifies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, final

from netstack.base.config import KIB
from netstack.base.errors import ConfigError
from netstack.base.units import format_duration, format_latency, three_digits

from ..spec import RunSpec

BUILDS: Final = ("compiled", "python")

_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "zmq": ("zmq",),
        "flight": ("pyarrow",),
        "flink": ("pyflink",),
        "bytewax": ("bytewax",),
        "duckdb": ("duckdb", "pyarrow"),
        "polars": ("polars", "pyarrow"),
        "dask": ("dask", "distributed", "pandas", "pyarrow"),
    }
)
"""The packages that a peer imports; the package of Flink's jars is only looked for."""

Result = Mapping[str, Any]
Figure = Callable[[Result], float | None]


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """One thing that is measured.

    Attributes:
        spec: its settings, without a length.
        engine: `netstack`, which is measured in both builds, or a peer.
        job: the name of a job of `jobs`, measured instead of `spec`.
        taskmanagers: the number of TaskManagers of an all-to-all; 0 for two processes.
        seconds: the length, in units of the command's `--seconds`.
        batch_sizes: records in a batch; each size is measured in each round, and the fastest counts.
    """

    spec: RunSpec
    engine: str = "netstack"
    job: str = ""
    taskmanagers: int = 0
    seconds: float = 1.0
    batch_sizes: tuple[int, ...] = ()

    @property
    def builds(self) -> tuple[str, ...]:
        """In which builds it is measured; a peer has none, and `shared` is netstack too."""
        return BUILDS if self.engine in ("netstack", "shared") else ("",)


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
        label: writes the number with its unit.
        allowance: is added to the figure of `other`: what ours gives away by its settings.
        cpu_goal: the most CPU for a byte, as a multiple of the other's, compiled; None where nothing is aimed at.
    """

    text: str
    ours: Measured
    other: Measured | None
    goals: tuple[float, float]
    figure: Figure
    label: Callable[[float], str]
    is_less_better: bool = False
    allowance: float = 0.0
    cpu_goal: float | None = None


def cpu_rows(rows: Sequence[Row]) -> list[Row]:
    """For each row with a rate the same row with the CPU that both ends take for a byte, which no other load changes.

    A job has none: its processes are not measured one by one.
    """
    return [
        replace(
            row,
            text=f"{row.text}: CPU",
            goals=(row.cpu_goal or math.inf, math.inf),
            figure=cpu_s_per_gb,
            label=three_digits,
            is_less_better=True,
        )
        for row in rows
        if row.figure in (_rate, _payload) and not row.ours.job
    ]


def cpu_s_per_gb(result: Result) -> float | None:
    """The CPU seconds of both ends for 1e9 bytes of payload."""
    sides = result.get("cpu_s_per_gb") or {}
    if sides.get("total") is not None:
        total: float = sides["total"]
        return total
    producer, consumer = sides.get("producer"), sides.get("consumer")
    return None if producer is None or consumer is None else producer + consumer


def rows_with(words: Sequence[str]) -> list[Row]:
    """The rows that contain one of these texts; all of them without any. Raises ConfigError if there are none."""
    rows = [row for row in ROWS if not words or any(word in row.text for word in words)]
    if not rows:
        raise ConfigError(f"--only {', '.join(words)}: no row contains it; there are {'; '.join(r.text for r in ROWS)}")
    return rows


def installed(rows: Sequence[Row], report: Callable[[str], None]) -> list[Row]:
    """The rows whose peers are installed; the others are reported. Raises ConfigError if none is left."""
    left = []
    for row in rows:
        packages = () if row.other is None else _PACKAGES.get(row.other.engine, ())
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            report(f"left out, {' and '.join(missing)} not installed: {row.text}")
        else:
            left.append(row)
    if not left:
        raise ConfigError("no peer of these rows is installed; in a checkout: pip install '.[peers,more-peers,flink]'")
    return left


def measured_once(rows: Sequence[Row]) -> list[Measured]:
    """Everything the rows need, each once, in their order."""
    measured: dict[Measured, None] = {}
    for row in rows:
        measured[row.ours] = None
        if row.other is not None:
            measured[row.other] = None
    return list(measured)


def _rate(result: Result) -> float | None:
    return result.get("records_per_s")


def _payload(result: Result) -> float | None:
    return result.get("payload_mb_per_s")


def _quantile(name: str) -> Figure:
    def figure(result: Result) -> float | None:
        quantile: float | None = result["latency_us"][name]
        return quantile

    return figure


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


_RECORD: Final = RunSpec()
_KIB: Final = RunSpec(record_bytes=KIB)
_BATCH: Final = RunSpec(emit="batch", verify="sample")
_PROVEN: Final = replace(_BATCH, verify="all")
_ARROW: Final = RunSpec(emit="arrow")
_MESH: Final = RunSpec(emit="batch")
_FRAMES: Final = {"32 KiB": 32 * KIB, "1 MiB": 1024 * KIB}
_FLIGHT_BATCHES: Final = (64 * KIB, 256 * KIB, 1024 * KIB)
_RATES: Final = (1_000, 20_000, 100_000)
_TAIL_RECORDS: Final = 2_000  # that a p99.9 rests on at the least
_TIMEOUTS_S: Final = (0.0, 0.001, 0.01)
_QUANTILES: Final = {"p50": "p50", "p99": "p99", "p99.9": "p999"}


def _framed(spec: RunSpec, frame_bytes: int) -> Measured:
    """The best that pyzmq can do: whole arrays as messages."""
    return Measured(replace(spec, batch_records=frame_bytes // spec.record_bytes), "zmq")


def _rate_row(text: str, ours: RunSpec | Measured, other: Measured | None, goals: tuple[float, float]) -> Row:
    measured = ours if isinstance(ours, Measured) else Measured(ours)
    return Row(text, measured, other, goals, _rate, _records)


def _latency_rows(text: str, ours: RunSpec, rate: int, timeout_s: float, goals: tuple[float, float]) -> list[Row]:
    """The quantiles of one open loop, as multiples of those of pyzmq, which sends each message at once.

    A record may wait for the buffer timeout, so this is added to them.
    """
    seconds = max(1.0, _TAIL_RECORDS / rate)
    measured = Measured(replace(ours, rate_per_s=float(rate), buffer_timeout_s=timeout_s), seconds=seconds)
    other = Measured(replace(_RECORD, rate_per_s=float(rate), buffer_timeout_s=0.0), "zmq", seconds=seconds)
    timeout = format_duration(timeout_s)
    what = f"at {rate:,}/s, timeout {timeout}, {text}: pyzmq{f' + {timeout}' if timeout_s else ''}"
    return [
        Row(f"{name} {what}", measured, other, goals, _quantile(key), format_latency, True, timeout_s * 1e6)
        for name, key in _QUANTILES.items()
    ]


def _rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    default = RunSpec()
    bare = Measured(replace(_bulk(16, 16, 32 * KIB), verify="all"), "raw")  # its only settings are the records
    for text, exclusive, floating, segment, goals, cpu_goal in (
        ("default buffers", default.exclusive_buffers, default.floating_buffers, 32 * KIB, (0.5, 0.2), 2.0),
        ("16 + 16 of 32 KiB", 16, 16, 32 * KIB, (0.6, 0.3), 2.0),
        ("16 + 16 of 128 KiB", 16, 16, 128 * KIB, (0.7, 0.45), 1.7),
    ):
        ours = Measured(_bulk(exclusive, floating, segment))
        what = f"1 MiB by batch, {text}: bare loop"
        rows.append(Row(what, ours, bare, goals, _payload, _megabytes, cpu_goal=cpu_goal))
    for name, size in _FRAMES.items():
        rows.append(_rate_row(f"8 B by batch: pyzmq, frames of {name}", _BATCH, _framed(_BATCH, size), (1.0, 1.0)))
    large = replace(_BATCH, exclusive_buffers=16, floating_buffers=16, segment_size_bytes=128 * KIB)
    text = "8 B by batch, 16 + 16 of 128 KiB: pyzmq, frames of 1 MiB"
    rows.append(_rate_row(text, large, _framed(_BATCH, 1024 * KIB), (1.0, 1.0)))
    rows.append(
        _rate_row("8 B by batch, every byte: pyzmq, frames of 32 KiB", _PROVEN, _framed(_PROVEN, 32 * KIB), (1.0, 1.0))
    )
    zmq = Measured(_RECORD, "zmq")
    flight = Measured(_ARROW, "flight", batch_sizes=tuple(size // _ARROW.record_bytes for size in _FLIGHT_BATCHES))
    flink = Measured(_RECORD, "flink")
    wide = replace(_ARROW, exclusive_buffers=16, floating_buffers=16, segment_size_bytes=256 * KIB)
    rows += [
        _rate_row("8 B one by one, `async for`: pyzmq", _RECORD, zmq, (6, 2.5)),
        _rate_row("8 B one by one, `next_records`: pyzmq", replace(_RECORD, read="buffer"), zmq, (10, 3)),
        _rate_row("8 B one by one, blocking: pyzmq", replace(_RECORD, read="blocking", write="blocking"), zmq, (2, 1)),
        _rate_row("8 B one by one, `async for`: Flink", _RECORD, flink, (0.85, 0.4)),
        _rate_row("8 B one by one, `next_records`: Flink", replace(_RECORD, read="buffer"), flink, (1.4, 0.6)),
        _rate_row("1 KiB one by one, `async for`: Flink", _KIB, replace(flink, spec=_KIB), (1, 0.5)),
        _rate_row("columnar int64, default buffers: Flight", _ARROW, flight, (1.0, 0.7)),
        _rate_row("columnar int64, 16 + 16 of 256 KiB: Flight", wide, flight, (2.5, 2)),
    ]
    for rate in _RATES:
        for timeout_s in _TIMEOUTS_S:
            most = 1.3 if (rate, timeout_s) == (100_000, 0.0) else 1.5
            rows += _latency_rows("trio", _RECORD, rate, timeout_s, (most, 3))
    rows += _latency_rows("blocking reader", replace(_RECORD, read="blocking"), _RATES[0], 0.0, (1.0, 1.7))
    for timeout_s, goals in ((0.001, (0.98, 0.95)), (0.0, (0.95, 0.85))):
        text = f"8 B one by one, timeout {format_duration(timeout_s)}: 100 ms"
        rows.append(_rate_row(text, replace(_RECORD, buffer_timeout_s=timeout_s), Measured(_RECORD), goals))
    for channels, seconds, goals in ((1_000, 1.0, (0.9, 0.8)), (10_000, 2.0, (0.7, 0.55))):
        many = Measured(replace(_RECORD, channels=channels), seconds=seconds)
        rows.append(_rate_row(f"8 B one by one, {channels:,} channels: one", many, Measured(_RECORD), goals))
    mesh = Measured(_MESH, taskmanagers=2)
    rows += [
        _rate_row("8 B by batch, 1,000 channels: one", replace(_BATCH, channels=1_000), Measured(_BATCH), (0.5, 0.4)),
        _rate_row("4 x 4 all-to-all on two TaskManagers, 8 B by batch", mesh, None, (170e6, 110e6)),
    ]
    prompt, shared = (Measured(_RECORD, engine, "sparse edge", seconds=3) for engine in ("netstack", "shared"))
    rows += [
        Row(
            f"{name} of a sparse prompt edge beside bulk, 100 Mbit/s, 5 ms: on one connection with it",
            prompt,
            shared,
            (0.4, 0.4),
            _quantile(key),
            format_latency,
            True,
        )
        for name, key in (("p50", "p50"), ("p99", "p99"))
    ]
    for text, job, engine, goals in (
        ("word count, a user's job: a loop in one process", "word count", "loop", (0.6, 0.5)),
        ("word count, a user's job: multiprocessing.Queue", "word count", "queue", (0.6, 0.5)),
        ("word count, a user's job: Bytewax", "word count", "bytewax", (6, 4)),
        ("word count, a user's job: Flink", "word count", "flink", (0.6, 0.3)),
        ("six operators in a chain: a loop in one process", "chain", "loop", (0.9, 0.9)),
        ("sort of 100 B rows, blocking exchange: DuckDB", "sort", "duckdb", (0.5, 0.4)),
        ("sort of 100 B rows, blocking exchange: Polars", "sort", "polars", (0.5, 0.4)),
        ("sort of 100 B rows, blocking exchange: Dask P2P", "sort", "dask", (2, 1.5)),
    ):
        ours, peer = (Measured(_RECORD, each, job, seconds=2) for each in ("netstack", engine))
        rows.append(_rate_row(text, ours, peer, goals))
    return tuple(rows)


ROWS: Final = _rows()
