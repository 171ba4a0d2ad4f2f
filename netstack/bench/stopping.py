"""Ctrl-C and SIGTERM act alike: results are kept, every process is ended, no scratch folder remains."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import final

from netstack.errors import NetstackError


@final
class _Stopped:
    by = "Ctrl-C"


@contextlib.contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C inside the block; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        _Stopped.by = "SIGTERM"
        signal.raise_signal(signal.SIGINT)  # a handler of its own for Ctrl-C (trio's) then handles this too

    _Stopped.by = "Ctrl-C"
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stopped_by() -> str:
    """`Ctrl-C` or `SIGTERM`, for messages."""
    return _Stopped.by


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
