"""Recordings: a history of snapshots in a file, which can be replayed elsewhere.

Takes: snapshots, or a file. Gives: a file, or a `History` for the page.

The file is gzipped JSON lines: a header with the version, then one line for each different snapshot, as in
`History.text`. If the process is killed, only the last line is lost.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import math
import os
import stat
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from ...base.errors import ConfigError
from ...base.text.json_text import json_text
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_repr, safe_text
from ...base.timing.steady_clock import steady_time
from ...base.version import __version__
from .history import History, entry_text, snapshot_text

LOGGER: Final = logging.getLogger("netstack.web")

VERSION: Final = 1
"""Version of the file format."""

LOOK_S: Final = 0.5
"""Interval of snapshots."""

MAX_LINE_BYTES: Final = 16 << 20
MAX_TEXT_BYTES: Final = 256 << 20
"""Limit of the text that is read from a file; browsers cannot open a larger page."""


@asynccontextmanager
async def recorded(
    path: Path, look: Callable[[], Awaitable[Mapping[str, Any]]], *, fatal: tuple[type[Exception], ...] = ()
) -> AsyncIterator[None]:
    """Writes a recording while the block runs.

    Args:
        path: path of the file; an existing file is replaced.
        look: returns a snapshot of the cluster.
        fatal: errors of `look` and of writing that end the block. Other errors are logged: a failed snapshot leaves a
            gap, a failed write ends the recording.

    Raises:
        ConfigError: the file cannot be created.
        Exception: one of `fatal`, as raised or in a group; the file is readable up to that moment.
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
    """Takes snapshots periodically and writes them."""

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
        if self._has_stopped:
            return
        try:
            text = snapshot_text(await self._look())
        except Exception as error:  # a failed snapshot must not end the cluster
            self._contain("a snapshot of the cluster failed, so the recording has a gap", error)
            return
        try:
            self._recording.add(steady_time(), text)
        except OSError as error:
            self._has_stopped = True  # the file may end with half a line
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
        self._log.log(logging.ERROR, what, f"{what}: {safe_error(error)}")


@final
class Recording:
    """Writes a recording to a new file; a context manager. All calls block.

    Raises:
        OSError: the file cannot be written; every method may raise it.

    Attributes:
        count: number of written snapshots; the current snapshot is written when it changes.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._history = History(kept_s=0.0)
        self._file = gzip.open(path, "wb", compresslevel=6)  # noqa: SIM115  # closed by `close`
        self._write({"netstack_history": VERSION, "version": __version__})

    def add(self, at: float, text: str) -> None:
        """Adds a snapshot; equal consecutive snapshots are written once.

        Args:
            at: seconds since 1970.
            text: snapshot from `snapshot_text`.
        """
        if self._history.last and text != self._history.last:
            self._write_last()
            self._file.flush()
        self._history.add(at, text)

    def close(self) -> None:
        """Writes the current snapshot and closes the file. Idempotent."""
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
    """Reads a recording; a truncated file yields its whole lines, a very long one its first `MAX_TEXT_BYTES`.

    The file may be untrusted, so memory and time are bounded. The call blocks.

    Raises:
        ConfigError: the file is not a recording, or has another version.
        OSError: the file cannot be read.
    """
    history = History(max_bytes=1 << 62, kept_s=math.inf)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise ConfigError(f"{path} is not a regular file; give a file written by --record")
            with gzip.open(raw, "rb") as file:
                head = _value(file.readline(MAX_LINE_BYTES + 1))
                if type(head) is not dict or head.get("netstack_history") != VERSION:
                    raise ConfigError(
                        f"{path} is not a recording of version {VERSION}, which this release of netstack reads"
                    )
                with contextlib.suppress(EOFError):  # its writer was killed
                    _read_entries(file, history, path)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise ConfigError(f"{path} is not a recording of netstack: {safe_text(str(error))}") from error
    if not history.last:
        raise ConfigError(f"{path} has no snapshots: its writer ended before the first one")
    return history


def _read_entries(file: gzip.GzipFile, history: History, path: Path) -> None:
    """Raises `ValueError` for a malformed entry, `EOFError` at the end of a truncated file."""
    left_bytes = MAX_TEXT_BYTES
    while line := file.readline(MAX_LINE_BYTES + 1):
        left_bytes -= len(line)
        if left_bytes < 0:
            LOGGER.warning("%s has more than %d MiB of text: later snapshots are left out", path, MAX_TEXT_BYTES >> 20)
            return
        entry = _value(line)
        if type(entry) is not dict or type(entry.get("snapshot")) is not dict:
            raise ValueError("a line is not a snapshot")
        history.extend(_time(entry.get("at")), _time(entry.get("until")), snapshot_text(entry["snapshot"]))


def _value(line: bytes) -> Any:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("a line is nested too deeply") from error


def _time(value: object) -> float:
    """Seconds since 1970, before the year 5000. Raises `ValueError`."""
    if not (type(value) is int or type(value) is float) or not 0 <= value < 1e11:
        raise ValueError(f"{safe_repr(value, 40)} is not a time")
    return float(value)
