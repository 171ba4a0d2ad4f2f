"""Settings of a TaskManager's network: frozen, with units in the names.

Takes: keyword arguments. Gives: a checked `NetworkConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from .errors import ConfigError
from .setting_types import check_types

KIB = 1024
MIB = 1024 * KIB
NATIVE_DIALECT = "netstack"
DEFAULT_LATENCY_INTERVAL_S: Final = 0.2
FLINK_DIALECT = "flink-2.3.0"
_MAX_COUNT = (1 << 31) - 1
_COUNTS = (
    "exclusive_buffers_per_channel",
    "floating_buffers_per_gate",
    "spare_floating_buffers_per_gate",
    "max_channels_per_connection",
)
_DURATIONS = (
    "buffers_request_timeout_s",
    "debloat_period_s",
    "partition_request_timeout_s",
    "connect_timeout_s",
    "handshake_timeout_s",
    "heartbeat_timeout_s",
)
_MOST_BUFFERS_PER_CHANNEL: Final = 10  # a constant in 2.x, the default in 1.x
_IN_EVERY_FLINK: Final = {"spare_floating_buffers_per_gate": 0, "spin_s": 0.0}
FLINK_CONSTANTS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "2.3": {
            "exclusive_buffers_per_channel": 2,
            "floating_buffers_per_gate": 8,
            "max_overdraft_buffers_per_partition": 20,
            "max_buffers_per_channel": _MOST_BUFFERS_PER_CHANNEL,
            **_IN_EVERY_FLINK,
        },
        "1.x": _IN_EVERY_FLINK,
    }
)
"""By version of Flink: settings that are constants there."""
PROFILES: Final[Mapping[str, str | None]] = MappingProxyType({"netstack": None, "flink": "2.3", "flink-1.x": "1.x"})
"""The values of `--as`, with the version of Flink that each one selects."""

LEAST_SLOT_BYTES: Final = 16 * MIB
"""Minimum memory of a slot process: connections to thirty other slots with sixteen buffers of 32 KiB each."""

_FLINK_STARTING_SEGMENT_BYTES: Final = 1024
MAX_GRACE_S = 3600.0
SHUFFLE_COMPRESSIONS = ("auto", "lz4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """How a TaskManager uses memory and the network.

    Attributes:
        segment_size_bytes: size of one network buffer. Larger buffers are faster for bulk data (fewer frames per byte);
            smaller ones waste less memory when many channels hold partly filled buffers.
        memory_bytes: total size of all network buffers; reserved as address space at start, touched on first use.
        exclusive_buffers_per_channel: receive buffers owned by each remote channel, which are its initial credit. With
            0 an idle channel holds none: its producer announces its backlog and gets floating buffers for it.
        floating_buffers_per_gate: receive buffers that the channels of a gate share, assigned by backlog.
        spare_floating_buffers_per_gate: additional floating buffers that a gate borrows at most while its reader waits
            for data and nobody else needs them. It takes 22, or on a long line what it reads in four round trips, so
            that the line is full. It returns them when others need them, and when its reader is the bottleneck, so that
            barriers do not wait behind more data.
        max_required_buffers_per_gate: upper bound on the buffers guaranteed to one gate. Above it, channels get fewer
            exclusive buffers, down to none, and share the rest as floating buffers. None means no bound.
        credit_based: False disables credit, as before Flink 1.5, for comparison: a channel without a free buffer stops
            the reads of its whole connection. Set `heartbeat_interval_s=None` on both sides too, because a connection
            that is not read answers no pings.
        max_buffers_per_channel: a partition becomes unavailable while one of its subpartitions holds this many buffers,
            so that one slow consumer cannot take the whole pool. None means no quota.
        max_overdraft_buffers_per_partition: buffers that one record may take beyond a full pool.
        buffers_request_timeout_s: how long a new gate or connection waits for guaranteed buffers that others still
            hold.
        debloat_target_s: shrinks the buffers of producers so that the data in flight to a gate takes about this long to
            consume. None disables debloating.
        debloat_period_s: interval between computations of the buffer size while data arrives.
        debloat_samples: the moving average of the buffer size gives the newest sample the weight 2 / (samples + 1).
        debloat_threshold_percent: smaller changes of the buffer size are not announced.
        debloat_min_buffer_bytes: the smallest buffer size that debloating announces.
        debloat_start_buffer_bytes: the initial buffer size of a gate; None means whole segments.
        partition_request_timeout_s: how long a producer waits for a requested partition to be created.
        partition_request_retries: how often a consumer repeats its request when a Flink producer does not find the
            partition: after 100 ms, then after twice as long each time, at most 10 s. netstack producers answer once,
            after `partition_request_timeout_s`, so they need no retries.
        connect_timeout_s: limit for dialling and the handshake together.
        connect_retry_s: how long to retry dialling if nobody listens, or the peer closes the connection before its
            hello, as while a process is replaced. 0 tries once.
        handshake_timeout_s: how long an accepted connection may take to complete the handshake.
        heartbeat_interval_s: a connection silent for this long gets a ping; None disables pings.
        heartbeat_timeout_s: a connection that has not answered for this long is declared lost.
        resume_grace_s: how long a broken connection is redialled and resumed without lost or repeated data. Both ends
            need a grace time; the shorter one applies. 0 disables this: a cut fails the channels at once. The sender
            keeps a copy of unacknowledged data (at most 4 MiB per connection, beside `memory_bytes`), and the loss of a
            host is detected later by this time.
        max_channels_per_connection: upper bound on the channels that one peer can open on a connection.
        max_record_bytes: the longest record. Both the writer and the reader refuse a longer one before they allocate
            memory for it. Each end holds a record twice, as an object and as bytes. At least the segment size, so that
            records that fit a buffer need no check.
        spill_threshold_bytes: a spanning record larger than this is assembled in a temporary file.
        spill_directory: folder of these files; None means the system's temporary folder.
        shuffle_directory: existing folder for the files of blocking and hybrid partitions; None means the system's
            temporary folder. Files left by dead processes are removed.
        shuffle_disk_bytes: upper bound on the disk space of all these partitions; None means the free space of the
            disk.
        shuffle_compression: "lz4" compresses every buffer that becomes smaller, "none" compresses none. "auto"
            compresses while that takes less time than writing the saved bytes would, judged by the times measured so
            far, or when less than an eighth of the disk or of `shuffle_disk_bytes` is free. If the network is slower
            than the disk, give "lz4".
        sort_buffer_bytes: memory in which the writer of a blocking or hybrid partition sorts its data by subpartition,
            in portions of half this size.
        sort_min_subpartitions: a partition with fewer subpartitions has one file for each; with this many or more it
            has a single file.
        read_memory_bytes: memory for data read from files and not yet sent, beside `memory_bytes`.
        spin_s: longest time that a reader, or a writer without a buffer, polls before it parks; 0 disables polling. A
            wake-up costs 20 to 50 us, and a processor that slept runs two to three times slower for a while. A task
            polls only if recent waits were shorter than this on average, for at most a few average waits, on plain
            sockets, and while neither other tasks nor (as far as it can detect) other processes need the processor. So
            an idle connection costs nothing, but one record per millisecond occupies an otherwise idle core. 0.0002
            covers the round trips of credit only. A writer never polls for longer than that.
        emulates: the version of Flink whose behaviour this TaskManager copies; set it through `flink`, which also sets
            the related constants. All channels of a writer are then flushed once per buffer timeout (by default
            netstack flushes a channel at once after a quiet timeout, and then at most once per timeout); each record is
            preceded by Flink's tag and timestamp, and runs are not used; a writer waits as soon as the pool is empty,
            even if the open buffer has room; producers do not announce expected data. Both ends need the same setting.
        checksum: whether this side requests a CRC-32 of the payload of every buffer (costs about 15 % of throughput).
        dialect: the protocol: "netstack" between netstack processes, "flink-2.3.0" with TaskManagers of a Flink cluster
            that use the same segment size. Flink's protocol has no checksums and no pings, and requires credit.
    """

    segment_size_bytes: int = 32 * KIB
    memory_bytes: int = 64 * MIB
    exclusive_buffers_per_channel: int = 2
    floating_buffers_per_gate: int = 8
    spare_floating_buffers_per_gate: int = 502
    max_required_buffers_per_gate: int | None = None
    credit_based: bool = True
    max_buffers_per_channel: int | None = None
    max_overdraft_buffers_per_partition: int = 5
    buffers_request_timeout_s: float = 30.0
    debloat_target_s: float | None = None
    debloat_period_s: float = 0.2
    debloat_samples: int = 20
    debloat_threshold_percent: int = 25
    debloat_min_buffer_bytes: int = 256
    debloat_start_buffer_bytes: int | None = None
    partition_request_timeout_s: float = 10.0
    partition_request_retries: int = 8
    connect_timeout_s: float = 10.0
    connect_retry_s: float = 0.0
    handshake_timeout_s: float = 10.0
    heartbeat_interval_s: float | None = 10.0
    heartbeat_timeout_s: float = 50.0
    resume_grace_s: float = 0.0
    max_channels_per_connection: int = 65_536
    max_record_bytes: int = 256 * MIB
    spill_threshold_bytes: int = 5 * MIB
    spill_directory: str | None = None
    shuffle_directory: str | None = None
    shuffle_disk_bytes: int | None = None
    shuffle_compression: str = "auto"
    sort_buffer_bytes: int = 8 * MIB
    sort_min_subpartitions: int = 4
    read_memory_bytes: int = 32 * MIB
    spin_s: float = 0.002
    emulates: str | None = None
    checksum: bool = False
    dialect: str = NATIVE_DIALECT

    def __post_init__(self) -> None:
        check_types(self)
        if not 256 <= self.segment_size_bytes <= 16 * MIB:
            raise ConfigError(f"segment_size_bytes={self.segment_size_bytes}; give 256 to {16 * MIB}")
        if self.memory_bytes < 4 * self.segment_size_bytes:
            raise ConfigError(
                f"memory_bytes={self.memory_bytes} holds fewer than 4 segments of {self.segment_size_bytes} bytes;"
                f" raise it to at least {4 * self.segment_size_bytes}"
            )
        if not self.segment_size_bytes <= self.max_record_bytes <= _MAX_COUNT:
            raise ConfigError(
                f"max_record_bytes={self.max_record_bytes}; give segment_size_bytes ({self.segment_size_bytes}) to"
                f" {_MAX_COUNT}"
            )
        for name, least in (
            ("exclusive_buffers_per_channel", 0),
            ("floating_buffers_per_gate", 1),
            ("spare_floating_buffers_per_gate", 0),
            ("max_overdraft_buffers_per_partition", 0),
            ("max_channels_per_connection", 1),
            ("partition_request_retries", 0),
            ("spill_threshold_bytes", 100 * KIB),
            ("debloat_samples", 1),
            ("debloat_threshold_percent", 0),
            ("debloat_min_buffer_bytes", 1),
            ("sort_buffer_bytes", 64 * KIB),
            ("sort_min_subpartitions", 1),
            ("read_memory_bytes", MIB),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}; the minimum is {least}")
        for name in _COUNTS:
            if getattr(self, name) > _MAX_COUNT:
                raise ConfigError(
                    f"{name}={getattr(self, name)}; the maximum is {_MAX_COUNT}: the protocol sends it as 31 bits"
                )
        if self.max_buffers_per_channel is not None and self.max_buffers_per_channel < 2:
            # The open buffer of a subpartition counts: with 1, it would block the writer by itself.
            raise ConfigError(f"max_buffers_per_channel={self.max_buffers_per_channel}; give at least 2, or None")
        if self.max_required_buffers_per_gate is not None and self.max_required_buffers_per_gate < 1:
            raise ConfigError(
                f"max_required_buffers_per_gate={self.max_required_buffers_per_gate}; give at least 1, or None"
            )
        for name in _DURATIONS:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}; give a number of seconds above 0")
        for name in ("heartbeat_interval_s", "debloat_target_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value}; give seconds above 0, or None")
        if not 0 <= self.resume_grace_s <= MAX_GRACE_S:
            raise ConfigError(f"resume_grace_s={self.resume_grace_s}; give seconds from 0 (off) to {MAX_GRACE_S:g}")
        if not 0 <= self.connect_retry_s <= MAX_GRACE_S:
            raise ConfigError(f"connect_retry_s={self.connect_retry_s}; give seconds from 0 (never) to {MAX_GRACE_S:g}")
        if not 0 <= self.spin_s <= 1:
            raise ConfigError(f"spin_s={self.spin_s}; give seconds from 0 (never) to 1")
        if not self.credit_based and self.heartbeat_interval_s is not None:
            raise ConfigError(
                "credit_based=False with heartbeat_interval_s: a connection whose reads are paused answers no pings and"
                " would be declared lost; set heartbeat_interval_s=None"
            )
        if self.emulates is not None and self.emulates not in FLINK_CONSTANTS:
            raise ConfigError(f"emulates={self.emulates!r}; give None or one of {', '.join(FLINK_CONSTANTS)}")
        if self.shuffle_compression not in SHUFFLE_COMPRESSIONS:
            raise ConfigError(f"shuffle_compression={self.shuffle_compression!r}; give one of {SHUFFLE_COMPRESSIONS}")
        if self.shuffle_disk_bytes is not None and self.shuffle_disk_bytes < 0:
            raise ConfigError(f"shuffle_disk_bytes={self.shuffle_disk_bytes}; give 0 or more, or None")
        if self.dialect not in (NATIVE_DIALECT, FLINK_DIALECT):
            raise ConfigError(f"dialect={self.dialect}; give {NATIVE_DIALECT!r} or {FLINK_DIALECT!r}")
        if self.dialect == FLINK_DIALECT and self.resume_grace_s:
            raise ConfigError(
                f"dialect={self.dialect!r} with resume_grace_s={self.resume_grace_s}: it cannot resume connections;"
                " set resume_grace_s=0"
            )
        if self.dialect == FLINK_DIALECT and (self.checksum or not self.credit_based):
            raise ConfigError(
                f"dialect={self.dialect!r} with checksum={self.checksum}, credit_based={self.credit_based}: it has no"
                " checksums and requires credit; set checksum=False and credit_based=True"
            )
        start = self.debloat_start_buffer_bytes
        smallest, largest = self.debloat_min_buffer_bytes, self.segment_size_bytes
        if smallest > largest or (start is not None and not smallest <= start <= largest):
            raise ConfigError(
                f"debloat_min_buffer_bytes={smallest}, debloat_start_buffer_bytes={start}: give"
                f" min <= start <= segment_size_bytes ({largest})"
            )

    @classmethod
    def flink(cls, version: str = "2.3", **settings: Any) -> Self:
        """Settings with which a TaskManager behaves like Flink's.

        The dialect stays "netstack"; `emulates` works between netstack processes.

        Args:
            version: "2.3", or "1.x" for clusters whose exclusive, floating and overdraft buffers are configurable.
            settings: other settings that differ from the defaults.

        Raises:
            ConfigError: the version is unknown, or a setting is a constant in this version.
        """
        constants = FLINK_CONSTANTS.get(version)
        if constants is None:
            raise ConfigError(f"version={version!r} of Flink; give one of {', '.join(FLINK_CONSTANTS)}")
        for name, value in constants.items():
            if settings.get(name, value) != value:
                raise ConfigError(f"{name}={settings[name]}: it is always {value} in Flink {version}; omit it")
        like: dict[str, Any] = {"max_buffers_per_channel": _MOST_BUFFERS_PER_CHANNEL, **constants, "emulates": version}
        if version == "2.3":
            largest = settings.get("segment_size_bytes", 32 * KIB)
            like["debloat_start_buffer_bytes"] = min(_FLINK_STARTING_SEGMENT_BYTES, largest)
        return cls(**{**like, **settings})

    @classmethod
    def acting_as(cls, profile: str, **settings: Any) -> Self:
        """Settings of a profile (the values of `--as`): the defaults, or those of `flink`.

        Raises:
            ConfigError: the profile is unknown, or as `flink`.
        """
        if profile not in PROFILES:
            raise ConfigError(f"--as {profile}: give one of {', '.join(PROFILES)}")
        version = PROFILES[profile]
        return cls(**settings) if version is None else cls.flink(version, **settings)

    @property
    def request_retries(self) -> int:
        """`partition_request_retries` in Flink's dialect, 0 otherwise."""
        return self.partition_request_retries if self.dialect == FLINK_DIALECT else 0

    @property
    def has_runs(self) -> bool:
        """Whether records may be encoded as runs (`exchange/record/framing`), which Flink does not know."""
        return self.dialect == NATIVE_DIALECT and not self.as_flink

    def latency_interval_s(self, asked_s: float) -> float:
        """Returns the interval of a source's latency markers in seconds; 0 disables them.

        Markers are disabled in Flink's dialect. With `emulates` they are disabled unless the job sets an interval other
        than the default, because Flink's default of `metrics.latency.interval` is 0.
        """
        is_default = asked_s == DEFAULT_LATENCY_INTERVAL_S
        return 0.0 if self.dialect != NATIVE_DIALECT or (self.as_flink and is_default) else asked_s

    @property
    def as_flink(self) -> bool:
        """Whether this TaskManager emulates Flink."""
        return self.emulates is not None

    @property
    def total_segments(self) -> int:
        """The number of network buffers in `memory_bytes`."""
        return self.memory_bytes // self.segment_size_bytes


def slot_memory_bytes(memory_bytes: int, slots: int) -> int:
    """Returns the memory for network buffers of each slot process of a TaskManager that has this memory in total.

    It is the slot's share, but at least `LEAST_SLOT_BYTES` if the total allows it: only used buffers take memory.
    """
    return max(memory_bytes // slots, min(LEAST_SLOT_BYTES, memory_bytes))
