"""Folders for temporary files that do not outlive their use, and what is left of those whose process was killed.

Takes: a parent folder. Gives: a context manager; removed folders.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import Final

from .errors import NetstackError

_LOCK_NAME: Final = "lock"
"""The file in a folder that its process keeps locked."""


@contextlib.contextmanager
def scratch_folder(parent: str | None = None, prefix: str = "netstack-bench-") -> Iterator[str]:
    """A new folder that is removed at the end of the block, whenever a signal arrives.

    It removes those with the same prefix that killed processes left. `tempfile.TemporaryDirectory` does not, and leaks
    its folder if a signal arrives between its creation and its registration.

    Args:
        parent: where it is created; None: the system's temporary folder.
        prefix: start of its name.

    Raises:
        NetstackError: the disk is full; the system's error names no folder.
    """
    place = parent or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        remove_leftovers(place, prefix)
    path = os.path.join(place, f"{prefix}{secrets.token_hex(8)}")
    lock = -1
    try:
        lock = make_locked(path)
        yield path
    except OSError as error:
        if error.errno != errno.ENOSPC or not str(error.filename or path).startswith(path):
            raise
        raise NetstackError(f"no space is left in {place}; set TMPDIR to a folder on a larger disk") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def folder_until_exit(prefix: str) -> str:
    """A folder as of `scratch_folder` that is removed when the process ends."""
    removing = contextlib.ExitStack()
    atexit.register(removing.close)
    return removing.enter_context(scratch_folder(prefix=prefix))


def make_locked(path: str) -> int:
    """Creates a folder if it is missing, and shares its lock, so that `remove_leftovers` keeps it.

    Returns:
        The descriptor of the lock, which the caller closes.

    Raises:
        OSError: it cannot be created.
    """
    name = os.path.join(path, _LOCK_NAME)
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # another process has just left and removed the folder
            continue
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(name), os.fstat(lock)):
                return lock
        os.close(lock)  # meanwhile another starting process removed it as a dead one


def remove_leftovers(parent: str, prefix: str) -> list[str]:
    """Removes the folders of dead processes: those whose lock is free.

    Args:
        parent: where the folders are.
        prefix: start of their names.

    Returns:
        The paths of the removed folders.

    Raises:
        OSError: the parent cannot be listed.
    """
    removed = []
    with os.scandir(parent) as entries:
        folders = [
            entry.path for entry in entries if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        ]
    for path in folders:
        try:
            lock = os.open(os.path.join(path, _LOCK_NAME), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no lock yet, already removed, or of another user
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process is alive
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        finally:
            os.close(lock)
    return removed
