"""Temporary files for records too large to gather in memory.

Takes: the pieces of one record, in order. Gives: a read-only map of all of them.

Rules: a file has a random name, is created exclusively, readable by its owner alone, and loses its name before the
first byte is written: the disk space comes back when the last descriptor or map goes, also when the process is killed.
A directory in which no file can be made is not asked again while another one is left.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import final

from ..errors import ConfigError, LocalProtocolError, SpillError

SUFFIX = ".inputchannel"
ATTEMPTS = 10
"""How often a file is tried for before giving up, over all directories: one full disk must not stop the others."""

_NAME_BYTES = 20
_PICK_BYTES = 4  # of randomness, to choose a directory


class FileSystem:
    """The system calls a spill file needs; a test replaces them with ones that fail.

    Each raises OSError when the system refuses.
    """

    def create(self, path: str) -> io.FileIO:
        """Creates a file that must not exist yet, for reading and writing."""
        return io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, 0o600))

    def unlink(self, path: str) -> None:
        """Removes the name; the file lives on while it is open."""
        os.unlink(path)

    def write(self, file: io.FileIO, data: memoryview) -> int:
        """Appends some of `data`; returns how much."""
        return file.write(data)

    def read(self, file: io.FileIO, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset` on."""
        return os.pread(file.fileno(), count, offset)

    def map(self, file: io.FileIO, size_bytes: int) -> mmap.mmap:
        """The first `size_bytes` as read-only memory, which stays valid when the file is closed."""
        return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)


@final
class SpillDirectory:
    """Where spill files are made; shared by all channels of a TaskManager.

    Args:
        directories: existing directories, at best on different disks; None is the system's temporary directory.
        files: the system calls.
        random_bytes: source of names and of the choice among directories.

    Raises:
        ConfigError: the list is empty.
    """

    __slots__ = ("_directories", "_files", "_random_bytes")

    def __init__(
        self,
        directories: Sequence[str] | None = None,
        *,
        files: FileSystem | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if directories is not None and not directories:
            raise ConfigError("no spill directory given; name at least one, or None for the system's own")
        self._directories = [tempfile.gettempdir()] if directories is None else list(directories)
        self._files = FileSystem() if files is None else files
        self._random_bytes = random_bytes

    @property
    def directories(self) -> tuple[str, ...]:
        """Those still in use."""
        return tuple(self._directories)

    def create(self, wanted_bytes: int) -> SpillFile:
        """Makes a file for a record.

        Args:
            wanted_bytes: how long the record will be; nothing is reserved.

        Raises:
            SpillError: no directory takes a file.
        """
        problem: OSError | None = None
        directory = self._directories[0]
        for _ in range(ATTEMPTS):
            pick = int.from_bytes(self._random_bytes(_PICK_BYTES), "big")
            directory = self._directories[pick % len(self._directories)]
            path = os.path.join(directory, self._random_bytes(_NAME_BYTES).hex() + SUFFIX)
            try:
                return SpillFile(self._open_unnamed(path), directory, wanted_bytes, self._files)
            except FileExistsError as error:
                problem = error  # somebody has that name: the directory is not to blame
            except OSError as error:
                problem = error
                if len(self._directories) == 1:
                    break
                self._directories.remove(directory)
        raise SpillError(
            f"no temporary file for a record of {wanted_bytes} bytes in {directory!r}: {problem};"
            " make the directory writable, set spill_directory to another one, or raise spill_threshold_bytes"
        ) from problem

    def _open_unnamed(self, path: str) -> io.FileIO:
        """Creates the file and takes its name away."""
        file = self._files.create(path)
        try:
            self._files.unlink(path)
        except OSError:
            file.close()
            raise
        return file


@final
class SpillFile:
    """The bytes of one record on disk. Whoever made it calls `close`; after `map` that loses nothing.

    Attributes:
        directory: where it is, for messages.
        wanted_bytes: length of the record.
        size_bytes: written so far.
    """

    __slots__ = ("_file", "_files", "directory", "size_bytes", "wanted_bytes")

    def __init__(self, file: io.FileIO, directory: str, wanted_bytes: int, files: FileSystem) -> None:
        self.directory = directory
        self.wanted_bytes = wanted_bytes
        self.size_bytes = 0
        self._file = file
        self._files = files

    def append(self, data: memoryview) -> None:
        """Writes all of `data` at the end.

        Raises:
            SpillError: the disk is full, or broken; the file is closed then.
            LocalProtocolError: the file is closed.
        """
        file = self._opened()
        while data:
            try:
                count = self._files.write(file, data)
            except OSError as error:
                file.close()
                raise SpillError(
                    f"writing a record of {self.wanted_bytes} bytes to a temporary file in {self.directory!r} stopped"
                    f" after {self.size_bytes}: {error}; free space there, set spill_directory to a larger disk, or"
                    " raise spill_threshold_bytes to gather the record in memory"
                ) from error
            self.size_bytes += count
            data = data[count:]

    def read(self) -> bytes:
        """A copy of everything written, for checkpoints.

        Raises:
            SpillError: the disk is broken.
            LocalProtocolError: the file is closed.
        """
        file = self._opened()
        pieces: list[bytes] = []
        have = 0
        while have < self.size_bytes:
            try:
                piece = self._files.read(file, self.size_bytes - have, have)
            except OSError as error:
                raise self._unreadable(str(error)) from error
            if not piece:
                raise self._unreadable(f"it ends after {have}")
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

    def map(self) -> mmap.mmap:
        """Everything written, as read-only memory which outlives the file object.

        The map keeps a descriptor of its own (Python duplicates it) and the disk space until it is closed or collected.

        Raises:
            SpillError: it cannot be mapped.
            LocalProtocolError: the file is closed.
        """
        try:
            return self._files.map(self._opened(), self.size_bytes)
        except OSError as error:
            raise self._unreadable(str(error)) from error

    def close(self) -> None:
        """Gives the descriptor back, and with it the disk space unless a map is left; idempotent."""
        self._file.close()

    def _opened(self) -> io.FileIO:
        if self._file.closed:
            raise LocalProtocolError("the spill file is closed; make another one")
        return self._file

    def _unreadable(self, reason: str) -> SpillError:
        return SpillError(
            f"a temporary file of {self.size_bytes} bytes in {self.directory!r} cannot be read back: {reason};"
            " check the disk, or set spill_directory to another one"
        )
