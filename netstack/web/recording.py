"""A history in a file: written while it happens, read at once; a failing shuffle can be mailed to a colleague.

Takes: snapshots, or a file. Gives: a file, or a `History` for the page.

The file is a gzip of JSON lines: a head that names the version, then one line for each different snapshot, as in
`History.text`. What was written is there when the process is killed, but for the last line.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import math
import os
import stat
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from ..errors import ConfigError
from ..json_text import json_text
from ..limited_log import LimitedLog
from ..shown import shown, shown_error, shown_text
from ..version import __version__
from .history import History, entry_text, snapshot_text

LOGGER: Final = logging.getLogger("netstack.web")

VERSION: Final = 1
"""Of the file."""

LOOK_S: Final = 0.5
"""Between two looks."""

MAX_LINE_BYTES: Final = 16 << 20
MAX_TEXT_BYTES: Final = 256 << 20
"""Of a file that is read; a page with more than that opens in no browser."""


@asynccontextmanager
async def recorded(
    path: Path, look: Callable[[], Awaitable[Mapping[str, Any]]], *, fatal: tuple[type[Exception], ...] = ()
) -> AsyncIterator[None]:
    """Writes a recording while the block runs.

    Args:
        path: of the file; replaced.
        look: gives a snapshot of the cluster.
        fatal: errors of `look` and of writing that end the block. Others are logged: a look that fails leaves a gap,
            and a file that cannot be written is written no further.

    Raises:
        ConfigError: the file cannot be made.
        Exception: one of `fatal`, as it was raised or in a group; what was written by then is whole.
    """
    try:
        recording = Recording(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    recorder = _Recorder(recording, look, fatal)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            yield
            await recorder.look()
            nursery.cancel_scope.cancel()
    finally:
        recorder.close()


@final
class _Recorder:
    """Looks again and again, and writes what it saw."""

    def __init__(
        self,
        recording: Recording,
        look: Callable[[], Awaitable[Mapping[str, Any]]],
        fatal: tuple[type[Exception], ...],
    ) -> None:
        self._recording = recording
        self._look = look
        self._fatal = fatal
        self._has_stopped = False
        self._log = LimitedLog(LOGGER, trio.current_time, per_second=1 / 60, burst=1)

    async def run(self) -> None:
        while not self._has_stopped:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Takes one snapshot, unless the file could not be written before."""
        if self._has_stopped:
            return
        try:
            text = snapshot_text(await self._look())
        except Exception as error:  # whoever looks must not end what is looked at
            self._contain("a look at the cluster failed, so the recording has a gap", error)
            return
        try:
            self._recording.add(time.time(), text)
        except OSError as error:
            self._has_stopped = True  # half a line may be in the file
            self._contain("the recording cannot be written and stops here", error)

    def close(self) -> None:
        try:
            self._recording.close()
        except OSError as error:
            self._contain("the end of the recording could not be written", error)

    def _contain(self, what: str, error: Exception) -> None:
        """Logs an error, unless it ends the recording."""
        if isinstance(error, self._fatal):
            raise error
        self._log.log(logging.ERROR, what, f"{what}: {shown_error(error)}")


@final
class Recording:
    """Writes a file, anew; a context manager. It blocks.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be written; so does every call.

    Attributes:
        count: snapshots that are written, but for the one that still holds.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._history = History(kept_s=0.0)
        self._file = gzip.open(path, "wb", compresslevel=6)  # noqa: SIM115  # closed by `close`
        self._write({"netstack_history": VERSION, "version": __version__})

    def add(self, at: float, text: str) -> None:
        """Takes a snapshot; one that is like the one before is written once.

        Args:
            at: seconds since 1970.
            text: see `snapshot_text`.
        """
        if self._history.last and text != self._history.last:
            self._write_last()
            self._file.flush()
        self._history.add(at, text)

    def close(self) -> None:
        """Ends the file. Idempotent."""
        if self._file.closed:
            return
        try:
            if self._history.last:
                self._write_last()
        finally:
            self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write_last(self) -> None:
        self.count += 1
        self._file.write(entry_text(self._history.kept()[-1]).encode() + b"\n")

    def _write(self, document: object) -> None:
        self._file.write(json_text(document).encode() + b"\n")


def read_recording(path: Path) -> History:
    """What is in a file; of one that was cut short, all whole lines, and of a very long one the first of them.

    A file may be anybody's: what it takes in memory and time is bounded. It blocks.

    Raises:
        ConfigError: it is none, or one of another version.
        OSError: it cannot be read.
    """
    history = History(max_bytes=1 << 62, kept_s=math.inf)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise ConfigError(f"{path} is no regular file, so it is no recording")
            with gzip.open(raw, "rb") as file:
                head = _value(file.readline(MAX_LINE_BYTES + 1))
                if type(head) is not dict or head.get("netstack_history") != VERSION:
                    raise ConfigError(
                        f"{path} is no recording of this release of netstack, which reads version {VERSION}"
                    )
                with contextlib.suppress(EOFError):  # whoever wrote it was killed
                    _read_entries(file, history, path)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise ConfigError(f"{path} is no recording of netstack: {shown_text(str(error))}") from error
    if not history.last:
        raise ConfigError(f"{path} is a recording of nothing: whoever made it ended at once")
    return history


def _read_entries(file: gzip.GzipFile, history: History, path: Path) -> None:
    """Raises `ValueError` for what is no entry, `EOFError` where the file was cut short."""
    left_bytes = MAX_TEXT_BYTES
    while line := file.readline(MAX_LINE_BYTES + 1):
        left_bytes -= len(line)
        if left_bytes < 0:
            LOGGER.warning("%s has more than %d MiB of text: what comes later is left out", path, MAX_TEXT_BYTES >> 20)
            return
        entry = _value(line)
        if type(entry) is not dict or type(entry.get("snapshot")) is not dict:
            raise ValueError("a line is no snapshot")
        history.extend(_time(entry.get("at")), _time(entry.get("until")), snapshot_text(entry["snapshot"]))


def _value(line: bytes) -> Any:
    """The JSON value of a line. Raises `ValueError`."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("a line is nested too deep") from error


def _time(value: object) -> float:
    """Seconds since 1970, before the year 5000. Raises `ValueError`."""
    if not (type(value) is int or type(value) is float) or not 0 <= value < 1e11:
        raise ValueError(f"{shown(value, 40)} is no time")
    return float(value)
