"""Ctrl-C and SIGTERM do the same: what was measured is kept, every process is ended, no scratch folder stays.

Takes: signals. Gives: a KeyboardInterrupt wherever Ctrl-C would give one, and which of the two it was; scratch folders.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import final


@final
class _Stopped:
    """What stopped this process last."""

    by = "Ctrl-C"


@contextlib.contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """Inside the block SIGTERM does what Ctrl-C does. Only in the main thread: others may have no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        _Stopped.by = "SIGTERM"
        signal.raise_signal(signal.SIGINT)  # whoever handles Ctrl-C in a way of its own (trio) handles this too

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
    """A new folder that is removed at the end of the block, whenever the signal comes.

    `tempfile.TemporaryDirectory` forgets its folder when a signal comes between making it and noting its name.

    Args:
        parent: where it is; None is the system's temporary folder.

    Raises:
        OSError: it cannot be made.
    """
    path = os.path.join(parent or tempfile.gettempdir(), f"netstack-bench-{secrets.token_hex(8)}")
    try:
        os.mkdir(path, 0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
