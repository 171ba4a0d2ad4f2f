"""The system calls of the checkpoint folder, each as one method, so that tests can make any of them fail."""

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
"""The files that this process has locked, by device and inode; these locks do not exclude masters of this process."""


class CheckpointFiles:
    """The system calls of the storage. Each raises OSError if the system call fails."""

    def make_folder(self, path: str) -> None:
        """Creates a folder that must not exist yet; its parent must exist."""
        os.mkdir(path)

    def create(self, path: str) -> io.RawIOBase:
        """Creates a file that must not exist yet, for writing."""
        return io.FileIO(path, "x")

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        """Appends some of `data`. Returns the number of bytes written."""
        return file.write(data) or 0

    def sync(self, file: io.RawIOBase) -> None:
        """Makes the written data survive a power failure."""
        os.fsync(file.fileno())

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder survive a power failure."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Renames a file atomically, and replaces a file with that name."""
        os.replace(old, new)

    def publish(self, old: str, new: str) -> None:
        """Renames a file atomically. Raises FileExistsError if a file with that name exists."""
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(new):  # a file system without hard links, where this check is not atomic
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
            os.rename(old, new)
        else:
            os.unlink(old)

    def read(self, path: str) -> Iterator[bytes]:
        """Yields the contents of a regular file in pieces. Refuses other files, which might block forever."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            _check_is_file(status.st_mode)
            while piece := os.read(descriptor, min(_CHUNK_BYTES, status.st_size + 1)):
                yield piece
        finally:
            os.close(descriptor)

    def size_bytes(self, path: str) -> int:
        """The length of a file."""
        status = os.stat(path)
        _check_is_file(status.st_mode)
        return status.st_size

    def lock(self, path: str) -> int:
        """Locks an existing file until `unlock` or the end of this process. Returns a handle for `unlock`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits only for processes that are checking the lock
        _HELD.add(_identity(descriptor))
        return descriptor

    def unlock(self, number: int) -> None:
        """Releases a lock."""
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
        """Whether a path is a folder, and no link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except OSError:
            return False

    def is_link(self, path: str) -> bool:
        """Whether a path is a link; False if nothing is there."""
        try:
            return stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            return False

    def list_folder(self, path: str) -> list[tuple[str, bool]]:
        """The names in a folder, each with whether it is a folder (and no link to one)."""
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def remove(self, path: str) -> None:
        """Removes a file."""
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder."""
        os.rmdir(path)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _check_is_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
