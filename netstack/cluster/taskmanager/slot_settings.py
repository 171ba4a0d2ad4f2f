"""Settings of slot processes, and network settings of jobs as documents.

Takes: settings of a TaskManager; a `NetworkConfig` or its document. Gives: settings of one slot; the document, or the
checked `NetworkConfig`.
"""

from __future__ import annotations

import dataclasses
import errno
import signal
import socket
import struct
from typing import TYPE_CHECKING, Final

from ...base.config import NetworkConfig, slot_memory_bytes
from ...base.errors import ConfigError
from ...base.text.safe_text import safe_repr
from ...network.kept_partitions import KeptTogether, folder_name
from ..control.codec import Plain

if TYPE_CHECKING:
    from .config import TaskManagerConfig

BUFFER_OVERHEAD_BYTES: Final = 560
"""Python's overhead of a used buffer in addition to its bytes (measured: 553)."""


def counted_bytes(config: NetworkConfig) -> int:
    """Returns the memory that a job with its own network settings reserves: at least half of its real maximum.

    So buffers shorter than 560 bytes count for more than their length.
    """
    overhead = config.memory_bytes // config.segment_size_bytes * BUFFER_OVERHEAD_BYTES
    return max(config.memory_bytes, overhead)


def config_of(document: Plain) -> NetworkConfig:
    """Returns the network settings of a document.

    Raises:
        ConfigError: a value is invalid or has another type, or a name is unknown.
    """
    fields = {field.name: field for field in dataclasses.fields(NetworkConfig)}
    for name in document:
        if name not in fields:
            raise ConfigError(f"{safe_repr(name, 60)} is not a network setting")
    for field in fields.values():
        value = document.get(field.name, field.default)
        kinds = [kind for name in str(field.type).split(" | ") for kind in _CONFIG_TYPES[name]]
        if type(value) not in kinds or value != value:  # the second condition rejects NaN
            raise ConfigError(
                f"{field.name}={safe_repr(value, 60)} of the job's network settings is not of type {field.type}"
            )
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
"""CLOCK_MONOTONIC in nanoseconds at the start of the shared memory."""

STACK_SIGNAL: Final = signal.SIGRTMIN + 5
"""Signal that makes the process write the stack of its main thread; rarely used by other programs."""

PORT_TAKEN: Final = errno.EADDRINUSE
"""Exit code of a slot process whose port is in use by another process."""

METRICS_TAKEN: Final = PORT_TAKEN + 1
"""Exit code of a slot process whose metrics port is in use by another process."""

SLOTS_AT_MOST: Final = 256
"""Maximum number of slot processes of a TaskManager: about 5 GiB of memory when all run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """Settings of all slot processes of a TaskManager.

    Attributes:
        config: settings of the whole TaskManager; each slot gets its share of the memory.
        process_memory_bytes: limit of the data of a slot process; None: no limit.
        folder: prefix of the folders in which supervisor and slots store partitions, one for each network environment.

    Raises:
        ConfigError: there are more than `SLOTS_AT_MOST` slots.
    """

    config: TaskManagerConfig
    process_memory_bytes: int | None = None
    folder: str = dataclasses.field(default_factory=folder_name)

    def __post_init__(self) -> None:
        if self.config.slots > SLOTS_AT_MOST:
            raise ConfigError(
                f"--slots {self.config.slots}: each slot is a process, and the maximum is {SLOTS_AT_MOST}; give fewer"
                " slots, or --slots-in loop"
            )

    @property
    def memory_bytes(self) -> int:
        """Memory for the network buffers of a slot."""
        return slot_memory_bytes(self.config.memory_bytes, self.config.slots)

    def together(self, environment: str) -> KeptTogether:
        """Returns where slots store the partitions of this network environment."""
        return KeptTogether(f"{self.folder}-{environment}", "", None)

    def slot_config(self, slot: int, url: str, prefix: str) -> TaskManagerConfig:
        """Returns the settings of one slot; `prefix` is the prefix of its file names."""
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
