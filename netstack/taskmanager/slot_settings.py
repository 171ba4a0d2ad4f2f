"""Settings of slots and networks: what a supervisor and the processes of its slots agree on, and what comes with a job.

Takes: settings of a TaskManager; a `NetworkConfig`. Gives: settings of one slot; a document, and a checked
`NetworkConfig` from one that came.
"""

from __future__ import annotations

import dataclasses
import errno
import signal
import socket
import struct
from typing import TYPE_CHECKING, Final

from ..config import MIB, NetworkConfig
from ..control.codec import Plain
from ..errors import ConfigError
from ..runtime.kept import KeptTogether, folder_name
from ..shown import shown

if TYPE_CHECKING:
    from .config import TaskManagerConfig


BUFFER_OVERHEAD_BYTES: Final = 560
"""What Python needs for a buffer beside its bytes, once it is used (measured: 553)."""


def counted_bytes(config: NetworkConfig) -> int:
    """What a job with settings of its own takes of a TaskManager's memory: at least half of what it may really take.

    So buffers of less than 560 bytes count for more than their bytes.
    """
    overhead = config.memory_bytes // config.segment_size_bytes * BUFFER_OVERHEAD_BYTES
    return max(config.memory_bytes, overhead)


def config_document(config: NetworkConfig) -> Plain:
    """Settings as they travel."""
    return dataclasses.asdict(config)


def config_of(document: Plain) -> NetworkConfig:
    """Settings that came.

    Raises:
        ConfigError: a value cannot work, or is of another type, or a name is unknown here.
    """
    fields = {field.name: field for field in dataclasses.fields(NetworkConfig)}
    for name in document:
        if name not in fields:
            raise ConfigError(f"{shown(name, 60)} is no setting of a network")
    for field in fields.values():
        value = document.get(field.name, field.default)
        kinds = [kind for name in str(field.type).split(" | ") for kind in _CONFIG_TYPES[name]]
        if type(value) not in kinds or value != value:  # no number: it would poison every sum it is in
            raise ConfigError(f"{field.name}={shown(value, 60)} of the job's settings is no {field.type}")
    return NetworkConfig(**document)


_CONFIG_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


HEARTBEAT_S: Final = 0.25
HEARTBEAT: Final = struct.Struct("<q")
"""CLOCK_MONOTONIC in nanoseconds, at the beginning of the shared memory."""

STACK_SIGNAL: Final = signal.SIGRTMIN + 5
"""Has the process write the stack of its main thread; a number that programs hardly use."""


PORT_TAKEN: Final = errno.EADDRINUSE
"""Exit code of a slot process that cannot listen at its port, because another process does."""

SLOTS_AT_MOST: Final = 256
"""Of a TaskManager whose slots are processes: some 5 GiB of memory when all of them run."""

LEAST_BYTES: Final = 16 * MIB
"""Of a slot: room for connections to thirty other slots, each of which holds sixteen buffers of 32 KiB ready."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """What every slot process of a TaskManager is given.

    Attributes:
        config: of the whole TaskManager; a slot gets its share of the memory.
        process_memory_bytes: the most data that a slot process may hold; None has no limit.
        folder: what the names of the folders begin with in which supervisor and slots keep partitions: one folder for
            each network environment.

    Raises:
        ConfigError: there are more than `SLOTS_AT_MOST` slots.
    """

    config: TaskManagerConfig
    process_memory_bytes: int | None = None
    folder: str = dataclasses.field(default_factory=folder_name)

    def __post_init__(self) -> None:
        """Refuses more slots than there should be processes."""
        if self.config.slots > SLOTS_AT_MOST:
            raise ConfigError(
                f"--slots {self.config.slots}: each slot is a process, and a TaskManager has {SLOTS_AT_MOST} of them at"
                " most; give --slots-in loop, or fewer slots"
            )

    @property
    def memory_bytes(self) -> int:
        """For the network buffers of a slot: its share, but at least `LEAST_BYTES` of those of all.

        Only what is used takes memory; buffers that connections hold ready are used when records come.
        """
        return max(self.config.memory_bytes // self.config.slots, min(LEAST_BYTES, self.config.memory_bytes))

    def together(self, environment: str) -> KeptTogether:
        """Where the supervisor finds what slots have kept in a network environment of this name."""
        return KeptTogether(f"{self.folder}-{environment}", "", None)

    def slot_config(self, slot: int, url: str, prefix: str) -> TaskManagerConfig:
        """The settings of one slot; `prefix` is what the names of its files begin with."""
        config = self.config
        network = config.network
        if network.shuffle_disk_bytes is not None:
            network = dataclasses.replace(network, shuffle_disk_bytes=network.shuffle_disk_bytes // config.slots)
        return dataclasses.replace(
            config,
            listen=url,
            control=None,
            jobmanager=None,
            name=config.name or socket.gethostname(),
            slots=1,
            memory_bytes=self.memory_bytes,
            network=network,
            in_slot=slot,
            kept_folder=self.folder,
            kept_prefix=prefix,
        )
