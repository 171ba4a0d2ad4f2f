"""Settings of a JobManager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ...base.errors import ConfigError
from ...base.setting_types import check_types
from ...base.transport import is_private
from ...network.connection.authentication import Secret
from ...schedule.descriptors.blob_store import OffloadRule
from ...schedule.graph.settings import AdaptiveSettings
from ...schedule.slots.slots import LoadBalanceMode


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerConfig:
    """Settings of a JobManager.

    Attributes:
        listen: URL at which TaskManagers and clients connect: `tcp://0.0.0.0:6120`.
        folder: where jobs and checkpoints are stored, so that another JobManager can continue them; None: only for the
            lifetime of this JobManager.
        name: name for people; empty: the host name.
        secret: secret shared with TaskManagers and clients; None: no authentication, needs a loopback address.
        client_secret: an additional secret for clients, which does not admit TaskManagers. Clients may also use
            `secret`.
        is_shared: whether every client with `client_secret` may cancel and save all jobs instead of only its own.
        load_balance: how tasks are spread over TaskManagers.
        slot_timeout_s: how long tasks wait for slots before they fail.
        slot_idle_timeout_s: how long a job keeps an unused slot.
        heartbeat_timeout_s: a TaskManager that is silent for this long is lost.
        handshake_timeout_s: limit for proof and greeting.
        max_connections: maximum number of connections.
        max_unproven: maximum number of connections that have not proven the secret.
        max_asks: maximum number of pending requests of one client.
        max_jobs: maximum number of jobs that have not ended.
        max_ended_jobs: number of ended jobs that are remembered.
        checkpoint_roots: checkpoint folders that jobs name, and savepoints that they start from, must lie below one of
            these; empty: anywhere.
        require_tls: whether `listen` and the data ports of all TaskManagers must use `tls+...`.
        datasets_bytes: limit for all kept datasets; the oldest are dropped. None: no limit.
        offload: which parts of descriptors TaskManagers fetch once instead of receiving them with every task.
        adaptive: default settings for the parallelism of adaptive batch jobs.
        is_standby: whether the JobManager waits until no other live JobManager uses the folder.
        takes_up_jobs: whether it continues the jobs that an earlier JobManager left in `folder`. Otherwise they end as
            canceled, and their checkpoints stay.
        is_folder_shared: whether TaskManagers receive the paths of packages in `folder`, to read them directly if they
            share the file system.

    Raises:
        ConfigError: a value is out of range, or the address is reachable from other hosts without a secret.
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
    max_jobs: int = 1024
    max_ended_jobs: int = 256
    checkpoint_roots: tuple[str, ...] = ()
    require_tls: bool = False
    datasets_bytes: int | None = None
    offload: OffloadRule = field(default_factory=OffloadRule)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)
    is_standby: bool = False
    takes_up_jobs: bool = True
    is_folder_shared: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("slot_timeout_s", "slot_idle_timeout_s", "heartbeat_timeout_s", "handshake_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be more than 0 seconds")
        for name in ("max_connections", "max_unproven", "max_asks", "max_jobs", "max_ended_jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: the minimum is 1")
        if self.is_standby and self.folder is None:
            raise ConfigError("a standby JobManager needs the --folder of the JobManager whose jobs it takes over")
        if self.require_tls and "tls" not in self.listen.partition("://")[0].split("+"):
            raise ConfigError(f"{self.listen} does not use TLS, which is required: listen on tls+tcp://ADDR:PORT")
        if self.client_secret is not None:
            if self.secret is None:
                raise ConfigError("a client secret requires a cluster secret for TaskManagers: give both")
            if self.client_secret.reveal() == self.secret.reveal():
                raise ConfigError(
                    "the client secret equals the cluster secret: create another one, or give only the cluster secret"
                )
        if self.secret is None and not is_private(self.listen):
            raise ConfigError(
                f"{self.listen} is reachable from other hosts, and there is no secret: give --secret-file FILE"
                " (create one with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or listen on 127.0.0.1"
            )
