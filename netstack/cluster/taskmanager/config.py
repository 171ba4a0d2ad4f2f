"""Settings of a TaskManager."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from ...base.config import MIB, NetworkConfig
from ...base.errors import ConfigError
from ...base.setting_types import check_types
from ...base.transport import full_url, is_private, transport_for, url_parts
from ...network.connection.authentication import Secret
from .blob_reader import CACHE_BYTES

CONNECT_TIMEOUT_S: Final = 60.0
"""Connect timeout in the shared network, long because a TaskManager that starts a thousand tasks answers late; the
JobManager detects lost TaskManagers by their links."""

CANCELLATION_TIMEOUT_S: Final = 30.0
"""Flink's `task.cancellation.timeout` is 180 s."""

SLOTS_AT_MOST: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerConfig:
    """Settings of a TaskManager.

    Attributes:
        listen: URL of the port for data and, unless `control` is given, for control: `tcp://0.0.0.0:6121`.
        control: URL of a separate control port; None: no separate port.
        jobmanager: where to register, `host:port` or a URL; None: wait for a JobManager that connects.
        link_in_thread: whether the link to the JobManager runs in its own thread; false only for tests in virtual time.
        name: name of this TaskManager for people; empty: the host name.
        slots: number of slots; a slot runs one subtask of every task of a job.
        memory_bytes: memory for the network buffers of all jobs together.
        network: settings of the shared network, except its memory.
        secret: secret shared with all peers; None: no authentication, needs a loopback address.
        allow: allowed prefixes in addition to those that installed packages declare; `*`: everything.
        allow_submitted: whether jobs may ship packages.
        max_connections: maximum number of control and data connections.
        max_unproven: maximum number of connections that have not proven the secret.
        handshake_timeout_s: limit for proof and route.
        heartbeat_timeout_s: a JobManager that is silent for this long is lost, and its jobs are closed.
        cancellation_timeout_s: a slot process whose tasks have not stopped this long after cancellation is killed.
        shared_memory: whether slot processes of one host exchange data through shared memory.
        in_slot: index of the slot that this process runs; None: it is not a slot process.
        kept_folder: for a slot process: `SlotSettings.folder`.
        kept_prefix: for a slot process: prefix of its file names in that folder.
        blob_cache_bytes: limit of cached offloaded data and packages in each process.

    Raises:
        ConfigError: a value is out of range, or the address is reachable from other hosts without a secret.
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
        check_types(self)
        if not 1 <= self.slots <= SLOTS_AT_MOST:
            raise ConfigError(f"--slots {self.slots}: must be 1 to {SLOTS_AT_MOST}")
        if self.blob_cache_bytes < 1:
            raise ConfigError(f"--blob-cache {self.blob_cache_bytes}: the minimum is 1")
        if self.memory_bytes < MIB:
            raise ConfigError(f"--memory {self.memory_bytes}: the minimum is 1MiB")
        for name in ("handshake_timeout_s", "heartbeat_timeout_s", "cancellation_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be more than 0 seconds")
        for each in () if self.jobmanager is None else self.jobmanager.split(","):
            url = full_url(each)
            transport_for(url)
            parts = url_parts(url)
            if parts.scheme.endswith("tcp") and (not parts.hostname or parts.port is None):
                raise ConfigError(f"--jobmanager {each!r}: needs a host and a port, such as 10.0.0.1:6120")
        for url in filter(None, (self.listen, self.control)):
            if self.secret is None and not is_private(url):
                raise ConfigError(
                    f"{url} is reachable from other hosts, and there is no secret: give --secret-file FILE"
                    " (create one with: head -c 32 /dev/urandom | base64 > FILE;"
                    " chmod 600 FILE), or listen on 127.0.0.1"
                )
