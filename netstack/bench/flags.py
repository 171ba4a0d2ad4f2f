"""The kinds of values flags take, and the flags of `run` and `sweep` that say what is measured.

Takes: words of the command line. Gives: durations in seconds, sizes in bytes, counts, and lists of them.

Rules: a value that does not parse is one clear sentence that names the flag, and exit code 2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
from .spec import RunSpec, constants_of

ENGINES = ("auto", "local", "spark", "hosts")

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _ports(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    try:
        found = int(first), int(last if dash else first)
    except ValueError:
        raise ConfigError(f"{text!r}: write FIRST-LAST, such as 7000-7010") from None
    if not 1 <= found[0] <= found[1] <= 65535:
        raise ConfigError(f"{text!r}: give ports from 1 to 65535, the lower one first")
    return found


PORTS = Parsed("ports", _ports)


def run_flags(command: _Command) -> _Command:
    """What one run measures; named as the fields of `RunSpec`."""
    return _with(
        command,
        click.option("--records", type=COUNT, help="Stop after this many records."),
        click.option("--seconds", type=LENGTH, help="Stop after this long; 3 when neither is given."),
        record_bytes_flag(8),
        click.option(
            "--channels", type=COUNT, default=1, show_default=True, help="Logical channels on the one connection."
        ),
        click.option(
            "--buffer-timeout",
            "buffer_timeout_s",
            type=DURATION,
            default="100ms",
            show_default=True,
            help="Longest time a record waits in a part-filled buffer: 100ms, 0 (at once), none (until it is full).",
        ),
        click.option(
            "--rate", "rate_per_s", type=RATE, help="Records a second, open loop; as fast as it goes if not given."
        ),
        click.option(
            "--input",
            "input_path",
            type=click.Path(exists=True, dir_okay=False, readable=True),
            help="CSV, JSON lines or Parquet: its rows become the records.",
        ),
        click.option("--key", "key_column", help="Column of --input whose key group picks the channel."),
        *_buffers(COUNT, LENGTH, ""),
        *_shared(),
    )


def sweep_flags(command: _Command) -> _Command:
    """What a sweep measures; named as the fields of `Grid`, those that all its runs share as those of `RunSpec`."""
    return _with(
        command,
        click.option(
            "--timeouts",
            "timeouts_s",
            type=DURATIONS,
            default=",".join(map(format_duration, DEFAULT_TIMEOUTS_S)),
            show_default=True,
            help="Buffer timeouts.",
        ),
        click.option(
            "--record-sizes",
            type=SIZES,
            default=",".join(map(format_size, DEFAULT_RECORD_SIZES)),
            show_default=True,
            help="Payloads of a record.",
        ),
        click.option(
            "--channels",
            type=COUNTS,
            default=",".join(map(str, DEFAULT_CHANNELS)),
            show_default=True,
            help="Logical channels.",
        ),
        click.option(
            "--input",
            "input_path",
            metavar="TABLE|FILE",
            help="Rows that become the records: CSV, JSON lines or Parquet; on Spark also a URL or a table.",
        ),
        click.option("--key", "key_column", help="Column of --input whose key group picks the channel."),
        *_buffers(COUNTS, LENGTHS, "; a list draws curves"),
        click.option("--seconds", type=LENGTH, default=DEFAULT_SECONDS, show_default=True, help="Length of each run."),
        click.option(
            "--latency-seconds",
            type=LENGTH,
            help="Length of each latency run, if it is not --seconds; 0 makes none.",
        ),
        click.option(
            "--latency-rate",
            "latency_rate_per_s",
            type=RATE,
            default=DEFAULT_LATENCY_RATE_PER_S,
            show_default=True,
            help="Records a second of the latency runs, open loop.",
        ),
        click.option("--repeats", type=COUNT, default=1, show_default=True, help="Passes over the grid."),
        click.option("--seed", type=COUNT, default=0, show_default=True, help="Of the order of the runs."),
        *_shared(),
    )


def hosts_flags(command: _Command) -> _Command:
    """Where `run` and `sweep` measure, if it is not between two processes of this machine."""
    return _with(
        command,
        click.option(
            "--hosts",
            metavar="HOST:PORT[=N],...",
            help="Measure all-to-all among these netstack taskmanagers, with N (or SOURCES/SINKS) subtasks on each.",
        ),
        click.option(
            "--secret-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Shared with the hosts; needed where they listen on other addresses than loopback.",
        ),
        click.option("--relay", is_flag=True, help="Let records come back to their host: round-trip latency."),
    )


def engine_flags(command: _Command) -> _Command:
    """Where `sweep` measures, besides hosts."""
    return _with(
        command,
        click.option(
            "--peer",
            "peers",
            type=click.Choice(["flink"]),
            multiple=True,
            help="Let a real Flink and netstack --as flink have their turns at every point, and compare them.",
        ),
        click.option(
            "--engine",
            type=click.Choice(ENGINES),
            default="auto",
            show_default=True,
            help="Two processes, Spark, or --hosts; auto is Spark's local mode where there is a Java.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="Spark's: local[N], spark://HOST:PORT, yarn, k8s://...; else local[2].",
        ),
        click.option("--nodes", type=COUNT, help="TaskManagers on Spark, one an executor; N of local[N], else 2."),
        click.option(
            "--parallelism", type=COUNT, default=1, show_default=True, help="Sources, and sinks, of each node on Spark."
        ),
        click.option(
            "--warehouse",
            metavar="URL",
            help="Folder of Spark's tables: a path, s3a://..., hdfs://...; beside --output if not given.",
        ),
        click.option("--shared-hosts", is_flag=True, help="Let two nodes of a Spark cluster sit on one host."),
        click.option(
            "--node-ports", type=PORTS, metavar="FIRST-LAST", help="Ports that nodes listen on; any if not given."
        ),
        *(
            click.option(
                flag, f"{flag[2:].replace('-', '_')}_s", type=LENGTH, default=length, show_default=True, help=words
            )
            for flag, length, words in (
                ("--executors-timeout", "60s", "How long Spark's executors may take to come."),
                ("--tables-timeout", "90s", "How long Spark's tables may take to write."),
            )
        ),
    )


def checkpoint_flags(interval_s: float, aligned_timeout_s: float) -> Callable[[_Command], _Command]:
    """How often checkpoints are taken, and when aligned ones turn unaligned; the arguments are the defaults."""
    return lambda command: _with(
        command,
        click.option(
            "--interval",
            "interval_s",
            type=LENGTH,
            default=format_duration(interval_s),
            show_default=True,
            help="From one checkpoint to the next.",
        ),
        click.option(
            "--aligned-timeout",
            "aligned_timeout_s",
            type=LENGTH,
            default=format_duration(aligned_timeout_s),
            show_default=True,
            help="timed: how old a checkpoint may become before it turns unaligned.",
        ),
    )


def record_bytes_flag(default: int) -> Callable[[_Command], _Command]:
    """`--record-bytes`, the same everywhere."""
    return click.option(
        "--record-bytes", type=SIZE, default=format_size(default), show_default=True, help="Payload of a record."
    )


def json_flag(command: _Command) -> _Command:
    """`--json`, the same everywhere."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(command)


def _buffers(count: Parsed, length: Parsed, more: str) -> tuple[Callable[[_Command], _Command], ...]:
    """What a buffer curve is drawn over: single values of a run, lists of a sweep."""
    default = RunSpec()
    return (
        click.option(
            "--exclusive-buffers",
            type=count,
            default=str(default.exclusive_buffers),
            show_default=True,
            help=f"Receive buffers of each channel{more}.",
        ),
        click.option(
            "--floating-buffers",
            type=count,
            default=str(default.floating_buffers),
            show_default=True,
            help=f"Receive buffers that the channels share{more}.",
        ),
        click.option(
            "--round-trip",
            "round_trip_s" if length is LENGTH else "round_trips_s",
            type=length,
            default=format_duration(default.round_trip_s),
            show_default=True,
            help=f"Make the connection this much longer, such as 10ms{more}.",
        ),
    )


def _shared() -> tuple[Callable[[_Command], _Command], ...]:
    """Settings that every run of a sweep shares."""
    default = RunSpec()
    return (
        click.option(
            "--link-rate",
            "link_bytes_per_s",
            type=SIZE,
            help="Let the connection carry at most this much a second in each direction, such as 100MiB.",
        ),
        click.option(
            "--emit",
            type=click.Choice(["record", "batch", "arrow"]),
            default=default.emit,
            show_default=True,
            help="One call a record, numpy arrays, or columnar batches of int64.",
        ),
        click.option(
            "--read",
            type=click.Choice(["record", "buffer", "blocking"]),
            default=default.read,
            show_default=True,
            help="Of --emit record: async for, next_records, or netstack.blocking in a thread.",
        ),
        click.option(
            "--write",
            type=click.Choice(["task", "blocking"]),
            default=default.write,
            show_default=True,
            help="Of --emit record: in a task of trio's, or netstack.blocking in a thread.",
        ),
        click.option(
            "--connections",
            type=COUNT,
            default=default.connections,
            show_default=True,
            help="Connections that share the channels, each to a TaskManager of its own in the producer's process.",
        ),
        click.option(
            "--batch-records", type=COUNT, help="Records in one array or columnar batch; about 1 MiB if not given."
        ),
        click.option(
            "--segment-size",
            "segment_size_bytes",
            type=SIZE,
            default=format_size(default.segment_size_bytes),
            show_default=True,
            help="Size of a network buffer.",
        ),
        click.option(
            "--credit",
            type=SWITCH,
            default="on",
            show_default=True,
            help="Flow control by credit, or (off) by reading only what there is room for.",
        ),
        click.option(
            "--debloat",
            "debloat_s",
            type=DURATION,
            help="Shrink buffers until what is in flight takes about this long to consume, such as 1s.",
        ),
        click.option(
            "--consume-rate",
            "consume_rate_per_s",
            type=RATE,
            help="Records a second the consumer takes at most; as fast as it goes if not given.",
        ),
        click.option(
            "--transport",
            type=click.Choice(["tcp", "unix", "shm", "tls"]),
            default=default.transport,
            show_default=True,
            help="TCP on loopback, TLS over it, a Unix socket, or shared memory.",
        ),
        click.option(
            "--warmup",
            "warmup_s",
            type=LENGTH,
            default=format_duration(default.warmup_s),
            show_default=True,
            help="Not counted, at the start of a run without a rate.",
        ),
        click.option(
            "--spare-buffers",
            type=COUNT,
            default=default.spare_buffers,
            show_default=True,
            help="As many more receive buffers as long as nobody else needs them.",
        ),
        click.option(
            "--overdraft-buffers",
            type=COUNT,
            default=default.overdraft_buffers,
            show_default=True,
            help="Send buffers beyond a full pool that a record which has begun may take.",
        ),
        click.option(
            "--as",
            "acts_as",
            type=click.Choice(tuple(PROFILES)),
            default=default.acts_as,
            show_default=True,
            is_eager=True,
            callback=_use_constants,
            help="Behave as Flink's network stack: 2.3's, or that of older clusters, whose buffers can be set.",
        ),
        click.option(
            "--spin",
            "spin_s",
            type=LENGTH,
            default=format_duration(default.spin_s),
            show_default=True,
            help="How long a reader or writer looks for data or credit before it parks; 0 never.",
        ),
        click.option(
            "--verify",
            type=click.Choice(["all", "sample"]),
            default=default.verify,
            show_default=True,
            help="Look at every byte that arrives, or at those of one array in 16 and at both ends of the others.",
        ),
        click.option(
            "--profile/--no-profile", default=default.profile, help="Tell where a buffer's and a record's time goes."
        ),
        click.option(
            "--checksum/--no-checksum", default=default.checksum, help="CRC-32 over every buffer on the wire."
        ),
    )


def _use_constants(context: click.Context, parameter: click.Parameter, acts_as: str) -> str:
    """What cannot be set there becomes the default of its flag."""
    context.default_map = {name: f"{value:g}" for name, value in constants_of(acts_as).items()}
    return acts_as


def _with(command: _Command, *flags: Callable[[_Command], _Command]) -> _Command:
    for flag in reversed(flags):
        command = flag(command)
    return command
