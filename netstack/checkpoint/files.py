"""The system calls of the checkpoint folder, each as one method, so that a test can let any of them fail.

Takes: paths and bytes. Gives: what the system says.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 20


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

    def read(self, path: str) -> Iterator[bytes]:
        """The contents of a file, a piece at a time."""
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece

    def size_bytes(self, path: str) -> int:
        """The length of a file."""
        return os.stat(path).st_size

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
