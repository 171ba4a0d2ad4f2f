"""What a test has left behind: threads, processes, connections, files of kept partitions. Nothing is tidied up first.

Takes: two looks, in front of a test's call and behind its teardown. Gives: what is there that was not.

Not looked at: pipes, which close with the reader or writer that waits at them, and idle threads of trio, which it keeps
for the next call.
"""

from __future__ import annotations

import glob
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SETTLED_S = 30.0
"""A thread or a process that was told to end needs a moment."""

_KINDS = ("socket:", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "/memfd:")


@dataclass(frozen=True)
class Look:
    """What this process has.

    Attributes:
        descriptors: number and what it is.
        processes: its children.
        threads: of its own.
        folders: of kept partitions.
    """

    descriptors: frozenset[str] = field(default_factory=lambda: frozenset(_descriptors()))
    processes: frozenset[str] = field(default_factory=lambda: frozenset(_processes()))
    threads: frozenset[str] = field(default_factory=lambda: frozenset(_threads()))
    folders: frozenset[str] = field(default_factory=lambda: frozenset(_folders()))

    def since(self, before: Look) -> list[str]:
        """What is here, and was not before."""
        return sorted(
            (self.descriptors - before.descriptors)
            | (self.processes - before.processes)
            | (self.threads - before.threads)
            | (self.folders - before.folders)
        )


def left_since(before: Look) -> list[str]:
    """What is left behind after a moment."""
    until = time.monotonic() + SETTLED_S
    while (left := Look().since(before)) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def _descriptors() -> list[str]:
    actual = []
    for number in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if what.startswith(_KINDS):
            actual.append(f"descriptor {number}, {what}")
    return actual


def _processes() -> list[str]:
    actual = []
    for task in os.listdir("/proc/self/task"):
        try:
            children = Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in children:
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            actual.append(f"process {child}, {line[:200]}")
    return actual


def _threads() -> list[str]:
    return [f"thread {each.name} ({each.ident})" for each in threading.enumerate() if not each.name.startswith("Trio ")]


def _folders() -> list[str]:
    return [f"folder {each}" for each in glob.glob(f"{tempfile.gettempdir()}/netstack-shuffle-{os.getpid()}-*")]
