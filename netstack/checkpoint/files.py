"""The system calls of the checkpoint folder, each as one method, so that a test can let any of them fail.

Takes: paths and bytes. Gives: what the system says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 20
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_HELD: Final[set[tuple[int, int]]] = set()
"""The files that this process has locked, by device and number: its own locks keep nobody of it out."""


class CheckpointFiles:
    """The system calls of the storage; a test replaces them with ones that fail.

    Each raises OSError when the system refuses.
    """

    def make_folder(self, path: str) -> None:
        """Creates a folder that must not exist yet, in one that does."""
        os.mkdir(path)

    def create(self, path: str) -> io.RawIOBase:
        """Creates a file that must not exist yet, for writing."""
        return io.FileIO(path, "x")

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        """Appends some of `data`; returns how much."""
        return file.write(data) or 0

    def sync(self, file: io.RawIOBase) -> None:
        """Returns when what was written will survive a power failure."""
        os.fsync(file.fileno())

    def sync_folder(self, path: str) -> None:
        """Returns when the names in a folder will survive a power failure."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name in one step; who had that name is gone."""
        os.replace(old, new)

    def publish(self, old: str, new: str) -> None:
        """Gives a file another name in one step, which nobody may have; FileExistsError if somebody has it."""
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(new):  # a file system without links, and without a way to be sure
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
            os.rename(old, new)
        else:
            os.unlink(old)

    def read(self, path: str) -> Iterator[bytes]:
        """The contents of a file, a piece at a time. Of what is no file nothing is read: it might wait for ever."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            _check_is_file(os.fstat(descriptor).st_mode)
            while piece := file.read(_CHUNK_BYTES):
                yield piece

    def size_bytes(self, path: str) -> int:
        """The length of a file."""
        found = os.stat(path)
        _check_is_file(found.st_mode)
        return found.st_size

    def lock(self, path: str) -> int:
        """Locks a file that exists, until `unlock` or the end of this process. Returns a number for `unlock`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for others that look, and only for those
        _HELD.add(_identity(descriptor))
        return descriptor

    def unlock(self, number: int) -> None:
        """Lets go of a lock."""
        _HELD.discard(_identity(number))
        os.close(number)

    def is_locked_by_another(self, path: str) -> bool:
        """Whether another process has locked a file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _identity(descriptor) not in _HELD
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder (a link to one is none)."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except OSError:
            return False

    def list_folder(self, path: str) -> list[tuple[str, bool]]:
        """The names in a folder, each with whether it is a folder itself (a link to one is none)."""
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def remove(self, path: str) -> None:
        """Removes a file."""
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder."""
        os.rmdir(path)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _check_is_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file")
