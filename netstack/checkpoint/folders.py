"""The folders of checkpoints: their names, files that are written whole or not at all, and removal of what is ours.

Takes: numbers of checkpoints, names and bytes of files. Gives: what is there; `CheckpointStorageError` with the path
and what to do. What the files mean is the affair of `storage`.

Rules:
- A file is written under a temporary name, synchronised, renamed, its folder synchronised, and read back. What a crash
  or a full disk leaves is a temporary file, which nobody reads.
- Only files whose names are ours are ever removed, in folders whose names are ours; a link to a folder is followed by
  who reads, and left alone by who removes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from .. import crc
from ..errors import CheckpointStorageError
from .files import CheckpointFiles

LOGGER: Final = logging.getLogger("netstack")
MANIFEST_NAME: Final = "manifest.json"

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")
_TEMPORARY: Final = re.compile(r"\..*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_OURS: Final = re.compile(rf"{re.escape(MANIFEST_NAME)}|.*-\d+\.[0-9a-f]{{8}}\.state|{_TEMPORARY.pattern}", re.DOTALL)
_RANDOM_BYTES: Final = 4


@final
class CheckpointFolders:
    """The folders of one job's checkpoints.

    Args:
        folder: they are in; made when the first file is written.
        files: the system calls.
        random_bytes: source of temporary names.
    """

    def __init__(self, folder: str, files: CheckpointFiles, random_bytes: Callable[[int], bytes]) -> None:
        self.folder = folder
        self._files = files
        self._random_bytes = random_bytes

    def path(self, checkpoint_id: int) -> str:
        """The folder of a checkpoint, whether it exists or not."""
        return os.path.join(self.folder, folder_name(checkpoint_id))

    def exists(self) -> bool:
        """Whether there is the folder that they are in."""
        try:
            self._files.list_folder(self.folder)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # whoever uses it will say what is wrong
        return True

    def make(self) -> None:
        """Makes the folder that they are in.

        Raises:
            OSError: the disk is full or broken.
        """
        self._make(self.folder)

    def write(self, checkpoint_id: int, name: str, pieces: Sequence[bytes], *, is_first: bool = False) -> None:
        """Writes a file so that it is there whole or not at all, and reads it back.

        Args:
            checkpoint_id: whose.
            name: of the file.
            pieces: its bytes, one after the other.
            is_first: whether there must not be a file of this name; else it is replaced.

        Raises:
            CheckpointStorageError: the disk is full or broken, returns other bytes, or there is such a file. No
                temporary file is left if the disk lets us remove it.
        """
        folder = self.path(checkpoint_id)
        path = os.path.join(folder, name)
        temporary = os.path.join(folder, f".{name}.{self._random_bytes(_RANDOM_BYTES).hex()}.tmp")
        written = 0
        try:
            self._make(folder)
            file = self._files.create(temporary)
            with file:
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
                    f"{path} is there already: another master has completed a checkpoint of this number; give every job"
                    " a folder of its own"
                ) from error
            raise CheckpointStorageError(
                f"writing {path} failed after {written} of {sum(map(len, pieces))} bytes: {error.strerror or error};"
                " make room there or choose another folder, or the job goes on without checkpoints"
            ) from error

    def size_bytes(self, checkpoint_id: int, name: str) -> int:
        """The length of a file.

        Raises:
            OSError: it is not there.
        """
        return self._files.size_bytes(os.path.join(self.path(checkpoint_id), name))

    def has_file(self, checkpoint_id: int, name: str) -> bool:
        """Whether a file is there."""
        try:
            self.size_bytes(checkpoint_id, name)
        except OSError:
            return False
        return True

    def ids(self) -> list[int]:
        """The numbers of all that is called as a checkpoint is, ascending: folders, and what is in the place of one.

        Raises:
            CheckpointStorageError: the folder they are in cannot be listed.
        """
        try:
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
        """The same for what must not fail: nothing, and a warning."""
        try:
            return self.ids()
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)
            return []

    def is_folder(self, checkpoint_id: int) -> bool:
        """Whether there is a folder, and no link to one: something that may be removed."""
        return self._files.is_folder(self.path(checkpoint_id))

    def is_empty(self, checkpoint_id: int) -> bool:
        """Whether the files of a checkpoint were removed, and its folder could not be."""
        try:
            return not self._files.list_folder(self.path(checkpoint_id))
        except OSError:
            return False  # reading its files will say what is wrong

    def read(self, checkpoint_id: int, name: str) -> Iterator[bytes]:
        """The contents of a file, a piece at a time.

        Raises:
            CheckpointStorageError: it is missing, or cannot be read; the text starts with its name.
        """
        try:
            yield from self._files.read(os.path.join(self.path(checkpoint_id), name))
        except FileNotFoundError as error:
            raise CheckpointStorageError(f"{name} is missing") from error
        except OSError as error:
            raise CheckpointStorageError(f"{name} cannot be read: {error.strerror or error}") from error

    def remove(self, checkpoint_id: int, *, keep_folder: bool) -> bool:
        """Removes a checkpoint's files and folder. Returns whether there was anything of ours.

        What the disk refuses to remove is logged and left; so is the folder, if it is to keep its number.
        """
        path = self.path(checkpoint_id)
        if not self.is_folder(checkpoint_id):
            return False
        anything = self._remove_files(path, _OURS)
        if not keep_folder:
            # Refused where somebody else keeps files in it.
            with contextlib.suppress(OSError):
                self._files.remove_folder(path)
                anything = True
        return anything

    def remove_temporary(self, checkpoint_id: int) -> None:
        """Removes what writes that failed have left with a checkpoint."""
        if self.is_folder(checkpoint_id):
            self._remove_files(self.path(checkpoint_id), _TEMPORARY)

    def _check_written(self, path: str, pieces: Sequence[bytes]) -> None:
        """Reads a file back.

        Raises:
            OSError: it cannot be read, or is not as it was written.
        """
        expected = found = 0
        for piece in pieces:
            expected = crc.crc32(piece, expected)
        for piece in self._files.read(path):
            found = crc.crc32(piece, found)
        if found != expected:
            raise OSError(errno.EIO, "what is read back is not what was written")

    def _make(self, folder: str) -> None:
        """Makes a folder, and those it is in."""
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
            pass  # somebody else was faster
        except OSError as error:
            LOGGER.warning("checkpoint files in %s cannot be removed: %s", folder, error)
        return anything


def folder_name(checkpoint_id: int) -> str:
    """How the folder of a checkpoint is called."""
    return f"chk-{checkpoint_id:08d}"
