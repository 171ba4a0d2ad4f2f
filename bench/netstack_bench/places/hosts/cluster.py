"""The cluster of one run over hosts: a JobManager in this process, and the daemons that it connects to.

The JobManager does not listen: it dials. A daemon offers exactly the slots of the run, so that all slots belong to the
run, which decides where each subtask runs (`Matrix.placed`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from netstack.base.errors import ConnectionLost, NetstackError, RequestRefused
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.resource_manager.taskmanagers import ConnectedTaskManager
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.network.connection.authentication import Secret

from .matrix import Matrix
from .spec import MeshSpec

CONNECT_TIMEOUT_S: Final = 10.0

logging.getLogger("netstack.jobmanager").addHandler(logging.NullHandler())  # its warnings become the run's error


@final
@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon of this run: its dialled `host:port` address and its TaskManager in the JobManager."""

    address: str
    taskmanager: ConnectedTaskManager

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the daemon reported about itself."""
        return self.taskmanager.facts

    @property
    def lost_because(self) -> str:
        """Why the daemon was lost; empty while it is connected."""
        return self.taskmanager.lost_because

    @property
    def name(self) -> str:
        """Its name in the JobManager."""
        return self.taskmanager.location.name


@final
@dataclass(frozen=True, slots=True)
class Mesh:
    """The JobManager of a run and its daemons, in the order of the hosts."""

    jobmanager: JobManager
    daemons: tuple[Daemon, ...]


@asynccontextmanager
async def open_mesh(
    spec: MeshSpec, *, secret: Secret | None = None, name: str = "", connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> AsyncIterator[Mesh]:
    """Opens a JobManager and connects to the daemons of a run.

    All share a secret unless they are on loopback. `name` is that of this coordinator in the daemons' logs, by default
    the host's name. Each daemon has to answer within `connect_timeout_s`.

    Raises:
        ConnectionLost: a daemon cannot be reached, or works for another JobManager; the text names it.
        NetstackError: a daemon refused, or has too few slots.

    Cancellation, and the end of the block: the daemons close what remains of the run, and are free for the next.
    """
    matrix = Matrix(spec)
    config = JobManagerConfig(listen=f"memory://bench-{secrets.token_hex(8)}", name=name)
    async with open_jobmanager(config) as jobmanager:
        daemons = []
        for index, host in enumerate(spec.parsed_hosts):
            try:
                taskmanager = await jobmanager.adopt(
                    host.address, secret=secret, slots=matrix.slots(index), connect_timeout_s=connect_timeout_s
                )
            except (ConnectionLost, RequestRefused) as error:
                raise _named(error, host.address) from error
            daemons.append(Daemon(host.address, taskmanager))
        yield Mesh(jobmanager, tuple(daemons))


def _named(error: NetstackError, address: str) -> NetstackError:
    text = str(error)
    return type(error)(text if address in text else f"{address}: {text}")
