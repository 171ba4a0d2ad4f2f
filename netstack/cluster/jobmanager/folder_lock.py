"""The lock of a JobManager's folder: one JobManager at a time, and who it is.

Takes: the lock's path. Gives: an open file, whether it is locked, its holder, a sign of life for a standby.

Rules: only the user of the JobManager can open the lock, so no other user can hold it. A network file system may keep
locks on each host alone, so a lock that another host held last counts as held while it is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Final, TextIO

from ...base.text.safe_text import safe_text

RENEW_S: Final = 1.0
"""Interval at which the holder touches the lock."""

_MISSED: Final = 2.5
_LOOK_S: Final = 0.25


def open_lock(path: Path) -> TextIO:
    """Opens a lock that only this user can open, and so hold. Raises OSError."""
    lock = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a+")  # noqa: SIM115
    with contextlib.suppress(OSError):  # it belongs to another user
        os.fchmod(lock.fileno(), 0o600)  # that of 0.4.0 could be opened, and so held, by everybody
    return lock


def holder_of(lock: TextIO) -> str:
    """Names the process that holds a lock: by the kernel's list, or else as the lock says."""
    number, host = _said_by(lock)
    number = number or "unknown"
    if host and host != _this_host():
        return f"process {number} of host {host}"
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
            if try_lock(lock) and not is_of_another_host(lock):
                return None
            status = os.fstat(lock.fileno())
            return status.st_ino, status.st_mtime_ns
    except OSError:
        return None


def take_lock(lock: TextIO) -> None:
    """Writes into a lock which process has it."""
    lock.truncate(0)
    lock.write(f"{os.getpid()} {_this_host()}")
    lock.flush()


def leave_lock(lock: TextIO) -> None:
    """Removes from a lock what `take_lock` has written, unless another process has replaced it. Ignores failures."""
    with contextlib.suppress(OSError, ValueError):
        if _said_by(lock) == (str(os.getpid()), _this_host()):
            lock.truncate(0)


def is_held_elsewhere(lock: TextIO) -> bool:
    """Whether a process of another host holds a lock that is free on this one: it touches the lock.

    Blocks for `_MISSED` touches, unless the lock was not touched for longer by the clock of the file system.
    """
    if not is_of_another_host(lock):
        return False
    touched = os.fstat(lock.fileno()).st_mtime
    probe = Path(f"{lock.name}.{os.getpid()}.probe")
    try:
        probe.write_bytes(b"")
        if probe.stat().st_mtime - touched > _MISSED * RENEW_S:
            return False
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    until_s = time.monotonic() + _MISSED * RENEW_S
    while time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        if os.fstat(lock.fileno()).st_mtime != touched:
            return True
    return False


def is_of_another_host(lock: TextIO) -> bool:
    """Whether a process of another host has taken a lock, and has not left it."""
    host = _said_by(lock)[1]
    return bool(host) and host != _this_host()


def _said_by(lock: TextIO) -> tuple[str, str]:
    """Returns the process and host that a lock names; empty where it names none. 0.4.0 wrote no host."""
    lock.seek(0)
    number, _, host = lock.read(320).strip().partition(" ")
    return safe_text(number, 20), safe_text(host, 256)


def _this_host() -> str:
    return safe_text(socket.gethostname(), 256)


def try_lock(file: TextIO) -> bool:
    """Locks a file. Returns whether no other process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
