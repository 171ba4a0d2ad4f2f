"""How a JobManager serves.

Takes: values. Gives: frozen settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ..errors import ConfigError
from ..runtime.authentication import Secret
from ..schedule.descriptors.blob_store import OffloadRule
from ..schedule.graph.settings import AdaptiveSettings
from ..schedule.slots.slots import LoadBalanceMode
from ..transport import is_private


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerConfig:
    """How a JobManager serves.

    Attributes:
        listen: URL of its port, for TaskManagers and clients: `tcp://0.0.0.0:6120`.
        folder: where jobs and checkpoints are kept, so that another JobManager may go on with them; None keeps them for
            its own life only.
        name: for people; the host's if empty.
        secret: shared with TaskManagers and clients; None lets everybody in, and needs a loopback address.
        client_secret: another one, for clients: whoever proves it asks and submits, and is no TaskManager. `secret`
            lets clients in as well.
        is_shared: whether everybody who proves `client_secret` may cancel and save all jobs, and not only his own.
        load_balance: how tasks are spread over TaskManagers.
        slot_timeout_s: how long tasks wait for slots before they fail.
        slot_idle_timeout_s: how long a job keeps a slot that it does not need.
        heartbeat_timeout_s: a TaskManager that is silent for so long is lost.
        handshake_timeout_s: for the proof, and for saying who it is.
        max_connections: at once.
        max_unproven: connections that have not proven the secret yet.
        max_asks: questions of one client at a time.
        max_ended_jobs: so many jobs that have ended are remembered.
        checkpoint_roots: folders that jobs name for their checkpoints, and savepoints that they begin from, lie below
            one of these; none allows any.
        require_tls: whether `listen`, and the data ports of all TaskManagers, have to be `tls+...`.
        datasets_bytes: of all datasets that jobs have left; the oldest go. None is no limit but that of the disks.
        offload: which parts of descriptors TaskManagers fetch once each, instead of getting them with every task.
        adaptive: how the parallelism of adaptive batch jobs is decided that say nothing about it.
        is_standby: whether it waits, before it serves, until no other JobManager has the folder, or the one that has it
            is silent.
        is_folder_shared: whether TaskManagers learn where packages are in `folder`, to read those themselves that
            they see.

    Raises:
        ConfigError: a number that cannot be, or an address that others reach and no secret.
    """

    listen: str = "tcp://127.0.0.1:6120"
    folder: str | None = None
    name: str = ""
    secret: Secret | None = None
    client_secret: Secret | None = None
    is_shared: bool = False
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE
    slot_timeout_s: float = 300.0
    slot_idle_timeout_s: float = 50.0
    heartbeat_timeout_s: float = 10.0
    handshake_timeout_s: float = 10.0
    max_connections: int = 4096
    max_unproven: int = 64
    max_asks: int = 64
    max_ended_jobs: int = 256
    checkpoint_roots: tuple[str, ...] = ()
    require_tls: bool = False
    datasets_bytes: int | None = None
    offload: OffloadRule = field(default_factory=OffloadRule)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)
    is_standby: bool = False
    is_folder_shared: bool = True

    def __post_init__(self) -> None:
        """Refuses what cannot work or would be open to everybody."""
        for name in ("slot_timeout_s", "slot_idle_timeout_s", "heartbeat_timeout_s", "handshake_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: give a number of seconds above 0")
        for name in ("max_connections", "max_unproven", "max_asks", "max_ended_jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: the least is 1")
        if self.is_standby and self.folder is None:
            raise ConfigError("a standby JobManager goes on with the jobs of another one: give it the same --folder")
        if self.require_tls and "tls" not in self.listen.partition("://")[0].split("+"):
            raise ConfigError(f"{self.listen} is no address with TLS, which is required: write tls+tcp://ADDR:PORT")
        if self.client_secret is not None:
            if self.secret is None:
                raise ConfigError("a secret for clients alone goes with one for TaskManagers: give both")
            if self.client_secret.reveal() == self.secret.reveal():
                raise ConfigError("the clients' secret is that of the cluster: make another one, or give only that")
        if self.secret is None and not is_private(self.listen):
            raise ConfigError(
                f"{self.listen} can be reached from other hosts, and there is no secret: give --secret-file FILE"
                " (make one with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or listen on 127.0.0.1"
            )
