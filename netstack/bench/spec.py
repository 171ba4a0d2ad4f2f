"""Every knob of one measurement, frozen and hashable; its hash names the run.

Takes: settings from the command line or a sweep's grid. Gives: `RunSpec` to the runner, both worker processes and the
result row (as `settings`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, Self, get_args

from netstack.buffer.requirements import LANDING_SEGMENTS
from netstack.config import FLINK_CONSTANTS, PROFILES, NetworkConfig
from netstack.errors import ConfigError
from netstack.units import format_size

Emit = Literal["record", "batch", "arrow"]
Read = Literal["record", "buffer", "blocking"]
Write = Literal["task", "blocking"]
Verify = Literal["all", "sample"]
Checkpoints = Literal["none", "aligned", "unaligned"]
TransportName = Literal["tcp", "unix", "shm", "tls"]

_PROFILE_SETTINGS: Final = {
    "exclusive_buffers_per_channel": "exclusive_buffers",
    "floating_buffers_per_gate": "floating_buffers",
    "max_overdraft_buffers_per_partition": "overdraft_buffers",
    "spare_floating_buffers_per_gate": "spare_buffers",
    "spin_s": "spin_s",
}


def constants_of(acts_as: str) -> dict[str, float]:
    """Settings that nobody can change in what a run behaves as."""
    version = PROFILES[acts_as]
    constants = {} if version is None else FLINK_CONSTANTS[version]
    return {_PROFILE_SETTINGS[name]: value for name, value in constants.items() if name in _PROFILE_SETTINGS}


_SPARE_SEGMENTS: Final = 64

MIN_RECORD_BYTES = 8  # every record starts with its index as 8 bytes: that is what proves order and completeness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every experiment's settings can do."""

    def as_dict(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `as_dict`; unknown names are an error."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def refuse_below(*bounds: tuple[str, int | None, int]) -> None:
    """Raises ConfigError for the first (flag, value, least) whose value is too small; None is no value."""
    for flag, value, least in bounds:
        if value is not None and value < least:
            raise ConfigError(f"{flag} {value}: the minimum is {least}")


class _Buffers(Protocol):
    @property
    def exclusive_buffers(self) -> int: ...
    @property
    def floating_buffers(self) -> int: ...
    @property
    def segment_size_bytes(self) -> int: ...


def network_of(spec: _Buffers, segments: int, **more: Any) -> NetworkConfig:
    """The settings of a TaskManager with memory for so many segments of an experiment, and for some more.

    Args:
        spec: says the size of a segment, and the buffers of a channel and of a gate.
        segments: that the experiment can use.
        more: as `NetworkConfig` takes it.
    """
    return NetworkConfig(
        segment_size_bytes=spec.segment_size_bytes,
        memory_bytes=(segments + LANDING_SEGMENTS + _SPARE_SEGMENTS) * spec.segment_size_bytes,
        exclusive_buffers_per_channel=spec.exclusive_buffers,
        floating_buffers_per_gate=spec.floating_buffers,
        **more,
    )


@contextlib.contextmanager
def naming_segment_size(size_bytes: int) -> Iterator[None]:
    """An error of the network's settings in this block names the flag of the segments' size."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--segment-size {format_size(size_bytes)}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(Settings):
    """Settings of one run of one producer process and one consumer process.

    Attributes:
        records: stop after this many; None to run for `seconds`.
        seconds: stop the producer after this long (the default when neither is given: 3 s).
        record_bytes: payload of a record, without its length prefix.
        emit: `record` one call a record; `batch` numpy arrays; `arrow` columnar batches of int64.
        batch_records: records in one array or columnar batch; None picks about 1 MiB of payload.
        read: records one by one (`async for`), those of a buffer at once (`next_records`), or one by one in a thread
            that blocks (`netstack.blocking`).
        write: in a task of trio's, or in a thread that blocks.
        channels: logical channels, shared out among the connections.
        connections: each to a TaskManager of its own in the producer's process.
        buffer_timeout_s: None: only full buffers; 0: after every record.
        rate_per_s: records a second, open loop; None is as fast as it goes.
        segment_size_bytes: size of a network buffer.
        exclusive_buffers: per channel; 0 is legal, then channels share what floats.
        floating_buffers: per gate.
        spare_buffers: as many more while the reader waits and others leave them idle.
        credit: False receives without credits, to be measured against.
        debloat_s: shrinks buffers until what is in flight takes about this long to consume; None leaves them whole.
        consume_rate_per_s: the consumer takes at most this many records a second; None is as fast as it goes.
        transport: `tcp` on loopback, `tls` over that, a `unix` socket, or shared memory (`shm`).
        round_trip_s: the connection is made this much longer; 0 is the bare transport.
        link_bytes_per_s: the connection carries at most this much in each direction; None is the bare transport.
        input_path: rows of this file become the records.
        key_column: partition the rows by the key group of this column.
        warmup_s: left out at the start (cold caches, slow start): of the window of an unlimited run, of the latencies
            of a paced one; at most a third of the run.
        spin_s: how long a reader, or a writer without a buffer, looks before it parks, while what it waits for comes
            that fast.
        verify: `all` that arrives is looked at, or a `sample` (`bench.sampled`).
        profile: tells where the time of each side goes, which costs some of it.
        acts_as: whose network stack it behaves as (`--as`): our own, Flink 2.3's, or Flink 1's, whose buffers can be
            set.
        overdraft_buffers: send buffers that a record which has begun may take beyond a full pool.
        checksum: CRC-32 over every buffer on the wire.
        memory_bytes: network memory of each end; None is what its buffers need.
        checkpoints: what barriers do in front of the consumer, or none; the producer takes a checkpoint each
            `checkpoint_interval_s` (`bench.cell_checkpoints`).
        checkpoint_interval_s: from one barrier to the next.
    """

    ENGINE_KIND: ClassVar[str] = "local"
    """What brings the two ends up: `local`, `hosts` or `spark`."""

    START_S: ClassVar[float] = 0.75
    """What a run takes beside its own length: two Python processes with numpy and trio come up, connect and go."""

    records: int | None = None
    seconds: float | None = None
    record_bytes: int = 8
    emit: Emit = "record"
    batch_records: int | None = None
    read: Read = "record"
    write: Write = "task"
    channels: int = 1
    connections: int = 1
    buffer_timeout_s: float | None = 0.1
    rate_per_s: float | None = None
    segment_size_bytes: int = 32 * 1024
    exclusive_buffers: int = 2
    floating_buffers: int = 8
    spare_buffers: int = NetworkConfig().spare_floating_buffers_per_gate
    credit: bool = True
    debloat_s: float | None = None
    consume_rate_per_s: float | None = None
    transport: TransportName = "tcp"
    round_trip_s: float = 0.0
    link_bytes_per_s: int | None = None
    input_path: str | None = None
    key_column: str | None = None
    warmup_s: float = 0.3
    spin_s: float = 0.002
    verify: Verify = "all"
    profile: bool = False
    checksum: bool = False
    acts_as: str = "netstack"
    overdraft_buffers: int = NetworkConfig().max_overdraft_buffers_per_partition
    memory_bytes: int | None = None
    checkpoints: Checkpoints = "none"
    checkpoint_interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, naming the flag."""
        if self.acts_as not in PROFILES:
            raise ConfigError(f"--as {self.acts_as}: give one of {', '.join(PROFILES)}")
        for name, fixed in constants_of(self.acts_as).items():
            if getattr(self, name) != fixed:
                flag = "--" + name.removesuffix("_s").replace("_", "-")
                raise ConfigError(
                    f"{flag} {getattr(self, name):g} with --as {self.acts_as}: it is always {fixed:g} there; leave it"
                    " out"
                )
        if self.records is not None and self.seconds is not None:
            raise ConfigError("--records and --seconds exclude each other; give one")
        refuse_below(
            ("--records", self.records, 1),
            ("--record-bytes", self.record_bytes, MIN_RECORD_BYTES),
            ("--batch-records", self.batch_records, 1),
            ("--channels", self.channels, 1),
            ("--connections", self.connections, 1),
            ("--exclusive-buffers", self.exclusive_buffers, 0),
            ("--floating-buffers", self.floating_buffers, 1),
            ("--spare-buffers", self.spare_buffers, 0),
            ("--overdraft-buffers", self.overdraft_buffers, 0),
            ("--link-rate", self.link_bytes_per_s, 1),
            ("--memory", self.memory_bytes, 1),
        )
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"--seconds {self.seconds}: give more than 0")
        for flag, rate in (("--rate", self.rate_per_s), ("--consume-rate", self.consume_rate_per_s)):
            if rate is not None and not rate > 0:
                raise ConfigError(f"{flag} {rate}: give more than 0 records a second")
        if self.transport == "tls" and self.is_impaired:
            raise ConfigError("--transport tls with --round-trip or --link-rate is not measured: leave one out")
        if self.verify == "sample" and (self.rate_per_s is not None or self.input_path is not None):
            raise ConfigError("--verify sample with --rate or --input: there every record is looked at; leave one out")
        if self.verify == "sample" and self.ENGINE_KIND != "local":
            raise ConfigError("--verify sample is for two processes on this machine: leave it, or the hosts, out")
        if self.read != "record" and (self.emit != "record" or self.ENGINE_KIND != "local"):
            raise ConfigError(f"--read {self.read} is for --emit record between two processes; leave it out")
        if self.write != "task" and (self.emit != "record" or self.connections > 1 or self.ENGINE_KIND != "local"):
            raise ConfigError(
                f"--write {self.write} is for --emit record over one connection between two processes; leave it out"
            )
        if self.write == "blocking" and self.input_path is not None:
            raise ConfigError("--write blocking is for generated records; leave --input or it out")
        if self.connections > 1:
            if self.channels % self.connections:
                raise ConfigError(
                    f"--connections {self.connections} with --channels {self.channels}: each has as many, so give a"
                    " multiple"
                )
            if self.emit == "arrow" or self.input_path is not None or self.ENGINE_KIND != "local":
                raise ConfigError("--connections is for generated records between two processes; leave it out")
        if self.profile and self.ENGINE_KIND != "local":
            raise ConfigError(
                "--profile looks into the two processes of a run on this machine: leave it, or the hosts, out"
            )
        if self.profile and (self.connections > 1 or "blocking" in (self.read, self.write)):
            raise ConfigError(
                "--profile looks into one event loop a side: leave --connections, --read and --write blocking out"
            )
        self._check_checkpoints()
        if not 0 <= self.spin_s <= 1:
            raise ConfigError(f"--spin {self.spin_s:g}s: give 0, or a duration up to 1s")
        if self.debloat_s is not None and not self.debloat_s > 0:
            raise ConfigError(f"--debloat {self.debloat_s:g}s: give a duration above 0, or none")
        if self.buffer_timeout_s is not None and self.buffer_timeout_s < 0:
            raise ConfigError(f"--buffer-timeout {self.buffer_timeout_s}s: give 0, a duration, or none")
        if self.key_column is not None and self.input_path is None:
            raise ConfigError("--key names a column of --input; give --input FILE too")
        if self.emit == "arrow" and self.record_bytes % 8:
            raise ConfigError(f"--record-bytes {self.record_bytes} with --emit arrow: give a multiple of 8 (int64)")

    def _check_checkpoints(self) -> None:
        if self.checkpoints not in get_args(Checkpoints):
            raise ConfigError(f"--checkpoints {self.checkpoints}: give one of {', '.join(get_args(Checkpoints))}")
        if self.ENGINE_KIND not in ("local", "flink") and (self.checkpoints != "none" or self.memory_bytes is not None):
            raise ConfigError("--checkpoints and --memory are for two processes on this machine; leave them out")
        if self.checkpoints == "none":
            return
        if not self.checkpoint_interval_s > 0:
            raise ConfigError(f"--checkpoint-interval {self.checkpoint_interval_s:g}s: give more than 0")
        plain = ("record", "record", "task", 1, True, None, False)
        asked = (self.emit, self.read, self.write, self.connections, self.credit, self.input_path, self.profile)
        if asked != plain:
            raise ConfigError(
                f"--checkpoints {self.checkpoints} is for single generated records over one connection with credit:"
                " leave --emit, --read, --write, --connections, --credit, --input and --profile out"
            )

    @property
    def run_id(self) -> str:
        """Twelve hex digits that are equal exactly when every setting is."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def rows(self) -> str:
        """What is sent, for people."""
        return (
            f"rows of {self.input_path}" if self.input_path else f"{format_size(self.record_bytes, space=' ')} records"
        )

    @property
    def is_impaired(self) -> bool:
        """Whether the connection is made longer or slower than it is."""
        return self.round_trip_s > 0 or self.link_bytes_per_s is not None

    @property
    def effective_batch_records(self) -> int:
        """Records in one batch: as asked, else about 1 MiB of payload."""
        return self.batch_records or max(1, (1 << 20) // self.record_bytes)
