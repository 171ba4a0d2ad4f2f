"""The settings of one measurement, frozen and hashable; their hash identifies the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, Self, get_args

from netstack.base.config import FLINK_CONSTANTS, PROFILES, NetworkConfig
from netstack.base.errors import ConfigError
from netstack.base.units import format_size
from netstack.exchange.buffer.requirements import LANDING_SEGMENTS

Emit = Literal["record", "batch", "arrow"]
Read = Literal["record", "buffer", "blocking"]
Write = Literal["task", "blocking"]
Verify = Literal["all", "sample"]
Gates = Literal["one", "each"]
Checkpoints = Literal["none", "aligned", "unaligned"]
TransportName = Literal["tcp", "unix", "shm", "tls"]

DEFAULT_SECONDS: Final = 3.0
"""Length of a run without `records` and `seconds`."""

_PROFILE_SETTINGS: Final = {
    "exclusive_buffers_per_channel": "exclusive_buffers",
    "floating_buffers_per_gate": "floating_buffers",
    "max_overdraft_buffers_per_partition": "overdraft_buffers",
    "spare_floating_buffers_per_gate": "spare_buffers",
    "spin_s": "spin_s",
}


def constants_of(acts_as: str) -> dict[str, float]:
    """Settings that cannot be changed in the system that `--as` selects."""
    version = PROFILES[acts_as]
    constants = {} if version is None else FLINK_CONSTANTS[version]
    return {_PROFILE_SETTINGS[name]: value for name, value in constants.items() if name in _PROFILE_SETTINGS}


_SPARE_SEGMENTS: Final = 64

_RECORD_BYTES: Final = 8
_CHECKPOINT_INTERVAL_S: Final = 1.0

MIN_RECORD_BYTES = 8  # every record starts with its index as 8 bytes, which proves order and completeness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Base of the settings of every experiment."""

    def as_dict(self) -> dict[str, Any]:
        """Every setting, defaults included, as JSON values."""
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


def refuse_unused(settings: Mapping[str, Any], peers: Collection[str] = ()) -> None:
    """Raises ConfigError for `--batch-records` where neither netstack nor a peer uses it."""
    batch_records = settings["batch_records"]
    if batch_records is not None and settings["emit"] == "record" and "flight" not in peers:
        raise ConfigError(f"--batch-records {batch_records} is for --emit batch or arrow; give one, or leave it out")


class _Buffers(Protocol):
    @property
    def exclusive_buffers(self) -> int: ...
    @property
    def floating_buffers(self) -> int: ...
    @property
    def segment_size_bytes(self) -> int: ...


def network_of(spec: _Buffers, segments: int, **more: Any) -> NetworkConfig:
    """TaskManager settings with memory for this many segments of an experiment, and some more."""
    return NetworkConfig(
        segment_size_bytes=spec.segment_size_bytes,
        memory_bytes=(segments + LANDING_SEGMENTS + _SPARE_SEGMENTS) * spec.segment_size_bytes,
        exclusive_buffers_per_channel=spec.exclusive_buffers,
        floating_buffers_per_gate=spec.floating_buffers,
        **more,
    )


def check_segment_size(size_bytes: int) -> None:
    """Raises ConfigError, which names `--segment-size`, if network buffers cannot have this size."""
    with naming_segment_size(size_bytes):
        NetworkConfig(segment_size_bytes=size_bytes, memory_bytes=4 * size_bytes)


@contextlib.contextmanager
def naming_segment_size(size_bytes: int) -> Iterator[None]:
    """Adds `--segment-size` to errors of the network settings in the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--segment-size {format_size(size_bytes)}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(Settings):
    """Settings of one run of one producer process and one consumer process.

    Every field is a flag of `netstack-bench run`, whose help describes it. Also:

    - `batch_records` None is about 1 MiB of payload; without `records` and `seconds` a run lasts 3 s.
    - `write` and `read` may be in a thread that blocks (`netstack.blocking`) instead of a trio task.
    - `warmup_s` is excluded from the window of an unlimited run, and from the latencies of a paced one; at most a third
      of the run.
    - `spin_s` is how long a reader, or a writer without a buffer, spins before it parks.
    - `memory_bytes` None is the memory that the buffers of an end need.
    - `queue_bytes` None is the rate times the round trip, and at least 128 KiB (`shaped_line.Shape`).
    """

    ENGINE_KIND: ClassVar[str] = "local"
    """The kind of processes of the two ends: `local`, `hosts`, `spark` or `flink`."""

    START_S: ClassVar[float] = 0.75
    """Time of a run besides its length: two Python processes import numpy and trio and connect."""

    records: int | None = None
    seconds: float | None = None
    record_bytes: int = _RECORD_BYTES
    emit: Emit = "record"
    batch_records: int | None = None
    read: Read = "record"
    write: Write = "task"
    channels: int = 1
    connections: int = 1
    gates: Gates = "one"
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
    queue_bytes: int | None = None
    loss: float = 0.0
    jitter_s: float = 0.0
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
    checkpoint_interval_s: float = _CHECKPOINT_INTERVAL_S

    def __post_init__(self) -> None:
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
            ("--queue", self.queue_bytes, 1),
            ("--memory", self.memory_bytes, 1),
        )
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"--seconds {self.seconds}: give more than 0")
        for flag, rate in (("--rate", self.rate_per_s), ("--consume-rate", self.consume_rate_per_s)):
            if rate is not None and not rate > 0:
                raise ConfigError(f"{flag} {rate}: give more than 0 records a second")
        if not (0 <= self.loss < 1 and self.jitter_s >= 0):
            raise ConfigError(
                f"--loss {self.loss:.0%}, --jitter {self.jitter_s:g}s: give 0% to below 100%, and 0s or more"
            )
        if self.queue_bytes is not None and self.link_bytes_per_s is None:
            raise ConfigError(
                "--queue without --link-rate: a line without a limit has no queue; give the rate, or --network"
            )
        if self.transport == "tls" and self.is_impaired:
            raise ConfigError(f"--transport tls with {self.line_flags[0]} is not measured: leave one out")
        if self.verify == "sample" and (self.rate_per_s is not None or self.input_path is not None):
            raise ConfigError("--verify sample with --rate or --input: every record is verified there; leave one out")
        if self.verify == "sample" and self.ENGINE_KIND != "local":
            raise ConfigError("--verify sample is for two processes on this machine: leave it or the hosts out")
        if self.read != "record" and (self.emit != "record" or self.ENGINE_KIND != "local"):
            raise ConfigError(f"--read {self.read} is for --emit record between two processes; leave it out")
        if self.write != "task" and (self.emit != "record" or self.connections > 1 or self.ENGINE_KIND != "local"):
            raise ConfigError(
                f"--write {self.write} is for --emit record over one connection between two processes; leave it out"
            )
        if self.write == "blocking" and self.input_path is not None:
            raise ConfigError("--write blocking is for generated records; leave --input or it out")
        if self.connections > 1 and self.ENGINE_KIND != "hosts":
            if self.channels % self.connections:
                raise ConfigError(
                    f"--connections {self.connections} with --channels {self.channels}: give a multiple, so that each"
                    " connection has the same number"
                )
            if self.emit == "arrow" or self.input_path is not None or self.ENGINE_KIND != "local":
                raise ConfigError(
                    "--connections is for --hosts, or for generated records between two processes; leave it out"
                )
        if self.gates == "each":
            self._check_gates()
        if self.profile and self.ENGINE_KIND != "local":
            raise ConfigError("--profile profiles two processes on this machine: leave it or the hosts out")
        if self.profile and (self.connections > 1 or "blocking" in (self.read, self.write)):
            raise ConfigError(
                "--profile profiles one event loop per side: leave --connections, --read and --write blocking out"
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
        if self.input_path is not None and self.emit == "batch":
            raise ConfigError("--emit batch with --input: rows are records or columnar batches; give record or arrow")
        if self.input_path is not None and self.record_bytes != _RECORD_BYTES:
            raise ConfigError("--record-bytes with --input: the sizes of rows are given; leave one of them out")
        if self.emit == "arrow" and self.record_bytes % 8:
            raise ConfigError(f"--record-bytes {self.record_bytes} with --emit arrow: give a multiple of 8 (int64)")

    def _check_gates(self) -> None:
        plain = ("record", "record", 1, "none")
        if self.ENGINE_KIND not in ("local", "flink") or plain != (
            self.emit,
            self.read,
            self.connections,
            self.checkpoints,
        ):
            raise ConfigError(
                "--gates each is for single records over one connection between two processes: leave --emit, --read,"
                " --connections, --checkpoints and the hosts out"
            )

    def _check_checkpoints(self) -> None:
        if self.checkpoints not in get_args(Checkpoints):
            raise ConfigError(f"--checkpoints {self.checkpoints}: give one of {', '.join(get_args(Checkpoints))}")
        if self.ENGINE_KIND not in ("local", "flink") and (self.checkpoints != "none" or self.memory_bytes is not None):
            raise ConfigError("--checkpoints and --memory are for two processes on this machine; leave them out")
        if self.checkpoints == "none":
            if self.checkpoint_interval_s != _CHECKPOINT_INTERVAL_S:
                raise ConfigError("--checkpoint-interval is for --checkpoints aligned or unaligned; leave it out")
            return
        if not self.checkpoint_interval_s > 0:
            raise ConfigError(f"--checkpoint-interval {self.checkpoint_interval_s:g}s: give more than 0")
        plain = ("record", "record", "task", 1, True, None, False)
        chosen = (self.emit, self.read, self.write, self.connections, self.credit, self.input_path, self.profile)
        if chosen != plain:
            raise ConfigError(
                f"--checkpoints {self.checkpoints} is for single generated records over one connection with credit:"
                " leave --emit, --read, --write, --connections, --credit, --input and --profile out"
            )

    @property
    def run_id(self) -> str:
        """Twelve hex digits that are equal exactly if all settings are."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def rows(self) -> str:
        """The kind of records in words."""
        return (
            f"rows of {self.input_path}" if self.input_path else f"{format_size(self.record_bytes, space=' ')} records"
        )

    @property
    def is_impaired(self) -> bool:
        """Whether the connection imitates a line."""
        return bool(self.line_flags)

    @property
    def line_flags(self) -> list[str]:
        """The flags that make the connection imitate a line."""
        line = {
            "--round-trip": self.round_trip_s,
            "--link-rate": self.link_bytes_per_s,
            "--queue": self.queue_bytes,
            "--loss": self.loss,
            "--jitter": self.jitter_s,
        }
        return [flag for flag, value in line.items() if value]

    @property
    def effective_batch_records(self) -> int:
        """Records in one batch: the setting, else about 1 MiB of payload."""
        return self.batch_records or max(1, (1 << 20) // self.record_bytes)


RunOnce = Callable[..., Mapping[str, Any]]
"""Makes one run from its settings, and returns its document."""
