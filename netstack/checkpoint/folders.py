"""The folders of checkpoints: their names, files that are written whole or not at all, and removal of what is ours.

Takes: numbers of checkpoints, names and bytes of files. Gives: what is there; `CheckpointStorageError` with the path
and what to do. What the files mean is the affair of `storage`.

Rules:
- A file is written under a temporary name, synchronised, renamed, and its folder synchronised. What a crash or a full
  disk leaves is a temporary file, which nobody reads.
- Only files whose names are ours are ever removed, in folders whose names are ours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from ..errors import CheckpointStorageError
from .files import CheckpointFiles

LOGGER: Final = logging.getLogger("netstack")
MANIFEST_NAME: Final = "manifest.json"

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")
_TEMPORARY: Final = re.compile(r"\..*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_OURS: Final = re.compile(rf"{re.escape(MANIFEST_NAME)}|.*-\d+\.state|{_TEMPORARY.pattern}", re.DOTALL)
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

    def write(self, checkpoint_id: int, name: str, pieces: Sequence[bytes]) -> None:
        """Writes a file so that it is there whole or not at all.

        Raises:
            CheckpointStorageError: the disk is full or broken. No temporary file is left if it lets us remove it.
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
            self._files.rename(temporary, path)
            self._files.sync_folder(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
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
        """The numbers of all folders that are ours, ascending.

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
        ids = []
        for name, is_folder in entries:
            match = _FOLDER.fullmatch(name)
            if is_folder and match is not None and name == folder_name(int(match[1])):
                ids.append(int(match[1]))
        return sorted(ids)

    def ids_if_any(self) -> list[int]:
        """The same for what must not fail: nothing, and a warning."""
        try:
            return self.ids()
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)
            return []

    def is_empty(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint was discarded, and its folder only keeps the number."""
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
        anything = self._remove_files(path, _OURS)
        if not keep_folder:
            # Refused where somebody else keeps files in it.
            with contextlib.suppress(OSError):
                self._files.remove_folder(path)
                anything = True
        return anything

    def remove_temporary(self, checkpoint_id: int) -> None:
        """Removes what writes that failed have left with a checkpoint."""
        self._remove_files(self.path(checkpoint_id), _TEMPORARY)

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
