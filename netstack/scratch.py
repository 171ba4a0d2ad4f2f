"""Folders for temporary files that do not outlive their use, and what is left of those whose process was killed.

Takes: a parent folder. Gives: a context manager; removed folders.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from .errors import NetstackError

LOCK_NAME: Final = "lock"
"""The file in a folder that its process keeps locked."""

_LOCKED_AFTER_S: Final = 60.0
"""A folder of this age is locked if its process is alive."""


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
        remove_leftovers(place, prefix, unchanged_since=time.time() - _LOCKED_AFTER_S)
    path = os.path.join(place, f"{prefix}{secrets.token_hex(8)}")
    lock = -1
    try:
        os.mkdir(path, 0o700)
        lock = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
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


def remove_leftovers(parent: str, prefix: str, *, unchanged_since: float = math.inf) -> list[str]:
    """Removes the folders of dead processes: those whose lock is free.

    Args:
        parent: where the folders are.
        prefix: start of their names.
        unchanged_since: skips folders that changed after this time of the epoch, for processes that create their lock
            before they hold it.

    Returns:
        The paths of the removed folders.

    Raises:
        OSError: the parent cannot be listed.
    """
    removed = []
    with os.scandir(parent) as entries:
        folders = [entry.path for entry in entries if entry.name.startswith(prefix)]
    for path in folders:
        try:
            if os.stat(path).st_mtime > unchanged_since:
                continue
            lock = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC)
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
