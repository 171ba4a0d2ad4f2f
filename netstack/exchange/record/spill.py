"""Temporary files for records that are too large to gather in memory.

Takes: the pieces of one record, in order. Gives: a read-only map of the whole record.

Rules: a file has a random name, is created exclusively, readable only by its owner, and is unlinked before the first
byte is written. So its disk space is freed with the last descriptor or map, even if the process is killed. A directory
in which a file cannot be created is not used again while another one is left.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import final

from ...base.errors import ConfigError, LocalProtocolError, SpillError

SUFFIX = ".inputchannel"
ATTEMPTS = 10
"""Attempts to create a file, in all directories together: a full disk must not stop the others."""

_NAME_BYTES = 20
_PICK_BYTES = 4  # random bytes, to choose a directory


class FileSystem:
    """The system calls of a spill file; tests replace them with failing ones.

    Each raises OSError when the system refuses.
    """

    def create(self, path: str) -> io.FileIO:
        """Creates a new file for reading and writing; the path must not exist."""
        return io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, 0o600))

    def unlink(self, path: str) -> None:
        """Removes the name; the file exists while it is open."""
        os.unlink(path)

    def write(self, file: io.FileIO, data: memoryview) -> int:
        """Appends some of `data`; returns the number of bytes."""
        return file.write(data)

    def read(self, file: io.FileIO, count: int, offset: int) -> bytes:
        """Reads up to `count` bytes from `offset` on."""
        return os.pread(file.fileno(), count, offset)

    def map(self, file: io.FileIO, size_bytes: int) -> mmap.mmap:
        """Maps the first `size_bytes` read-only; the map stays valid after the file is closed."""
        return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)


@final
class SpillDirectory:
    """Creates spill files; shared by all channels of a TaskManager.

    Args:
        directories: existing directories, preferably on different disks; None: the system's temporary directory.
        files: the system calls.
        random_bytes: source of names and of the choice of a directory.

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
            raise ConfigError("the list of spill directories is empty; name at least one, or None for the system's own")
        self._directories = [tempfile.gettempdir()] if directories is None else list(directories)
        self._files = FileSystem() if files is None else files
        self._random_bytes = random_bytes

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories still in use."""
        return tuple(self._directories)

    def create(self, wanted_bytes: int) -> SpillFile:
        """Creates a file for a record.

        Args:
            wanted_bytes: length of the record; nothing is reserved.

        Raises:
            SpillError: a file could be created in no directory.
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
                problem = error  # the name is taken: the directory is usable
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
        """Creates the file and unlinks it."""
        file = self._files.create(path)
        try:
            self._files.unlink(path)
        except OSError:
            file.close()
            raise
        return file


@final
class SpillFile:
    """The bytes of one record on disk. Its creator calls `close`; a map stays valid afterwards.

    Attributes:
        size_bytes: bytes written so far.
    """

    __slots__ = ("_file", "_files", "directory", "size_bytes", "wanted_bytes")

    def __init__(self, file: io.FileIO, directory: str, wanted_bytes: int, files: FileSystem) -> None:
        self.directory = directory
        self.wanted_bytes = wanted_bytes
        self.size_bytes = 0
        self._file = file
        self._files = files

    def append(self, data: memoryview) -> None:
        """Appends all of `data`.

        Raises:
            SpillError: the disk is full or broken; the file is then closed.
            LocalProtocolError: the file is closed.
        """
        file = self._opened()
        while data:
            try:
                count = self._files.write(file, data)
            except OSError as error:
                file.close()
                raise SpillError(
                    f"writing a record of {self.wanted_bytes} bytes to a temporary file in {self.directory!r} failed"
                    f" after {self.size_bytes}: {error}; free space there, set spill_directory to a larger disk, or"
                    " raise spill_threshold_bytes to gather the record in memory"
                ) from error
            self.size_bytes += count
            data = data[count:]

    def read(self) -> bytes:
        """Copies everything written, for checkpoints.

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
        """Maps everything written, as read-only memory that stays valid after `close`.

        The map keeps its own descriptor (Python duplicates it) and the disk space until it is closed or collected.

        Raises:
            SpillError: it cannot be mapped.
            LocalProtocolError: the file is closed.
        """
        try:
            return self._files.map(self._opened(), self.size_bytes)
        except OSError as error:
            raise self._unreadable(str(error)) from error

    def close(self) -> None:
        """Releases the descriptor, and the disk space unless a map is left. Idempotent."""
        self._file.close()

    def _opened(self) -> io.FileIO:
        if self._file.closed:
            raise LocalProtocolError("the spill file is closed; create another one")
        return self._file

    def _unreadable(self, reason: str) -> SpillError:
        return SpillError(
            f"a temporary file of {self.size_bytes} bytes in {self.directory!r} cannot be read: {reason};"
            " check the disk, or set spill_directory to another one"
        )
