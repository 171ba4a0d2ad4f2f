"""What a supervisor and the processes of its slots agree on: settings, a clock in shared memory, a signal.

Takes: settings of a TaskManager. Gives: settings of one slot.
"""

from __future__ import annotations

import dataclasses
import errno
import signal
import socket
import struct
from typing import TYPE_CHECKING, Final

from ..config import MIB
from ..errors import ConfigError
from ..runtime.kept import KeptTogether, folder_name

if TYPE_CHECKING:
    from .service import TaskManagerConfig

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
