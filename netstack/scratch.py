"""Folders for temporary files that do not outlive their use.

Takes: a parent folder. Gives: a context manager.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

from .errors import NetstackError


@contextlib.contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[str]:
    """A new folder that is removed at the end of the block, whenever a signal arrives.

    `tempfile.TemporaryDirectory` leaks its folder if a signal arrives between its creation and its registration.

    Raises:
        NetstackError: the disk is full; the system's error names no folder.
    """
    place = parent or tempfile.gettempdir()
    path = os.path.join(place, f"netstack-bench-{secrets.token_hex(8)}")
    try:
        os.mkdir(path, 0o700)
        yield path
    except OSError as error:
        if error.errno != errno.ENOSPC or not str(error.filename or path).startswith(path):
            raise
        raise NetstackError(f"no space is left in {place}; set TMPDIR to a folder on a larger disk") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
