"""Which processes another one has started."""

from __future__ import annotations

import contextlib
from pathlib import Path


def slots_of(pid: int) -> set[int]:
    """The processes of the slots of a TaskManager: what its fork server has forked."""
    return {slot for server in children_of(pid) for slot in children_of(server)}


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found
