"""The document of one run: what all engines and places have in common (METHOD.md describes each key).

Takes: what was counted. Gives: rates, costs and the proof as JSON values, with the keys of `run --json`; and warnings,
which say what makes the figures of a run less than they seem.

Each key is described once, in `KEYS`: `tools/render_run_document.py` writes `run.schema.json` and METHOD.md's tables
from it, and `netstack_bench.store` takes the columns of Parquet files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

from netstack.base.units import format_duration

from .histogram import Histogram
from .host import host_facts, version
from .spec import RunSpec

SCHEMA_VERSION: Final = 1
"""Version of the document of `run --json`, raised when a key is removed or changes its meaning."""

PERCENTILES: Final = ("p50", "p75", "p90", "p95", "p99", "p999", "p9999", "max")

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_AMOUNT: Final[Schema] = {"type": "number", "minimum": 0}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_WHOLE_OR_NULL: Final[Schema] = {"type": ["integer", "null"]}
_NUMBER_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
_OBJECT: Final[Schema] = {"type": "object"}
_ROWS: Final[Schema] = {"type": "array", "items": _OBJECT}
_LATENCY: Final[Schema] = {"$ref": "#/$defs/percentiles"}
_COST: Final[Schema] = {
    "type": "object",
    "required": ["side", "what", "seconds", "share"],
    "properties": {
        "side": {"enum": ["producer", "consumer"]},
        "what": _TEXT,
        "seconds": _AMOUNT,
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "us_per_buffer": _NUMBER_OR_NULL,
        "ns_per_record": _NUMBER_OR_NULL,
    },
}
_METRICS: Final[Schema] = {"type": ["object", "null"], "additionalProperties": _NUMBER_OR_NULL}


@final
@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    `meaning` is Markdown. `columns` has the types of its columns in Parquet files, by the rest of their names.
    """

    name: str
    schema: Schema
    meaning: str
    columns: Mapping[str, str] = field(default_factory=dict)
    is_required: bool = False
    of: Literal["run", "hosts"] = "run"


def _column(kind: str) -> dict[str, str]:
    return {"": kind}


KEYS: Final = (
    Key(
        "schema_version",
        {"const": SCHEMA_VERSION},
        "of the document ([run.schema.json](run.schema.json); `run` only, as the next two)",
        is_required=True,
    ),
    Key(
        "started_at",
        {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "in UTC",
        is_required=True,
    ),
    Key("command", _TEXT, "ready to paste", is_required=True),
    Key("engine", _TEXT, "what was measured: `netstack`, or a peer", _column("string"), is_required=True),
    Key(
        "engine_kind",
        {"enum": ["local", "hosts", "spark", "flink"]},
        "`hosts`, or what started the TaskManagers",
        of="hosts",
    ),
    Key(
        "delivered",
        {"type": "boolean"},
        "the proof: count, order in each channel and checksum agree at both ends",
        _column("bool"),
        is_required=True,
    ),
    Key(
        "verified",
        {"enum": ["all", "1 in 16", "count"]},
        "how much of what arrived was verified: all, 1 in 16 deliveries and the ends of the others, or its count",
        _column("string"),
    ),
    Key("records", _COUNT, "delivered in the whole run, the warm-up included", _column("int64"), is_required=True),
    Key("seconds", _AMOUNT, "length of the measured window", _column("float64"), is_required=True),
    Key("records_per_s", _AMOUNT, "in the window", _column("float64"), is_required=True),
    Key("payload_mb_per_s", _AMOUNT, "in the window", _column("float64"), is_required=True),
    Key(
        "wire_mb_per_s",
        _NUMBER_OR_NULL,
        "in the window, with headers and lengths",
        _column("float64"),
        is_required=True,
    ),
    Key(
        "latency_us",
        _LATENCY,
        f"`{' '.join(PERCENTILES)}`, to three digits; null where nothing was recorded",
        {f"_{name}": "float64" for name in PERCENTILES},
        is_required=True,
    ),
    Key("round_trip_latency_us", _LATENCY, "as `latency_us`, with `--relay`", of="hosts"),
    Key(
        "latency_kind",
        {"enum": ["open-loop", "sampled under load", None]},
        "`open-loop` with a rate, else `sampled under load`",
        _column("string"),
        is_required=True,
    ),
    Key("latency_samples", _COUNT, "the number of records that latencies rest on", _column("int64"), is_required=True),
    Key(
        "latency_histogram",
        {"anyOf": [{"$ref": "#/$defs/histogram"}, {"type": "null"}]},
        "`buckets` in use with their `counts`, `min_ns max_ns`; `run --hgrm FILE` writes it for HdrHistogram's"
        " plotters, a sweep writes one file a run in `latencies/`",
        is_required=True,
    ),
    Key(
        "cpu_s_per_gb",
        {"type": "object", "additionalProperties": _NUMBER_OR_NULL},
        "of `producer` and `consumer`, or `total`",
        {"_producer": "float64", "_consumer": "float64"},
        is_required=True,
    ),
    Key(
        "memory_bytes",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        "peak of the process, of `producer` and `consumer`",
    ),
    Key("payload_bytes", _COUNT, "of the whole run", _column("int64")),
    Key("buffers", _WHOLE_OR_NULL, "data buffers sent; null for peers", _column("int64")),
    Key("wire_bytes", _WHOLE_OR_NULL, "sent in the whole run", _column("int64")),
    Key("credits", _WHOLE_OR_NULL, "buffers of credit announced; null without credit", _column("int64")),
    Key(
        "average_buffer_fill",
        _NUMBER_OR_NULL,
        "payload of a buffer as a part of its size; null for peers",
        _column("float64"),
    ),
    Key(
        "debloated_buffer_bytes",
        _WHOLE_OR_NULL,
        "the size that `--debloat` reached at the end; null without",
        _column("int64"),
    ),
    Key("congestion_control", _TEXT_OR_NULL, "of the connection"),
    Key(
        "backpressured_ms_per_s",
        {
            "type": "object",
            "properties": {"soft": _NUMBER_OR_NULL, "hard": _NUMBER_OR_NULL},
            "required": ["soft", "hard"],
        },
        "`soft` and `hard`, of each second of producing",
        {"_soft": "float64", "_hard": "float64"},
    ),
    Key("idle_ms_per_s", _NUMBER_OR_NULL, "of each second until the consumer's end", _column("float64")),
    Key(
        "checkpoints",
        _OBJECT,
        "`complete`, `aborted`; `p50` and `max` of `duration_ms`, `start_delay_ms` (until the first barrier),"
        " `alignment_ms` (until the last), `state_write_ms`, `besides_writing_ms`, `channel_state_bytes` (both sides);"
        " empty without checkpoints",
    ),
    Key("connections", _COUNT, "opened between different hosts, both directions together", of="hosts"),
    Key(
        "local",
        _OBJECT,
        "of channels within a host: `records records_per_s payload_mb_per_s`, `latency_us` or `round_trip_latency_us`;"
        " empty if there are none, or no others",
        of="hosts",
    ),
    Key(
        "hosts",
        _ROWS,
        "a row for each: `host address sources sinks`, `connections` that it opened to other hosts, what its sinks"
        " received (`records bytes`, all; `records_per_s payload_mb_per_s` from other hosts, `local_records_per_s` from"
        " its own; with `--relay` those beside its sources), `cpu_s`, `clock_offset_us` in the middle of the run,"
        " `clock_uncertainty_us`, means of `backpressured_ms_per_s` (sources) and `idle_ms_per_s` (sinks);"
        " `netstack_build python kernel cpus`; `congestion_control` of its connections, or its default. Hosts that"
        " differ in one of the last five are a warning, also on the report's first card; `--same-build` refuses"
        " different builds. `host.netstack_build` is that of the hosts",
        _column("list<host>"),
        of="hosts",
    ),
    Key(
        "pairs",
        _ROWS,
        "a row for each: `source_host sink_host` (with `--relay` the relay's) `is_local records payload_bytes"
        " records_per_s payload_mb_per_s latency_us latency_uncertainty_us`, `round_trip_latency_us` with `--relay`",
        _column("list<pair>"),
        of="hosts",
    ),
    Key("matrix", _ROWS, "by host: numbers of `sources relays sinks`", of="hosts"),
    Key("clock", _ROWS, "by host: `offset_before_us offset_after_us round_trip_us`", of="hosts"),
    Key(
        "timeline",
        {"type": ["array", "null"], "items": {"$ref": "#/$defs/sample"}},
        "a sample of each task every 0.1 s (longer in long runs; 240 a task at most), over hosts every 0.25 s and more"
        " often in the first second: `t_s`, its end; `host`, `task`; `records` so far; `pool_usage`; over the part"
        " `backpressured_ms_per_s` of a writer, `idle_ms_per_s` and `busy_ms_per_s` of a reader, `queued_ms_per_s` and"
        " `stolen_ms_per_s`; null for peers",
        _column("list<sample>"),
    ),
    Key(
        "costs",
        {"type": ["array", "null"], "items": _COST},
        "with `--profile`: where the time of each side went",
        _column("list<cost>"),
    ),
    Key(
        "metrics",
        {"type": "object", "properties": {"producer": _METRICS, "consumer": _METRICS}},
        "netstack's own, by name, of `producer` and `consumer`. Counts (`..._total`) and longest waits are of the whole"
        " run; other gauges are means of samples that a thread takes ten times a second (a timer of the loop would fire"
        " just after data arrives, and find longer queues); null for peers",
    ),
    Key(
        "warnings",
        {"type": "array", "items": _TEXT},
        "what a reader should know, with each problem of the delivery",
        _column("list<string>"),
        is_required=True,
    ),
    Key(
        "settings",
        {
            "type": "object",
            "required": ["record_bytes", "channels", "buffer_timeout_s", "emit", "transport"],
        },
        "every flag, with its default; durations in seconds, sizes in bytes",
        is_required=True,
    ),
    Key(
        "host",
        {
            "type": "object",
            "properties": {"packages": {"type": "object", "additionalProperties": _TEXT_OR_NULL}},
            "required": ["name", "cores", "kernel", "python", "packages"],
        },
        "the machine, the interpreter, the build of netstack and the versions of packages",
        is_required=True,
    ),
    Key("version", _TEXT, "of netstack", is_required=True),
    Key(
        "thresholds",
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["condition", "failed", "value"],
                "properties": {"condition": _TEXT, "failed": {"type": "boolean"}, "value": _NUMBER_OR_NULL},
            },
        },
        "with `--fail-on`: each condition, and the worst figure",
    ),
    Key("repeats", {"type": "integer", "minimum": 2}, "with `--repeats`: their number; the figures are their medians"),
    Key(
        "spread",
        {
            "type": "object",
            "properties": {
                "records_per_s": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
            },
        },
        "the least and the greatest of the repeats",
    ),
    Key("runs", _ROWS, "the figures of every repeat"),
    Key("ratio", _OBJECT, "our figure divided by the peer's; by peer if there are several"),
    Key("peer", _OBJECT, "the same document of the peer, or of each by its name"),
)
"""Every key, in the order of columns and tables."""

KEY_COLUMNS: Final = {f"{key.name}{rest}": kind for key in KEYS for rest, kind in key.columns.items()}
"""The columns of a document's keys in Parquet files, with their types."""


def schema(sample: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema of `run --json`; `sample` has the fields of the timeline's samples and their types."""
    kinds: dict[str, Schema] = {"string": _TEXT, "int64": {"type": "integer"}, "float64": _NUMBER_OR_NULL}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "netstack-bench run --json",
        "description": "The one document on standard output. schema_version grows when a key goes or changes its"
        " meaning; new keys may come. METHOD.md describes how each figure is measured.",
        "oneOf": [{"$ref": "#/$defs/result"}, {"$ref": "#/$defs/failure"}],
        "$defs": {
            "percentiles": {
                "type": "object",
                "properties": dict.fromkeys(PERCENTILES, _NUMBER_OR_NULL),
                "description": "In microseconds; null where nothing was recorded.",
            },
            "histogram": {
                "type": "object",
                "description": "Buckets in use and their counts: bucket b < 2,048 is b ns; beyond, every power of two"
                " has 1,024 buckets.",
                "properties": {
                    "buckets": {"type": "array", "items": _COUNT},
                    "counts": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                    "min_ns": {"type": "integer"},
                    "max_ns": {"type": "integer"},
                },
                "required": ["buckets", "counts", "min_ns", "max_ns"],
            },
            "sample": {
                "type": "object",
                "properties": {name: kinds[kind] for name, kind in sample.items()},
                "required": ["t_s", "host", "task"],
            },
            "result": {
                "type": "object",
                "properties": {key.name: {**key.schema, "description": key.meaning} for key in KEYS},
                "required": [key.name for key in KEYS if key.is_required],
            },
            "failure": {
                "type": "object",
                "properties": {
                    "error": _TEXT,
                    "exit_code": {"enum": [1, 2]},
                    "delivered": {"const": False},
                },
                "required": ["error", "exit_code", "delivered"],
                "additionalProperties": False,
            },
        },
    }


def table(of: str) -> str:
    """The table of the keys of `run` or `hosts`, as Markdown."""
    rows = [f"| `{key.name}` | {key.meaning} |" for key in KEYS if key.of == of]
    return "\n".join(("| key | meaning |", "|---|---|", *rows)) + "\n"


_WINDOW_S: Final = 0.06  # of a run too short for a steady window (`Arrivals.window`): what its warm-up leaves
RATE_KEPT: Final = 0.98
"""Below this part of the requested rate there is a warning."""


def document(
    spec: RunSpec,
    *,
    engine: str,
    records: int,
    seconds: float,
    records_per_s: float,
    payload_bytes: int,
    wire_bytes: int | None,
    latency: Histogram,
    cpu_s: Mapping[str, float | None],
    problems: Iterable[str],
    warnings: Iterable[str],
    sent_bytes: float | None = None,
    netstack_build: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The document of a run.

    Args:
        spec: its settings.
        engine: what was measured.
        records: all that were delivered.
        seconds: the length of the measured window.
        records_per_s: the rate in this window.
        payload_bytes: of all records.
        wire_bytes: of all bytes sent; None is unknown.
        latency: in nanoseconds; empty if nothing was recorded.
        cpu_s: CPU seconds by side.
        problems: of the delivery; none if it is proven.
        warnings: what a reader should know besides.
        sent_bytes: the payload of which `wire_bytes` are the bytes sent; by default all.
        netstack_build: of the processes that were measured; by default of this one.
        more: further keys, which may replace these.
    """
    wrong, gigabytes = list(problems), payload_bytes / 1e9
    payload_mb_per_s = records_per_s * payload_bytes / records / 1e6 if records else 0.0
    sent_bytes = payload_bytes if sent_bytes is None else sent_bytes
    kind = "sampled under load" if spec.rate_per_s is None else "open-loop"
    return {
        "engine": engine,
        "delivered": not wrong,
        "records": records,
        "seconds": seconds,
        "records_per_s": records_per_s,
        "payload_mb_per_s": payload_mb_per_s,
        "wire_mb_per_s": payload_mb_per_s * wire_bytes / sent_bytes if wire_bytes and sent_bytes else None,
        "latency_us": latency.summary_us(),
        "latency_kind": kind if latency.count else None,
        "latency_samples": latency.count,
        "latency_histogram": latency.to_dict() if latency.count else None,
        "cpu_s_per_gb": {
            side: used_s / gigabytes if gigabytes and used_s is not None else None for side, used_s in cpu_s.items()
        },
        "payload_bytes": payload_bytes,
        "wire_bytes": wire_bytes,
        **more,
        "warnings": [*(f"delivery: {problem}" for problem in wrong), *warnings],
        "settings": spec.as_dict(),
        "host": {**host_facts(), **({} if netstack_build is None else {"netstack_build": netstack_build})},
        "version": version(),
    }


def with_calls_per_gb(costs: Iterable[Mapping[str, Any]], payload_bytes: int) -> list[dict[str, Any]]:
    """The rows of both sides' profiles, with their calls for 1e9 bytes of payload; None where none are counted."""
    return [
        {**row, "calls_per_gb": row["calls"] * 1e9 / payload_bytes if payload_bytes and row["calls"] else None}
        for row in costs
    ]


def pace_warnings(spec: RunSpec, steady: bool, sent_records: int, sent_s: float) -> list[str]:
    """Warnings for a run that was too short, or a producer that did not keep the requested rate."""
    warnings = []
    if not steady and spec.rate_per_s is None:
        if sent_s - min(spec.warmup_s, sent_s / 3) < _WINDOW_S:
            cause = f"the run lasted {sent_s:.2f} s, too short for a warm-up"
        else:
            cause = "too few records arrived between the warm-up and the end of the producer"
        warnings.append(f"{cause}: the figures include the start")
    if spec.rate_per_s is not None and sent_records > 1:
        # The last record is due one interval before the end of its second, hence the one less.
        reached = (sent_records - 1) / sent_s if sent_s > 0 else math.inf
        if reached < RATE_KEPT * spec.rate_per_s * (sent_records - 1) / sent_records:
            warnings.append(
                f"asked {spec.rate_per_s:g} records/s, sent {reached:.0f}: latencies grow with the run's length"
            )
    return warnings


def timeout_warnings(spec: RunSpec, sent_s: float) -> list[str]:
    """A warning for a buffer timeout that cannot expire during the run."""
    timeout_s = spec.buffer_timeout_s
    if timeout_s is None or timeout_s <= sent_s:
        return []
    return [
        f"the buffer timeout of {format_duration(timeout_s, space=' ')} is longer than the run of {sent_s:.2f} s: it"
        " never expired, so the figures are those of --buffer-timeout none"
    ]


def connection_warnings(spec: RunSpec, control: str | None) -> list[str]:
    """Warnings about the congestion control of a connection."""
    if spec.rate_per_s is None and control == "bbr":
        return [
            "the connection's TCP congestion control is bbr (the system's default), which paces: on loopback it"
            " has about half of cubic's throughput, and varies more (sysctl net.ipv4.tcp_congestion_control)"
        ]
    return []
