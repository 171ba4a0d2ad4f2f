"""The cluster of one run over hosts: a JobManager in this process, and the daemons that it adopts.

Takes: a `MeshSpec`, the secret that all daemons share. Gives: a `Mesh`, for as long as the block runs.

The JobManager listens to nobody: it dials. A daemon gives as many slots as the run takes there, so that all slots there
are belong to the run, and which subtask is where is the run's to say (`Matrix.placed`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from netstack.errors import ConnectionLost, NetstackError, RequestRefused
from netstack.jobmanager.config import JobManagerConfig
from netstack.jobmanager.service import JobManager, open_jobmanager
from netstack.jobmanager.taskmanagers import ConnectedTaskManager
from netstack.runtime.authentication import Secret

from .matrix import Matrix
from .spec import MeshSpec

CONNECT_TIMEOUT_S: Final = 10.0

logging.getLogger("netstack.jobmanager").addHandler(logging.NullHandler())  # what it warns of is the run's error


@final
@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that works for this run.

    Attributes:
        address: `host:port` as it was dialled.
        taskmanager: as the JobManager knows it.
    """

    address: str
    taskmanager: ConnectedTaskManager

    @property
    def facts(self) -> dict[str, Any]:
        """What it said of itself."""
        return self.taskmanager.facts

    @property
    def lost_because(self) -> str:
        """Why it is not there any more; empty while it is."""
        return self.taskmanager.lost_because

    @property
    def name(self) -> str:
        """Among the TaskManagers of the JobManager."""
        return self.taskmanager.location.name


@final
@dataclass(frozen=True, slots=True)
class Mesh:
    """Made by `open_mesh`.

    Attributes:
        jobmanager: of the run.
        daemons: in the order of the hosts.
    """

    jobmanager: JobManager
    daemons: tuple[Daemon, ...]


@asynccontextmanager
async def open_mesh(
    spec: MeshSpec, *, secret: Secret | None = None, name: str = "", connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> AsyncIterator[Mesh]:
    """Opens a JobManager and adopts the daemons of a run.

    Args:
        spec: names the hosts, and how many slots each gives.
        secret: shared by all daemons; None for daemons on loopback.
        name: of this coordinator, for the daemons' logs; the host's if empty.
        connect_timeout_s: for each daemon to answer.

    Raises:
        ConnectionLost: a daemon cannot be reached, or works for somebody else; the text names it.
        NetstackError: it refused, or has too few slots.

    Cancellation, and the end of the block: the daemons close whatever is left of the run, and are free for the next.
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
    """The same error, whose text names the daemon."""
    text = str(error)
    return type(error)(text if address in text else f"{address}: {text}")
