"""Which processes another one has started."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def slots_of(pid: int) -> set[int]:
    """The processes of the slots of a TaskManager: what its fork server has forked."""
    return {slot for server in fork_servers_of(pid) for slot in children_of(server)}


def fork_servers_of(pid: int) -> list[int]:
    """The fork server of a TaskManager: the only child of its keeper."""
    return [server for keeper in children_of(pid) for server in children_of(keeper, with_ended=False)]


def children_of(pid: int, *, with_ended: bool = True) -> list[int]:
    """The processes whose parent it is, also those that have ended and that it has not waited for."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and (with_ended or state != "Z"):
                children.append(int(stat.parent.name))
    return sorted(children)


def python_workers() -> list[int]:
    """The processes that the Python daemons of a local Spark session, one for each environment, forked for tasks."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    daemons = children_of(gateway.proc.pid, with_ended=False)
    return [worker for daemon in daemons for worker in children_of(daemon, with_ended=False)]
