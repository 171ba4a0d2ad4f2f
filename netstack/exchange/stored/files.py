"""The files of kept partitions: the only module here that accesses the disk. Its callers run it in a thread.

Takes: pages to append, an index, extents to read. Gives: their positions; bytes; typed errors for system errors.

A process has one folder, locked while it lives. A folder whose lock is free belongs to a dead process, and is removed
by the next process that starts with the same parent. The processes of one TaskManager share a folder: each has its own
file names there, all of them hold the lock, and the last one to leave removes the folder. A partition has `NAME.index`
and one `NAME.data`, or one `NAME.SUBPARTITION.data` for each subpartition. Files are never synced: nothing reads them
after all these processes have ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from ...base.errors import DiskFull, PartitionDamaged, ShuffleStorageError
from ...base.scratch import make_locked, remove_leftovers
from .index import HEAD, Extent, decode_head, decode_rows, head_bytes, row_bytes
from .pages import Page, Piece, split_pages

FOLDER_PREFIX: Final = "netstack-shuffle-"
WRITE_BYTES: Final = 1 << 20
"""Bytes gathered for one write."""
WRITE_PIECES: Final = 512
"""Pieces of one write; systems accept at least 1,024 (IOV_MAX)."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@final
@dataclass(frozen=True, slots=True)
class SealedFiles:
    """The files of a complete partition.

    Attributes:
        name: start of the file names.
        drain: the drain flag of its EndOfData.
    """

    name: str
    subpartitions: int
    drain: bool
    stored_bytes: int


@final
class ShuffleFolder:
    """The folder of one process, or of several that serve one TaskManager.

    Args:
        parent: an existing folder; None: the system's temporary folder.
        prefix: unique among the processes that share the folder.

    Attributes:
        prefix: start of the names of this process's files.
    """

    def __init__(self, parent: str | None, name: str, prefix: str = "") -> None:
        self._parent = parent or tempfile.gettempdir()
        self.path = os.path.join(self._parent, name)
        self.prefix = prefix
        self.open_files: set[PartitionFiles] = set()
        self._lock = -1

    @property
    def is_made(self) -> bool:
        """Whether the folder exists."""
        return self._lock >= 0

    def make(self) -> None:
        """Creates the folder, and removes those of dead processes beside it.

        Raises:
            ShuffleStorageError: it cannot be created.
        """
        with _naming(f"a folder in {self._parent}"):
            remove_leftovers(self._parent, FOLDER_PREFIX)
            self._lock = make_locked(self.path)

    def remove(self) -> None:
        """Removes the files of this process, and the folder if no other process uses it. Idempotent.

        No other thread may use it any more.
        """
        if self._lock >= 0:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process uses it
                for files in [*self.open_files]:
                    files.remove()
            else:
                shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Closes all files, as the death of the process would; they stay until another process starts there."""
        for files in [*self.open_files]:
            files.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_files(parent: str, folders: str, prefix: str, but: frozenset[str]) -> None:
    """Removes the files of a dead process in folders that other processes use.

    Args:
        parent: where the folders are.
        folders: start of the folder names.
        prefix: start of its file names.
        but: names of partitions that were handed over to another process.
    """
    for path in glob.iglob(os.path.join(glob.escape(parent), f"{folders}*", f"{prefix}*")):
        if os.path.basename(path).partition(".")[0] not in but:
            with contextlib.suppress(OSError):
                os.unlink(path)


@final
class PartitionFiles:
    """The files of one partition. Each method is called by one thread at a time, except `read_block`.

    Args:
        folder: where they are; the folder closes them at the end.
        ticks: clock in seconds, to measure writes.

    Attributes:
        write_s: time in the write calls of `append` since the last reset to 0.
        free_share: free share of the disk after the last write.
    """

    def __init__(
        self, folder: ShuffleFolder, number: int, subpartitions: int, *, own_files: bool, ticks: Callable[[], float]
    ) -> None:
        self.own_files = own_files
        self.write_s = 0.0
        self.free_share = 1.0
        self._ticks = ticks
        self._folder = folder
        self.name = f"{folder.prefix}{number}"
        self._is_ours = True
        self._count = subpartitions if own_files else 1
        self._descriptors: list[int] = [-1] * self._count
        self._ends = [0] * self._count

    @property
    def index_path(self) -> str:
        """Path of the index."""
        return os.path.join(self._folder.path, f"{self.name}.index")

    def data_path(self, file: int) -> str:
        """Path of a data file."""
        return os.path.join(self._folder.path, f"{self.name}.{file}.data" if self.own_files else f"{self.name}.data")

    def hand_over(self) -> None:
        """Leaves removal to another process; this one can still read its open files."""
        self._is_ours = False

    def take_over(self, name: str) -> None:
        """Opens files that another process has sealed; this process then reads and removes them.

        Raises:
            PartitionDamaged: the files do not exist.
        """
        self.name = name
        with _missing(self.index_path):
            os.close(_open(self.index_path))
            for file in range(self._count):
                with contextlib.suppress(FileNotFoundError):  # it is empty
                    self._descriptors[file] = _open(self.data_path(file))
        self._folder.open_files.add(self)

    def append(self, file: int, pieces: Iterable[Piece]) -> tuple[int, int]:
        """Appends pieces to a data file. Returns (offset, bytes).

        Raises:
            DiskFull: the disk is full.
            ShuffleStorageError: another error of the operating system.
        """
        path = self.data_path(file)
        with _naming(path):
            descriptor = self._descriptors[file]
            if descriptor < 0:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._descriptors[file] = descriptor
                self._folder.open_files.add(self)
            start = self._ends[file]
            size = 0
            batch: list[Piece] = []
            waiting = 0
            for piece in pieces:
                batch.append(piece)
                waiting += len(piece)
                if waiting >= WRITE_BYTES or len(batch) >= WRITE_PIECES:
                    self._write(descriptor, batch, waiting)
                    size += waiting
                    batch, waiting = [], 0
            if batch:
                self._write(descriptor, batch, waiting)
                size += waiting
            status = os.fstatvfs(descriptor)
            self.free_share = status.f_bavail / status.f_blocks if status.f_blocks else 1.0
        self._ends[file] = start + size
        return start, size

    def write_index(self, pieces: Iterator[bytes]) -> int:
        """Writes the index. Returns its size.

        Raises:
            DiskFull: the disk is full.
            ShuffleStorageError: another error of the operating system.
        """
        with _naming(self.index_path), open(self.index_path, "xb") as file:
            return sum(map(file.write, pieces))

    def read_plan(self, first: int, count: int) -> list[Extent]:
        """Reads the extents of a range of subpartitions from the index file.

        Raises:
            PartitionDamaged: the index is missing or damaged.
        """
        path = self.index_path
        with _missing(path), open(_open(path), "rb") as file:
            head = file.read(HEAD.size)
            _, regions = decode_head(head, path)
            step = row_bytes(regions)
            start = head_bytes(regions) + first * step
            size = os.fstat(file.fileno()).st_size
            if start + count * step > size:  # before the allocation: a damaged number may be huge
                raise PartitionDamaged(
                    f"{path} has {size} bytes, too few for the {regions} regions in its head: it is damaged,"
                    " and its producer has to run again"
                )
            head += file.read(regions)
            file.seek(start)
            rows = file.read(count * step)
        return decode_rows(head, rows, first, count, path, own_files=self.own_files)

    def read_block(
        self, block: memoryview, extents: Sequence[Extent], max_bytes: int
    ) -> tuple[list[Page], list[Extent]]:
        """Reads the first extents into a block. Returns their pages, and the extents that are left.

        Args:
            block: memory for at least one page of the largest size; the pages are views of it.
            extents: the extents to read, in order.
            max_bytes: size limit of a page's body.

        Raises:
            PartitionDamaged: a file is missing, truncated or damaged.
        """
        pages: list[Page] = []
        position = 0
        for number, extent in enumerate(extents):
            path = self.data_path(extent.file)
            wanted = min(extent.length, len(block) - position)
            with _missing(path):
                got = self._read(extent.file, block[position : position + wanted], extent.offset)
            if got < wanted:
                raise PartitionDamaged(
                    f"{path} ends at byte {extent.offset + got}, {wanted - got} bytes too early: it was truncated,"
                    " and its producer has to run again"
                )
            before = len(pages)
            taken = split_pages(
                block[position : position + wanted],
                pages,
                max_bytes=max_bytes,
                name=path,
                file=extent.file,
                offset=extent.offset,
            )
            if taken == extent.length:
                position += taken
                continue
            if wanted == extent.length:
                raise PartitionDamaged(
                    f"{path}: the pages from byte {extent.offset} on do not end where the index says: a file is"
                    " damaged, and its producer has to run again"
                )
            if taken:
                left = Extent(
                    extent.file, extent.offset + taken, extent.length - taken, extent.pages - (len(pages) - before)
                )
            else:
                left = extent
            return pages, [left, *extents[number + 1 :]]
        return pages, []

    def remove(self) -> None:
        """Closes and removes the files; missing ones are ignored."""
        written = [self.data_path(file) for file, descriptor in enumerate(self._descriptors) if descriptor >= 0]
        self.close()
        if not self._is_ours:
            return
        for path in (*written, self.index_path):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Closes the files. Idempotent."""
        descriptors, self._descriptors = self._descriptors, [-1] * self._count
        self._folder.open_files.discard(self)
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _write(self, descriptor: int, pieces: list[Piece], size: int) -> None:
        began = self._ticks()
        _write_all(descriptor, pieces, size)
        self.write_s += self._ticks() - began

    def _read(self, file: int, memory: memoryview, offset: int) -> int:
        got = 0
        while got < len(memory):
            count = os.preadv(self._descriptors[file], [memory[got:]], offset + got)
            if not count:
                break
            got += count
        return got


def _write_all(descriptor: int, pieces: list[Piece], size: int) -> None:
    while size:
        written = os.writev(descriptor, pieces)
        size -= written
        if not size:
            return
        whole = 0
        for piece in pieces:
            if len(piece) > written:
                break
            written -= len(piece)
            whole += 1
        del pieces[:whole]
        if written:
            pieces[0] = memoryview(pieces[0])[written:]


def _open(path: str) -> int:
    """Opens a regular file for reading. Raises OSError for anything else, such as a link, and waits for nobody."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(
                f"{what}: {error.strerror}: there is no space for the output; free some, or set shuffle_directory"
                " to a larger disk"
            ) from error
        raise ShuffleStorageError(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def _missing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PartitionDamaged(
            f"{path} cannot be read ({error.strerror or error}): its producer has to run again"
        ) from error
