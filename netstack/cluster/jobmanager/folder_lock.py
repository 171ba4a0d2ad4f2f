"""The lock of a JobManager's folder: one JobManager at a time, and who it is.

Takes: the lock's path. Gives: an open file, whether it is locked, its holder, a sign of life for a standby.

Rules: only the user of the JobManager can open the lock, so no other user can hold it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TextIO

from ...base.text.safe_text import safe_text


def open_lock(path: Path) -> TextIO:
    """Opens a lock that only this user can open, and so hold. Raises OSError."""
    lock = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a+")  # noqa: SIM115
    with contextlib.suppress(OSError):  # it belongs to another user
        os.fchmod(lock.fileno(), 0o600)  # that of 0.4.0 could be opened, and so held, by everybody
    return lock


def holder_of(lock: TextIO) -> str:
    """Names the process that holds a lock: by the kernel's list, or else as the lock says."""
    lock.seek(0)
    number = safe_text(lock.read(64).strip(), 20) or "unknown"
    inode = str(os.fstat(lock.fileno()).st_ino)
    with contextlib.suppress(OSError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                number = words[4]
    what = f"process {number}"
    with contextlib.suppress(OSError):
        folder = Path("/proc", number)
        what += f", {safe_text((folder / 'comm').read_text().strip())}, of user {folder.stat().st_uid}"
    return what


def sign_of_life(folder: str | Path) -> tuple[int, int] | None:
    """Returns a value that changes while the folder's JobManager is alive; None if the folder is free."""
    try:
        with open(Path(folder) / "lock", "r+") as lock:
            if try_lock(lock):
                return None
            status = os.fstat(lock.fileno())
            return status.st_ino, status.st_mtime_ns
    except OSError:
        return None


def try_lock(file: TextIO) -> bool:
    """Locks a file. Returns whether no other process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
