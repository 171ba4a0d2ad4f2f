"""The folders of checkpoints: naming, atomic writes, and removal of checkpoint files.

Takes: numbers of checkpoints, names and bytes of files. Gives: their contents; `CheckpointStorageError` with the path
and advice. `storage` knows what the files mean.

Rules:
- A file is written under a temporary name, synchronised, renamed, its folder synchronised, and read back. A crash or a
  full disk leaves only a temporary file, which is never read.
- Only files and folders with names of checkpoints are removed. A link to a folder is followed by reads, but never by
  writes and removals.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import Final, final

from ...base import crc
from ...base.errors import CheckpointStorageError
from .files import CheckpointFiles

LOGGER: Final = logging.getLogger("netstack")
MANIFEST_NAME: Final = "manifest.json"

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")
_TEMPORARY: Final = re.compile(r"\..*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_OURS: Final = re.compile(rf"{re.escape(MANIFEST_NAME)}|.*-\d+\.[0-9a-f]{{8}}\.state|{_TEMPORARY.pattern}", re.DOTALL)
_NOT_FOLLOWED: Final = "{} is no folder, or a link to one, which is not followed"
_RANDOM_BYTES: Final = 4


@final
class CheckpointFolders:
    """The folders of one job's checkpoints.

    Args:
        folder: their parent folder; created with the first file.
        files: the system calls.
        root: a folder above `folder`, below which no link is followed; None: `folder`.
    """

    def __init__(self, folder: str, files: CheckpointFiles, *, root: str | None = None) -> None:
        self.folder = folder
        self._root = folder if root is None else root
        self._files = files

    def path(self, checkpoint_id: int) -> str:
        """The folder of a checkpoint, whether it exists or not."""
        return os.path.join(self.folder, folder_name(checkpoint_id))

    def exists(self) -> bool:
        """Whether the parent folder exists."""
        try:
            self._files.list_folder(self.folder)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # its next use reports the error
        return True

    def make(self) -> None:
        """Creates the parent folder. Raises OSError if the disk is full or broken."""
        self._make(self.folder)

    def check(self) -> None:
        """Checks that no link leads out of the root. Raises OSError."""
        for folder in self._below_root(self.folder):
            if self._files.is_link(folder):
                raise OSError(errno.ENOTDIR, _NOT_FOLLOWED.format(folder))

    def write(self, checkpoint_id: int, name: str, pieces: Sequence[bytes], *, is_first: bool = False) -> None:
        """Writes a file atomically, and reads it back.

        Args:
            checkpoint_id: the checkpoint.
            name: name of the file.
            pieces: its bytes, in order.
            is_first: whether the file must not exist yet; otherwise it is replaced.

        Raises:
            CheckpointStorageError: the disk is full or broken or returns other bytes, or the file exists. The temporary
                file is removed if possible.
        """
        folder = self.path(checkpoint_id)
        path = os.path.join(folder, name)
        temporary = os.path.join(folder, f".{name}.{os.urandom(_RANDOM_BYTES).hex()}.tmp")
        written = 0
        try:
            self.check()
            self._make(folder)
            self._check_below(folder)
            file = self._files.create(temporary)
            with file:
                self._check_below(folder)  # it may have been replaced meanwhile; nothing is written yet
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        count = self._files.write(file, rest)
                        written += count
                        rest = rest[count:]
                self._files.sync(file)
            if is_first:
                self._files.publish(temporary, path)
            else:
                self._files.rename(temporary, path)
            self._files.sync_folder(folder)
            self._check_written(path, pieces)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            if is_first and isinstance(error, FileExistsError):
                raise CheckpointStorageError(
                    f"{path} already exists: another master has completed a checkpoint with this number; give every job"
                    " its own folder"
                ) from error
            raise CheckpointStorageError(
                f"writing {path} failed after {written} of {sum(map(len, pieces))} bytes: {error.strerror or error};"
                " free disk space or choose another folder"
            ) from error

    def size_bytes(self, checkpoint_id: int, name: str) -> int:
        """The length of a file. Raises OSError if the file does not exist."""
        return self._files.size_bytes(os.path.join(self.path(checkpoint_id), name))

    def has_file(self, checkpoint_id: int, name: str) -> bool:
        """Whether a file exists."""
        try:
            self.size_bytes(checkpoint_id, name)
        except OSError:
            return False
        return True

    def ids(self) -> list[int]:
        """The numbers of all entries with the name of a checkpoint, ascending, whether they are folders or not.

        Raises:
            CheckpointStorageError: the parent folder cannot be listed.
        """
        try:
            self.check()
            entries = self._files.list_folder(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointStorageError(
                f"the checkpoint folder {self.folder} cannot be listed: {error.strerror or error}; give a folder that"
                " this user may read and write"
            ) from error
        matches = (_FOLDER.fullmatch(name) for name, _ in entries)
        return sorted(
            int(match[1]) for match in matches if match is not None and match[0] == folder_name(int(match[1]))
        )

    def ids_if_any(self) -> list[int]:
        """Returns `ids`, or an empty list with a warning in the log if the parent folder cannot be listed."""
        try:
            return self.ids()
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)
            return []

    def is_folder(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint's folder exists and is no link, so that it may be removed."""
        return self._files.is_folder(self.path(checkpoint_id))

    def is_empty(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint's folder is empty, because its files were removed but the folder could not be."""
        try:
            return not self._files.list_folder(self.path(checkpoint_id))
        except OSError:
            return False  # reading its files reports the error

    def read(self, checkpoint_id: int, name: str) -> Iterator[bytes]:
        """The contents of a file, a piece at a time.

        Raises:
            CheckpointStorageError: the file is missing or cannot be read; the text starts with its name.
        """
        try:
            yield from self._files.read(os.path.join(self.path(checkpoint_id), name))
        except FileNotFoundError as error:
            raise CheckpointStorageError(f"{name} is missing") from error
        except OSError as error:
            raise CheckpointStorageError(f"{name} cannot be read: {error.strerror or error}") from error

    def remove(self, checkpoint_id: int, *, keep_folder: bool) -> bool:
        """Removes a checkpoint's files and folder. Returns whether there was anything to remove.

        Files that cannot be removed are logged and left. `keep_folder` leaves the folder, to reserve its number.
        """
        path = self.path(checkpoint_id)
        if not self.is_folder(checkpoint_id) or any(map(self._files.is_link, self._below_root(self.folder))):
            return False
        anything = self._remove_files(path, _OURS)
        if not keep_folder:
            # Fails if the folder contains other files.
            with contextlib.suppress(OSError):
                self._files.remove_folder(path)
                anything = True
        return anything

    def remove_temporary(self, checkpoint_id: int) -> None:
        """Removes temporary files of failed writes from a checkpoint's folder."""
        if self.is_folder(checkpoint_id):
            self._remove_files(self.path(checkpoint_id), _TEMPORARY)

    def _check_written(self, path: str, pieces: Sequence[bytes]) -> None:
        """Reads a file back. Raises OSError if it cannot be read, or differs from what was written."""
        expected = actual = 0
        for piece in pieces:
            expected = crc.crc32(piece, expected)
        for piece in self._files.read(path):
            actual = crc.crc32(piece, actual)
        if actual != expected:
            raise OSError(errno.EIO, "the file differs from what was written")

    def _check_below(self, folder: str) -> None:
        """Checks that no folder below the root is a link. Raises OSError."""
        for each in self._below_root(folder):
            if not self._files.is_folder(each):
                raise OSError(errno.ENOTDIR, _NOT_FOLLOWED.format(each))

    def _below_root(self, folder: str) -> Iterator[str]:
        while folder not in (self._root, os.path.dirname(folder)):
            yield folder
            folder = os.path.dirname(folder)

    def _make(self, folder: str) -> None:
        try:
            self._files.make_folder(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make(os.path.dirname(folder))
            self._make(folder)
            return
        self._files.sync_folder(os.path.dirname(folder))

    def _remove_files(self, folder: str, names: re.Pattern[str]) -> bool:
        """Removes the files of a folder with such names; returns whether there were any."""
        anything = False
        try:
            for name, is_folder in self._files.list_folder(folder):
                if not is_folder and names.fullmatch(name):
                    anything = True
                    self._files.remove(os.path.join(folder, name))
        except FileNotFoundError:
            pass  # another process removed it first
        except OSError as error:
            LOGGER.warning("checkpoint files in %s cannot be removed: %s", folder, error)
        return anything


def folder_name(checkpoint_id: int) -> str:
    """The name of a checkpoint's folder."""
    return f"chk-{checkpoint_id:08d}"
