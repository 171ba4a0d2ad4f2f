"""What the Python workers of a session in local mode listen to; an address for workers of streams."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from process_tree import python_workers


def listening() -> dict[str, int]:
    """Ports in the state LISTEN that Python workers hold, and which worker."""
    sockets = {}
    for pid in python_workers():
        with contextlib.suppress(OSError):  # it has ended
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                sockets[os.readlink(entry)] = pid
    actual = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        facts = line.split()
        if facts[3] == "0A" and f"socket:[{facts[9]}]" in sockets:
            actual[facts[1]] = sockets[f"socket:[{facts[9]}]"]
    return actual


def silent(within_s: float = 120.0) -> bool:
    """Whether no worker listens any more: Spark ends those of a failed job within some seconds."""
    until_s = time.monotonic() + within_s
    while listening():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def free_address() -> str:
    """Where nobody listens, and a process that is killed and started again can."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
