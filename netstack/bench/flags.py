"""The flags that say what is measured: those of `run` and `sweep`, and how the benchmark's other commands make theirs.

Takes: specifications, whose fields' defaults the flags have. Gives: decorators of commands.

Rules: a value that does not parse is one clear sentence that names the flag, and exit code 2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import click

from netstack.cli.network_flags import buffer_flags
from netstack.cli.values import (
    COUNT,
    COUNTS,
    DURATION,
    DURATIONS,
    LENGTH,
    LENGTHS,
    RATE,
    SIZE,
    SIZES,
    SWITCH,
    Parsed,
    listed,
)
from netstack.config import PROFILES
from netstack.errors import ConfigError
from netstack.units import format_duration, format_size

from .grid import (
    DEFAULT_CHANNELS,
    DEFAULT_LATENCY_RATE_PER_S,
    DEFAULT_RECORD_SIZES,
    DEFAULT_SECONDS,
    DEFAULT_TIMEOUTS_S,
)
from .spec import Checkpoints, Emit, Read, RunSpec, TransportName, Verify, Write, constants_of
from .words import is_duration

ENGINES = ("auto", "local", "spark", "hosts")

_Command = TypeVar("_Command", bound=Callable[..., Any])
_RUN = RunSpec()


class Flag(Protocol):
    """Adds a flag, or several, to a command."""

    def __call__(self, command: _Command, /) -> _Command:
        """The command with the flag."""


def flag(name: str, kind: Any, help: str | None = None, field: str = "", *, default: Any = None, **more: Any) -> Flag:
    """A flag that takes a value.

    Args:
        name: such as `--rate`.
        kind: how the text is read, a type of click's; or the texts that are allowed.
        help: one sentence.
        field: the command's parameter, if that is not the name without its dashes.
        default: shown in the help where there is one; by `field` a duration or a size is shown with its unit.
        more: as `click.option` takes it.
    """
    field = field or name[2:].replace("-", "_")
    values = default if isinstance(default, tuple) else (default,)
    return click.option(
        name,
        field,
        type=click.Choice(kind) if isinstance(kind, tuple) else kind,
        default=None if default is None else ",".join(_text(field, each) for each in values),
        show_default=default is not None,
        help=help,
        **more,
    )


def flag_of(spec: Any, name: str, kind: Any, help: str, field: str = "", **more: Any) -> Flag:
    """A `flag` for a field of a specification; its default is what this instance of one has."""
    return flag(name, kind, help, field, default=getattr(spec, field or name[2:].replace("-", "_")), **more)


def _text(field: str, value: Any) -> str:
    """`100ms`, `32KiB`; other numbers as they are."""
    if is_duration(field) and not isinstance(value, str):
        return format_duration(value)
    return format_size(value) if isinstance(value, int) and field.endswith(("_bytes", "_sizes")) else str(value)


def flags(*each: Flag) -> Flag:
    """Several flags, in the order in which the help shows them."""

    def add(command: _Command, /) -> _Command:
        for one in reversed(each):
            command = one(command)
        return command

    return add


def _ports(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    try:
        ports = int(first), int(last if dash else first)
    except ValueError:
        raise ConfigError(f"{text!r}: write FIRST-LAST, such as 7000-7010") from None
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ConfigError(f"{text!r}: give ports from 1 to 65535, the lower one first")
    return ports


def record_bytes_flag(default: int) -> Flag:
    """`--record-bytes`, the same everywhere."""
    return flag("--record-bytes", SIZE, "Payload of a record.", default=default)


def gate_flags(spec: Any) -> Flag:
    """How many network buffers a gate has, and how large, with the defaults of this instance of a specification."""
    return buffer_flags(
        exclusive_buffers=spec.exclusive_buffers,
        floating_buffers=spec.floating_buffers,
        segment_size_bytes=spec.segment_size_bytes,
    )


json_flag: Flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
"""`--json`, the same everywhere."""


def _buffers(count: Parsed, length: Parsed, more: str) -> Flag:
    """What a buffer curve is drawn over: single values of a run, lists of a sweep."""
    round_trip = "round_trip_s" if length is LENGTH else "round_trips_s"
    longer = f"Make the connection this much longer, such as 10ms{more}."
    return flags(
        flag_of(_RUN, "--exclusive-buffers", count, f"Receive buffers of each channel{more}."),
        flag_of(_RUN, "--floating-buffers", count, f"Receive buffers that the channels share{more}."),
        flag("--round-trip", length, longer, round_trip, default=_RUN.round_trip_s),
    )


def _checkpoints(size: Parsed, mode: Any, length: Parsed, more: str) -> Flag:
    """Memory and checkpoints: single values of a run, lists of a sweep."""
    memory, interval = (
        ("memory_bytes", "checkpoint_interval_s") if length is LENGTH else ("memories_bytes", "checkpoint_intervals_s")
    )
    return flags(
        flag("--memory", size, f"Network memory of each end; what its buffers need if not given{more}.", memory),
        flag(
            "--checkpoints",
            mode,
            f"Take checkpoints meanwhile, with barriers that are aligned, or unaligned, or none{more}.",
            default=_RUN.checkpoints,
        ),
        flag(
            "--checkpoint-interval",
            length,
            f"From one checkpoint to the next{more}.",
            interval,
            default=_RUN.checkpoint_interval_s,
        ),
    )


def _use_constants(context: click.Context, parameter: click.Parameter, acts_as: str) -> str:
    """What cannot be set there becomes the default of its flag."""
    context.default_map = {name: f"{value:g}" for name, value in constants_of(acts_as).items()}
    return acts_as


_SHARED = flags(
    flag(
        "--link-rate",
        SIZE,
        "Let the connection carry at most this much a second in each direction, such as 100MiB.",
        "link_bytes_per_s",
    ),
    flag_of(_RUN, "--emit", get_args(Emit), "One call a record, numpy arrays, or columnar batches of int64."),
    flag_of(
        _RUN, "--read", get_args(Read), "Of --emit record: async for, next_records, or netstack.blocking in a thread."
    ),
    flag_of(
        _RUN, "--write", get_args(Write), "Of --emit record: in a task of trio's, or netstack.blocking in a thread."
    ),
    flag_of(
        _RUN,
        "--connections",
        COUNT,
        "Connections that share the channels, each to a TaskManager of its own in the producer's process.",
    ),
    flag("--batch-records", COUNT, "Records in one array or columnar batch; about 1 MiB if not given."),
    flag_of(_RUN, "--segment-size", SIZE, "Size of a network buffer.", "segment_size_bytes"),
    flag("--credit", SWITCH, "Flow control by credit, or (off) by reading only what there is room for.", default="on"),
    flag(
        "--debloat",
        DURATION,
        "Shrink buffers until what is in flight takes about this long to consume, such as 1s.",
        "debloat_s",
    ),
    flag(
        "--consume-rate",
        RATE,
        "Records a second the consumer takes at most; as fast as it goes if not given.",
        "consume_rate_per_s",
    ),
    flag_of(
        _RUN, "--transport", get_args(TransportName), "TCP on loopback, TLS over it, a Unix socket, or shared memory."
    ),
    flag_of(_RUN, "--warmup", LENGTH, "Not counted, at the start of a run without a rate.", "warmup_s"),
    flag_of(_RUN, "--spare-buffers", COUNT, "As many more receive buffers as long as nobody else needs them."),
    flag_of(
        _RUN, "--overdraft-buffers", COUNT, "Send buffers beyond a full pool that a record which has begun may take."
    ),
    flag_of(
        _RUN,
        "--as",
        tuple(PROFILES),
        "Behave as Flink's network stack: 2.3's, or that of older clusters, whose buffers can be set.",
        "acts_as",
        is_eager=True,
        callback=_use_constants,
    ),
    flag_of(
        _RUN,
        "--spin",
        LENGTH,
        "How long a reader or writer looks for data or credit before it parks; 0 never.",
        "spin_s",
    ),
    flag_of(
        _RUN,
        "--verify",
        get_args(Verify),
        "Look at every byte that arrives, or at those of one array in 16 and at both ends of the others.",
    ),
    click.option("--profile/--no-profile", default=False, help="Tell where a buffer's and a record's time goes."),
    click.option("--checksum/--no-checksum", default=False, help="CRC-32 over every buffer on the wire."),
)
"""Settings that every run of a sweep shares."""

_KEY = flag("--key", None, "Column of --input whose key group picks the channel.", "key_column")

run_flags = flags(
    flag("--records", COUNT, "Stop after this many records."),
    flag("--seconds", LENGTH, "Stop after this long; 3 when neither is given."),
    record_bytes_flag(_RUN.record_bytes),
    flag_of(_RUN, "--channels", COUNT, "Logical channels on the one connection."),
    flag_of(
        _RUN,
        "--buffer-timeout",
        DURATION,
        "Longest time a record waits in a part-filled buffer: 100ms, 0 (at once), none (until it is full).",
        "buffer_timeout_s",
    ),
    flag("--rate", RATE, "Records a second, open loop; as fast as it goes if not given.", "rate_per_s"),
    flag(
        "--input",
        click.Path(exists=True, dir_okay=False, readable=True),
        "CSV, JSON lines or Parquet: its rows become the records.",
        "input_path",
    ),
    _KEY,
    _buffers(COUNT, LENGTH, ""),
    _checkpoints(SIZE, get_args(Checkpoints), LENGTH, ""),
    _SHARED,
)
"""What one run measures; named as the fields of `RunSpec`."""

sweep_flags = flags(
    flag("--timeouts", DURATIONS, "Buffer timeouts.", "timeouts_s", default=DEFAULT_TIMEOUTS_S),
    flag("--record-sizes", SIZES, "Payloads of a record.", default=DEFAULT_RECORD_SIZES),
    flag("--channels", COUNTS, "Logical channels.", default=DEFAULT_CHANNELS),
    flag(
        "--input",
        None,
        "Rows that become the records: CSV, JSON lines or Parquet; on Spark also a URL or a table.",
        "input_path",
        metavar="TABLE|FILE",
    ),
    _KEY,
    _buffers(COUNTS, LENGTHS, "; a list draws curves"),
    _checkpoints(SIZES, Parsed("modes", listed(str)), LENGTHS, "; a list compares"),
    flag("--seconds", LENGTH, "Length of each run.", default=DEFAULT_SECONDS),
    flag("--latency-seconds", LENGTH, "Length of each latency run, if it is not --seconds; 0 makes none."),
    flag(
        "--latency-rate",
        RATE,
        "Records a second of the latency runs, open loop.",
        "latency_rate_per_s",
        default=DEFAULT_LATENCY_RATE_PER_S,
    ),
    flag("--repeats", COUNT, "Passes over the grid.", default=1),
    flag("--seed", COUNT, "Of the order of the runs.", default=0),
    _SHARED,
)
"""What a sweep measures; named as the fields of `Grid`, those that all its runs share as those of `RunSpec`."""

hosts_flags = flags(
    flag(
        "--hosts",
        None,
        "Measure all-to-all among these netstack taskmanagers, with N (or SOURCES/SINKS) subtasks on each.",
        metavar="HOST:PORT[=N],...",
    ),
    flag(
        "--secret-file",
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "Shared with the hosts; needed where they listen on other addresses than loopback.",
    ),
    click.option("--relay", is_flag=True, help="Let records come back to their host: round-trip latency."),
)
"""Where `run` and `sweep` measure, if it is not between two processes of this machine."""

engine_flags = flags(
    flag(
        "--peer",
        ("flink",),
        "Let a real Flink and netstack --as flink have their turns at every point, and compare them.",
        "peers",
        multiple=True,
    ),
    flag(
        "--engine",
        ENGINES,
        "Two processes, Spark, or --hosts; auto is Spark's local mode where there is a Java.",
        default="auto",
    ),
    flag("--master", None, "Spark's: local[N], spark://HOST:PORT, yarn, k8s://...; else local[2].", metavar="URL"),
    flag("--nodes", COUNT, "TaskManagers on Spark, one an executor; N of local[N], else 2."),
    flag("--parallelism", COUNT, "Sources, and sinks, of each node on Spark.", default=1),
    click.option("--one-way", is_flag=True, help="Sources on half of Spark's nodes, sinks on the others."),
    flag(
        "--warehouse",
        None,
        "Folder of Spark's tables: a path, s3a://..., hdfs://...; beside --output if not given.",
        metavar="URL",
    ),
    click.option("--shared-hosts", is_flag=True, help="Let two nodes of a Spark cluster sit on one host."),
    flag(
        "--node-ports", Parsed("ports", _ports), "Ports that nodes listen on; any if not given.", metavar="FIRST-LAST"
    ),
    flag(
        "--executors-timeout",
        LENGTH,
        "How long Spark's executors may take to come.",
        "executors_timeout_s",
        default="60s",
    ),
    flag("--tables-timeout", LENGTH, "How long Spark's tables may take to write.", "tables_timeout_s", default="90s"),
)
"""Where `sweep` measures, besides hosts."""
