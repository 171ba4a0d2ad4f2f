"""How a TaskManager serves.

Takes: values. Gives: frozen, checked settings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from ..config import MIB, NetworkConfig
from ..errors import ConfigError
from ..runtime.authentication import Secret
from ..transport import is_private
from .blob_reader import CACHE_BYTES

CONNECT_TIMEOUT_S: Final = 60.0
"""In the network that jobs share: a TaskManager in which a thousand tasks begin answers late; of one that is gone the
JobManager hears by its link."""

CANCELLATION_TIMEOUT_S: Final = 30.0
"""Flink's `task.cancellation.timeout` is 180 s."""

SLOTS_AT_MOST: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerConfig:
    """How a TaskManager serves.

    Attributes:
        listen: URL of the port for data and, unless `control` is given, for control: `tcp://0.0.0.0:6121`.
        control: URL of a port of its own for control; None has none.
        jobmanager: where to register, `host:port` or a URL; None waits for one that dials in.
        link_in_thread: whether the link to the JobManager has a thread of its own; only tests in virtual time do
            without.
        name: of this TaskManager in reports; the host's if empty.
        slots: how many subtasks of each task it holds at once; a slot holds one subtask of every task of a job.
        memory_bytes: network buffers of all jobs together.
        network: settings of the network that jobs share, but for its memory.
        secret: shared with everybody who may come in; None lets everybody in, and needs a loopback address.
        allow: prefixes of names that may be run beside those that installed packages declare; `*` is everything.
        allow_submitted: whether jobs may bring packages along.
        max_connections: at once, control and data together.
        max_unproven: connections that have not proven the secret yet.
        handshake_timeout_s: for the proof, and for saying what the connection is for.
        heartbeat_timeout_s: a JobManager that is silent for so long is gone, and its jobs are closed.
        cancellation_timeout_s: a slot process whose tasks have not stopped so long after they were cancelled is killed.
        shared_memory: whether slots that are processes of one host reach each other through shared memory.
        in_slot: the slot whose process this is; None: it is no slot's process.
        kept_folder: of a slot's process: see `SlotSettings.folder`.
        kept_prefix: of a slot's process: what the names of its files there begin with.
        blob_cache_bytes: the most that each process keeps of what was offloaded, and of packages of jobs.

    Raises:
        ConfigError: a number that cannot be, or an address that others reach and no secret.
    """

    listen: str = "tcp://127.0.0.1:6121"
    name: str = ""
    control: str | None = None
    jobmanager: str | None = None
    link_in_thread: bool = True
    slots: int = field(default_factory=lambda: max(1, os.cpu_count() or 1))
    memory_bytes: int = 256 * MIB
    network: NetworkConfig = field(default_factory=partial(NetworkConfig, connect_timeout_s=CONNECT_TIMEOUT_S))
    secret: Secret | None = None
    allow: tuple[str, ...] = ()
    allow_submitted: bool = False
    max_connections: int = 1024
    max_unproven: int = 64
    handshake_timeout_s: float = 10.0
    heartbeat_timeout_s: float = 10.0
    cancellation_timeout_s: float = CANCELLATION_TIMEOUT_S
    shared_memory: bool = True
    in_slot: int | None = None
    kept_folder: str = ""
    kept_prefix: str = ""
    blob_cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        """Refuses what cannot work or would be open to everybody."""
        if not 1 <= self.slots <= SLOTS_AT_MOST:
            raise ConfigError(f"--slots {self.slots}: give 1 to {SLOTS_AT_MOST}")
        if self.blob_cache_bytes < 1:
            raise ConfigError(f"--blob-cache {self.blob_cache_bytes}: the least is 1")
        if self.memory_bytes < MIB:
            raise ConfigError(f"--memory {self.memory_bytes}: the least is 1MiB")
        for name in ("handshake_timeout_s", "heartbeat_timeout_s", "cancellation_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: give a number of seconds above 0")
        for url in filter(None, (self.listen, self.control)):
            if self.secret is None and not is_private(url):
                raise ConfigError(
                    f"{url} can be reached from other hosts, and there is no secret: give --secret-file FILE"
                    " (make one with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or listen on 127.0.0.1"
                )
