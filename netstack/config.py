"""Frozen settings of a TaskManager's network; units are in the names, each default has its reason.

Takes: keyword arguments. Gives: a checked `NetworkConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from .errors import ConfigError

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
_IN_EVERY_FLINK: Final = {"spare_floating_buffers_per_gate": 0, "spin_s": 0.0}
FLINK_CONSTANTS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "2.3": {
            "exclusive_buffers_per_channel": 2,
            "floating_buffers_per_gate": 8,
            "max_overdraft_buffers_per_partition": 20,
            "max_buffers_per_channel": 10,
            **_IN_EVERY_FLINK,
        },
        "1.x": _IN_EVERY_FLINK,
    }
)
"""By version: what nobody can set there."""
PROFILES: Final[Mapping[str, str | None]] = MappingProxyType({"netstack": None, "flink": "2.3", "flink-1.x": "1.x"})
"""What `--as` may be, and which version of Flink that is."""

_FLINK_STARTING_SEGMENT_BYTES: Final = 1024
MAX_GRACE_S = 3600.0
SHUFFLE_COMPRESSIONS = ("auto", "lz4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """How a TaskManager uses memory and the network.

    Attributes:
        segment_size_bytes: size of one network buffer. Larger is faster for bulk data (fewer frames a byte); smaller
            wastes less when many channels each hold a part-filled buffer.
        memory_bytes: all buffers together; reserved as address space at start, touched when first used.
        exclusive_buffers_per_channel: receive buffers that belong to one remote channel: its initial credit. With 0 a
            channel holds none while it is idle: its producer announces what waits, and gets floating buffers for that.
        floating_buffers_per_gate: receive buffers the channels of one gate share, by backlog.
        spare_floating_buffers_per_gate: as many more a gate takes while its reader waits for data and others leave them
            idle: each round trip of credit then carries nearly twice as much. They go back as they are needed
            elsewhere, and when the reader is what holds the stream up: barriers wait behind no more data then.
        max_required_buffers_per_gate: bound on what one gate is promised; above it its channels get fewer exclusive
            buffers, down to none, and the rest of what they would have is shared. None is without a bound.
        credit_based: False receives without credits, as before Flink 1.5, to be measured against: a channel without a
            free buffer stops the reading of its whole connection. Set `heartbeat_interval_s=None` with it, on both
            sides: a connection that is not read from answers no pings.
        max_buffers_per_channel: a subpartition holding this many buffers makes its partition unavailable, so one slow
            consumer does not take the whole pool; None is without such a quota.
        max_overdraft_buffers_per_partition: buffers beyond a full pool that one record may still take.
        buffers_request_timeout_s: how long a new gate or connection waits for buffers that it was promised and that
            others still hold.
        debloat_target_s: shrinks the buffers of this TaskManager's producers so that what is in flight towards a gate
            takes about this long to consume; None leaves them whole.
        debloat_period_s: how often that is computed, while data comes.
        debloat_samples: the moving average of the buffer size weighs the newest by 2 / (samples + 1).
        debloat_threshold_percent: smaller changes are not announced.
        debloat_min_buffer_bytes: buffers are not shrunk below this.
        debloat_start_buffer_bytes: what a gate begins with; None is whole segments.
        partition_request_timeout_s: how long a producer waits for a requested partition to be created.
        partition_request_retries: how often a consumer asks a Flink producer again for a partition that it has not
            found: after 100 ms, then after twice as long each time, 10 s at most. Among netstacks nobody asks twice:
            the answer comes when the producer has waited long enough.
        connect_timeout_s: dialling and the handshake together.
        connect_retry_s: how long it is dialled again where nobody listens, or where whoever answers ends the connection
            before a hello: a process that is just replaced. 0 tries once.
        handshake_timeout_s: how long an accepted stream may take to say who it is.
        heartbeat_interval_s: a silent connection is pinged after this long; None never pings.
        heartbeat_timeout_s: a connection that did not answer for this long is declared lost.
        resume_grace_s: a connection that breaks is dialled again for this long and goes on where it was, nothing lost
            and nothing repeated, if both ends have a grace time; the shorter one counts. 0 is off: a cut fails the
            channels at once. It keeps a copy of what was sent until the peer tells that it has come (4 MiB a
            connection at most, beside `memory_bytes`), and a host that is gone is noticed so much later.
        max_channels_per_connection: bound on what one peer can make us remember.
        max_record_bytes: the longest record. A longer one is refused where it is emitted, and where its length is read,
            before anything is asked for it: at both ends a record is in memory twice, as an object and as its bytes.
            Not below the segment size, so that records that fit a buffer need no check.
        spill_threshold_bytes: a spanning record larger than this is gathered in a temporary file.
        spill_directory: where; None is the system's temporary folder.
        shuffle_directory: where partitions that are kept (blocking and hybrid ones) have their files: an existing
            folder; None is the system's temporary folder. What dead processes left there is removed.
        shuffle_disk_bytes: most of all kept partitions together on disk; None is what the disk has.
        shuffle_compression: of what is kept: "lz4" compresses each buffer that gets smaller, "none" none. "auto" does
            so while that takes less time than writing what it saves, by what both took so far, or where less than an
            eighth of the disk, or of `shuffle_disk_bytes`, is left; through a network slower than the disk give "lz4".
        sort_buffer_bytes: memory of the task that writes a kept partition; what it writes is put in the order of its
            consumers there, in portions of half of that.
        sort_min_subpartitions: with fewer subpartitions each has a file of its own; with as many, or more, all of a
            partition goes to one file.
        read_memory_bytes: what is read from files, and not sent yet, may take beside `memory_bytes`.
        spin_s: longest time in which a reader, or a writer without a buffer, looks for what it waits for before it
            parks; 0 always parks. A wake-up costs 20 to 50 us, and whoever was asleep then runs two to three times as
            slowly for a while. It looks only while the last waits were shorter than this on the average, for a few
            such averages, on plain sockets, and while neither other tasks nor (as far as it can tell) other processes
            want the processor. So an idle connection costs nothing; but a record every millisecond costs an otherwise
            idle core: give 0.0002, which covers round trips of credit, where that is too much. A writer never looks
            for longer than that.
        emulates: a version of Flink, as whose network stack this one behaves; give it through `flink`, which sets what
            else belongs to it. Then a clock flushes all channels of a writer once a buffer timeout (ours: each channel
            at once after a quiet timeout, then once a timeout at most); records have Flink's tag and timestamp in
            front, and none stand in runs; a writer waits as soon as the pool has nothing left, whatever room the open
            buffer has; nothing is told of what a producer expects to send. Both ends need the same.
        checksum: whether this side asks for a CRC-32 over the payload of every buffer (about 15 % of throughput).
        dialect: how its connections speak: "netstack" to others of its kind, "flink-2.3.0" to the task managers of a
            Flink cluster, with the same segment size. Flink's dialect has no checksums, no pings and no way without
            credits.
    """

    segment_size_bytes: int = 32 * KIB
    memory_bytes: int = 64 * MIB
    exclusive_buffers_per_channel: int = 2
    floating_buffers_per_gate: int = 8
    spare_floating_buffers_per_gate: int = 22
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
        """Refuses settings that cannot work, naming each."""
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
                raise ConfigError(f"{name}={getattr(self, name)}; the least is {least}")
        for name in _COUNTS:
            if getattr(self, name) > _MAX_COUNT:
                raise ConfigError(f"{name}={getattr(self, name)}; the most is {_MAX_COUNT}: it travels as 32 bits")
        if self.max_buffers_per_channel is not None and self.max_buffers_per_channel < 2:
            # The buffer a subpartition is still writing counts: with 1, it alone would stop every other.
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
                "credit_based=False with heartbeat_interval_s: a connection that is not read from answers no pings and"
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
                f"dialect={self.dialect!r} with resume_grace_s={self.resume_grace_s}: it cannot go on after a cut; set"
                " resume_grace_s=0"
            )
        if self.dialect == FLINK_DIALECT and (self.checksum or not self.credit_based):
            raise ConfigError(
                f"dialect={self.dialect!r} with checksum={self.checksum}, credit_based={self.credit_based}: it has no"
                " checksums, and credit is part of it; set checksum=False and credit_based=True"
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
        """Settings with which a TaskManager behaves as one of Flink's; among its own kind it needs no other dialect.

        Args:
            version: "2.3", or "1.x" for clusters where exclusive, floating and overdraft buffers can be set.
            settings: others than the defaults.

        Raises:
            ConfigError: an unknown version, or a setting that this version has as a constant.
        """
        constants = FLINK_CONSTANTS.get(version)
        if constants is None:
            raise ConfigError(f"version={version!r} of Flink; give one of {', '.join(FLINK_CONSTANTS)}")
        for name, value in constants.items():
            if settings.get(name, value) != value:
                raise ConfigError(f"{name}={settings[name]}: it is always {value} in Flink {version}; leave it out")
        like: dict[str, Any] = {**constants, "emulates": version}
        if version == "2.3":
            largest = settings.get("segment_size_bytes", 32 * KIB)
            like["debloat_start_buffer_bytes"] = min(_FLINK_STARTING_SEGMENT_BYTES, largest)
        return cls(**{**like, **settings})

    @classmethod
    def acting_as(cls, profile: str, **settings: Any) -> Self:
        """Settings of a profile, as flags name them: the defaults, or `flink` of its version.

        Raises:
            ConfigError: no such profile, or as `flink`.
        """
        if profile not in PROFILES:
            raise ConfigError(f"--as {profile}: give one of {', '.join(PROFILES)}")
        version = PROFILES[profile]
        return cls(**settings) if version is None else cls.flink(version, **settings)

    @property
    def request_retries(self) -> int:
        """`partition_request_retries` in the dialect that has them."""
        return self.partition_request_retries if self.dialect == FLINK_DIALECT else 0

    @property
    def has_runs(self) -> bool:
        """Whether there are runs among its records (`record/framing`): not where Flink reads or writes."""
        return self.dialect == NATIVE_DIALECT and not self.as_flink

    def latency_interval_s(self, asked_s: float) -> float:
        """From one latency marker of a source to the next, in seconds, where its job asks for `asked_s`; 0 is never.

        What behaves as a Flink has none unless a job asks for more than the default, as `metrics.latency.interval` is 0
        there; nor has what Flink reads or writes.
        """
        is_default = asked_s == DEFAULT_LATENCY_INTERVAL_S
        return 0.0 if self.dialect != NATIVE_DIALECT or (self.as_flink and is_default) else asked_s

    @property
    def as_flink(self) -> bool:
        """Whether it behaves as a Flink, whichever."""
        return self.emulates is not None

    @property
    def total_segments(self) -> int:
        """Number of network buffers the memory holds."""
        return self.memory_bytes // self.segment_size_bytes
