"""The flags of `run` and `sweep`, and helpers for the flags of other commands.

A value that does not parse is one sentence that names the flag, and exit code 2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import click

from netstack.base.config import PROFILES
from netstack.base.errors import ConfigError
from netstack.base.units import format_duration, format_size
from netstack.cli.network_flags import buffer_flags
from netstack.cli.values import (
    COUNT,
    COUNTS,
    DURATION,
    DURATIONS,
    LENGTH,
    LENGTHS,
    LINK_RATE,
    LINK_RATES,
    NETWORK,
    NETWORKS,
    RATE,
    RATES,
    SECONDS,
    SHARE,
    SIZE,
    SIZES,
    SWITCH,
    Parsed,
    ParsedList,
    several,
)

from .grid import (
    DEFAULT_CHANNELS,
    DEFAULT_LATENCY_RATE_PER_S,
    DEFAULT_RECORD_SIZES,
    DEFAULT_SECONDS,
    DEFAULT_TIMEOUTS_S,
)
from .labels import is_duration
from .spec import Checkpoints, Emit, Gates, Read, RunSpec, TransportName, Verify, Write, constants_of
from .thresholds import EXIT_CODE, Threshold

PLACES = ("auto", "local", "spark", "hosts")

_Command = TypeVar("_Command", bound=Callable[..., Any])
_RUN = RunSpec()


class Flag(Protocol):
    """Adds a flag, or several, to a command."""

    def __call__(self, command: _Command, /) -> _Command:
        """Returns the command with the flag."""


def flag(name: str, kind: Any, help: str | None = None, field: str = "", *, default: Any = None, **more: Any) -> Flag:
    """A flag that takes a value: of a click type, or one of a tuple of texts.

    `field` is the command's parameter, by default the name with the unit of the type. A default is shown in the help; a
    duration or size with its unit.
    """
    field = field or _field(name, kind)
    values = default if isinstance(default, tuple) else (default,)
    text = None if default is None else ",".join(_text(field, each) for each in values)
    return click.option(
        name,
        field,
        type=click.Choice(kind) if isinstance(kind, tuple) else kind,
        default=text,
        show_default=default is not None,
        help=help,
        **more,
    )


def list_flag(name: str, kind: tuple[str, ...], help: str, field: str) -> Flag:
    """A flag that takes several of these texts: separated by commas, and repeated."""
    return click.option(name, field, help=help, **several(click.Choice(kind)))


def flag_of(spec: Any, name: str, kind: Any, help: str, field: str = "", **more: Any) -> Flag:
    """A `flag` for a field of a specification, with the default of this instance."""
    return flag(name, kind, help, field, default=getattr(spec, field or _field(name, kind)), **more)


def _field(name: str, kind: Any) -> str:
    """`buffer_timeout_s` for `--buffer-timeout`, a duration."""
    field = name[2:].replace("-", "_")
    unit = {DURATION: "_s", LENGTH: "_s", SIZE: "_bytes", RATE: "_per_s"}.get(kind, "")
    return field if field.endswith(("bytes", "seconds")) else field + unit


def _text(field: str, value: Any) -> str:
    """A default with its unit, such as `100ms` or `32KiB`; other numbers unchanged."""
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
    """The flag `--record-bytes`."""
    return flag("--record-bytes", SIZE, "Payload of each record.", default=default)


def gate_flags(spec: Any) -> Flag:
    """The flags for the number and size of network buffers, with the defaults of this specification."""
    return buffer_flags(
        exclusive_buffers=spec.exclusive_buffers,
        floating_buffers=spec.floating_buffers,
        segment_size_bytes=spec.segment_size_bytes,
    )


fail_on_flag: Flag = click.option(
    "--fail-on",
    **several(Parsed("condition", Threshold.parse)),
    help=f"Exit with {EXIT_CODE} if this is true of the figures, such as 'p99>20ms', 'throughput<200MB/s' or"
    " 'records/s<1M', or one of several.",
)
"""The flag `--fail-on`."""

json_flag: Flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
"""The flag `--json`."""


def _buffers(count: Parsed, length: Parsed, more: str) -> Flag:
    round_trip = "round_trip_s" if length is LENGTH else "round_trips_s"
    longer = f"Add this much round-trip time to the connection, such as 10ms{more}."
    return flags(
        flag_of(_RUN, "--exclusive-buffers", count, f"Receive buffers of each channel{more}."),
        flag_of(_RUN, "--floating-buffers", count, f"Receive buffers shared by all channels of a gate{more}."),
        flag("--round-trip", length, longer, round_trip, default=_RUN.round_trip_s),
    )


def _checkpoints(size: Parsed, mode: Any, length: Parsed, more: str) -> Flag:
    memory, interval = (
        ("memory_bytes", "checkpoint_interval_s") if length is LENGTH else ("memories_bytes", "checkpoint_intervals_s")
    )
    return flags(
        flag("--memory", size, f"Network memory of each end; by default what its buffers need{more}.", memory),
        flag(
            "--checkpoints",
            mode,
            f"Take checkpoints during the run: with aligned or unaligned barriers, or none{more}.",
            default=_RUN.checkpoints,
        ),
        flag(
            "--checkpoint-interval",
            length,
            f"Interval between checkpoints{more}.",
            interval,
            default=_RUN.checkpoint_interval_s,
        ),
    )


def _use_constants(context: click.Context, parameter: click.Parameter, acts_as: str) -> str:
    """Makes the constants of the selected system the defaults of their flags."""
    constants = {name: _text(name, value) for name, value in constants_of(acts_as).items()}
    context.default_map = {**(context.default_map or {}), **constants}
    return acts_as


def _use_place(context: click.Context, parameter: click.Parameter, place: str | None) -> None:
    if place is not None:
        context.default_map = {**(context.default_map or {}), "place": place}


_SHARED = flags(
    flag_of(
        _RUN, "--emit", get_args(Emit), "How to emit: one call per record, numpy arrays, or columnar batches of int64."
    ),
    flag_of(
        _RUN,
        "--read",
        get_args(Read),
        "How to read with --emit record: async for, next_records, or netstack.blocking in a thread.",
    ),
    flag_of(
        _RUN,
        "--write",
        get_args(Write),
        "How to write with --emit record: in a trio task, or netstack.blocking in a thread.",
    ),
    flag_of(
        _RUN,
        "--connections",
        COUNT,
        "Number of connections for the channels, each to its own network environment in the producer's process. With"
        " --hosts: how many slots of a host its subtasks share; between two hosts there are up to its square in each"
        " direction, if slots are processes.",
    ),
    flag_of(
        _RUN,
        "--gates",
        get_args(Gates),
        "One input gate for all channels, or one for each channel, as the subtasks of a sink in Flink have.",
    ),
    flag("--batch-records", COUNT, "Records in one array or columnar batch; by default about 1 MiB of them."),
    flag_of(_RUN, "--segment-size", SIZE, "Size of a network buffer."),
    flag(
        "--credit",
        SWITCH,
        "Credit-based flow control; off: the receiver stops reading the socket when it has no buffers.",
        default="on",
    ),
    flag(
        "--debloat",
        DURATION,
        "Buffer debloating: shrink buffers until data in flight takes about this long to consume, such as 1s.",
    ),
    flag("--consume-rate", RATE, "Limit the consumer to this rate in records per second; unlimited by default."),
    flag_of(
        _RUN, "--transport", get_args(TransportName), "TCP on loopback, TLS over it, a Unix socket, or shared memory."
    ),
    flag_of(_RUN, "--warmup", LENGTH, "Uncounted time at the start of a run without a rate."),
    flag_of(_RUN, "--spare-buffers", COUNT, "Additional receive buffers while network memory is idle."),
    flag_of(
        _RUN,
        "--overdraft-buffers",
        COUNT,
        "Overdraft: send buffers beyond a full pool that a record in progress may take.",
    ),
    flag_of(
        _RUN,
        "--as",
        tuple(PROFILES),
        "Use the policies of Flink's network stack: of 2.3, or of 1.x with configurable buffers.",
        "acts_as",
        is_eager=True,
        callback=_use_constants,
    ),
    flag_of(
        _RUN,
        "--spin",
        LENGTH,
        "How long a reader or writer polls for data or buffers before it parks; 0 disables polling.",
    ),
    flag_of(
        _RUN,
        "--verify",
        get_args(Verify),
        "Verify every byte, or every byte of one array in 16 and both ends of the others.",
    ),
    click.option("--profile/--no-profile", default=False, help="Show the time per buffer and record by activity."),
    click.option("--checksum/--no-checksum", default=False, help="CRC-32 over every buffer on the wire."),
)
"""Settings that all runs of a sweep share."""


def network_flag(kind: Parsed, more: str) -> Flag:
    """The flag `--network`: a rate and a round trip."""
    return flag(
        "--network",
        kind,
        f"Imitate this network, such as 200Mbit:10ms or 10GbE:0.5ms{more}; by default this machine's loopback.",
        "network" if kind is NETWORK else "networks",
        metavar="[RATE:]ROUND-TRIP" if kind is NETWORK else "[RATE:]ROUND-TRIP,...",
    )


line_flags: Flag = flags(
    flag(
        "--queue",
        SIZE,
        "Size of the imitated line's queue, in front of it; by default what the line carries in a round trip, and at"
        " least 128 KiB. TCP keeps most of it full.",
    ),
    flag_of(
        _RUN,
        "--loss",
        SHARE,
        "Part of the imitated line's frames that is lost, such as 0.1%: TCP sends them again, and sends more slowly.",
    ),
    flag_of(_RUN, "--jitter", LENGTH, "Add up to this much to the delay of the imitated line, evenly distributed."),
)
"""More properties of the line that `--network` imitates."""


def _link(rate: Parsed, network: Parsed, more: str) -> Flag:
    return flags(
        flag(
            "--link-rate",
            rate,
            "Limit the connection to this rate per second in each direction, such as 200Mbit or 25MB. It counts whole"
            f" Ethernet frames, with the headers of TCP{more}.",
            "link_bytes_per_s" if rate is LINK_RATE else "links_bytes_per_s",
        ),
        network_flag(network, f", in place of --link-rate and --round-trip{more}"),
        line_flags,
    )


def take_network(settings: dict[str, Any]) -> None:
    """Replaces `network` by what it says. Raises ConfigError if that is given as well."""
    network = settings.pop("network")
    if network is None:
        return
    for flag, name in (("--link-rate", "link_bytes_per_s"), ("--round-trip", "round_trip_s")):
        if settings.get(name):
            raise ConfigError(f"--network with {flag}: the network says it already; leave one of them out")
    settings["link_bytes_per_s"], settings["round_trip_s"] = network


_KEY = flag("--key", None, "Column of --input whose key group selects the channel.", "key_column")

run_flags = flags(
    flag("--records", COUNT, "Stop after this many records."),
    flag("--seconds", SECONDS, "Stop after this long; 3 s if neither limit is given."),
    record_bytes_flag(_RUN.record_bytes),
    flag_of(_RUN, "--channels", COUNT, "Logical channels on the one connection."),
    flag_of(
        _RUN,
        "--buffer-timeout",
        DURATION,
        "Buffer timeout: 100ms; 0 flushes after every record; none sends only full buffers.",
    ),
    flag("--rate", RATE, "Rate in records per second, open loop; full speed by default."),
    flag(
        "--input",
        click.Path(exists=True, dir_okay=False, readable=True),
        "A CSV, JSON lines or Parquet file whose rows become the records.",
        "input_path",
    ),
    _KEY,
    _buffers(COUNT, LENGTH, ""),
    _link(LINK_RATE, NETWORK, ""),
    _checkpoints(SIZE, get_args(Checkpoints), LENGTH, ""),
    _SHARED,
)
"""The settings of one run, named as the fields of `RunSpec`."""

sweep_flags = flags(
    flag("--timeouts", DURATIONS, "Buffer timeouts.", "timeouts_s", default=DEFAULT_TIMEOUTS_S),
    flag("--record-sizes", SIZES, "Payload sizes of a record.", default=DEFAULT_RECORD_SIZES),
    flag("--channels", COUNTS, "Logical channels.", default=DEFAULT_CHANNELS),
    flag(
        "--input",
        None,
        "A CSV, JSON lines or Parquet file whose rows become the records; on Spark also a URL or a table.",
        "input_path",
        metavar="TABLE|FILE",
    ),
    _KEY,
    _buffers(COUNTS, LENGTHS, "; a list draws curves"),
    _link(LINK_RATES, NETWORKS, "; a list compares"),
    _checkpoints(SIZES, ParsedList("mode,...", str), LENGTHS, "; a list compares"),
    flag("--seconds", SECONDS, "Length of each run.", default=DEFAULT_SECONDS),
    flag("--latency-seconds", SECONDS, "Length of each latency run; by default --seconds; 0 leaves latency runs out."),
    flag(
        "--latency-rate",
        RATES,
        "Rate of the latency runs in records per second, open loop; a list draws latency against rate.",
        "latency_rate_per_s",
        default=DEFAULT_LATENCY_RATE_PER_S,
    ),
    flag("--budget", LENGTH, "Time for the whole command, in which it repeats what the answer needs; by default 3min."),
    flag("--repeats", COUNT, "Make this number of passes over the grid, and no others."),
    flag("--seed", COUNT, "Seed for the order of the runs.", default=0),
    _SHARED,
)
"""The settings of a sweep, named as the fields of `Grid` and, for shared settings, of `RunSpec`."""

hosts_flags = flags(
    flag(
        "--hosts",
        None,
        "Measure all-to-all between these TaskManagers, with N (or SOURCES/SINKS) subtasks on each; over TLS write"
        " tls+tcp://HOST:PORT, with certificates in $NETSTACK_TLS.",
        metavar="HOST:PORT[=N],...",
    ),
    flag(
        "--secret-file",
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "File with the secret of the hosts; required for addresses other than loopback.",
    ),
    click.option("--same-build", is_flag=True, help="Refuse hosts that run different builds of netstack."),
    click.option("--relay", is_flag=True, help="Send records back to their host to measure round-trip latency."),
)
"""The flags for measuring elsewhere than between two processes of this machine."""

place_flags = flags(
    list_flag(
        "--peer",
        ("flink",),
        "Also measure a real Flink and netstack --as flink at every point, and compare them.",
        "peers",
    ),
    flag(
        "--place",
        PLACES,
        "Where to measure: two processes, Spark, or --hosts; auto uses local Spark if Java is installed.",
        default="auto",
    ),
    click.option(  # the name of `--place` in 0.3
        "--engine", type=click.Choice(PLACES), hidden=True, is_eager=True, expose_value=False, callback=_use_place
    ),
    flag(
        "--master",
        None,
        "Spark's master: local[N], spark://HOST:PORT, yarn, k8s://...; by default local[2].",
        metavar="URL",
    ),
    flag("--nodes", COUNT, "Nodes on Spark, one per executor; by default N of local[N], else 2."),
    flag("--parallelism", COUNT, "Number of sources, and of sinks, on each node of Spark.", default=1),
    click.option("--one-way", is_flag=True, help="Put sources on half of the nodes and sinks on the other half."),
    flag(
        "--warehouse",
        None,
        "Folder of the tables: a path, s3a://..., hdfs://...; by default beside --output.",
        metavar="URL",
    ),
    click.option("--shared-hosts", is_flag=True, help="Allow two nodes of a Spark cluster on one host."),
    flag("--node-ports", Parsed("ports", _ports), "Ports on which nodes listen; by default any.", metavar="FIRST-LAST"),
    flag("--executors-timeout", LENGTH, "How long to wait for Spark's executors.", default="60s"),
    flag("--tables-timeout", LENGTH, "How long writing Spark's tables may take.", default="90s"),
)
"""The flags for sweeps on Spark."""
