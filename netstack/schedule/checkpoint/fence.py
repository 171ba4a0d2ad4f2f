"""Fencing: ensures that only one master completes checkpoints in a folder, with a file lock and increasing epochs.

Takes: the folder. Gives: an epoch to each master that takes it over; whether an epoch is still the newest.

    folder/epoch-00000003     written by the third master; locked while its process lives

Rules:
- Only one master can create the file of an epoch, which never changes. It is readable JSON, with the owner and the
  highest checkpoint number whose folder was removed, so that no number is reused.
- The lock keeps masters of other processes out. Within a process the last master that took over owns the folder.
  Without locks (on some network file systems) only the epochs decide.
- A master of an older epoch is fenced forever. An epoch belongs to its master from the moment its file exists, whatever
  becomes of the file, so that a master never fences itself.
- A master checks its epoch after it has published a manifest, and a new master searches for manifests after it has
  taken over. So a checkpoint that one master reports as complete is never missed by the next one, even without a lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import weakref
from collections.abc import Iterator
from typing import Any, Final, final

from ...base.errors import CheckpointFenced, CheckpointStorageError
from ...base.text.safe_text import safe_text
from .files import CheckpointFiles
from .folders import CheckpointFolders

LOGGER: Final = logging.getLogger("netstack")

_EPOCH: Final = re.compile(r"epoch-(\d{8,18})")
_MAX_BYTES: Final = 4096
_TRIES: Final = 100


@final
class CheckpointFence:
    """The epochs of one folder, as one master sees them.

    Args:
        folders: the folders of the checkpoints; `take_over` creates the parent folder.
        files: the system calls.

    Attributes:
        epoch: the epoch of this master; 0 before `take_over`.
    """

    def __init__(self, folders: CheckpointFolders, files: CheckpointFiles) -> None:
        self.epoch = 0
        self._mine: set[int] = set()  # all epochs that this master created
        self._folders = folders
        self._folder = folders.folder
        self._files = files
        self._owner = ""
        self._close: weakref.finalize[Any, CheckpointFence] | None = None

    def take_over(self, owner: str, *, steal: bool = False, used: int = 0) -> None:
        """Creates a new epoch for this master, which fences all older ones.

        Args:
            owner: name of this master, for messages.
            steal: also take over from a live process, which is stopped or unreachable.
            used: the highest checkpoint number whose folder will be removed.

        Raises:
            CheckpointFenced: the process of another master lives, or other masters keep taking over.
            CheckpointStorageError: the disk is full or broken.
        """
        with self._explaining("taken over"):
            for _ in range(_TRIES):
                epochs = self._epochs()
                if not steal:
                    self._check_free(epochs)
                if self._claim(epochs, owner, used):
                    return
        raise CheckpointFenced(
            f"other masters keep taking over the checkpoint folder {self._folder}; give every job its own folder"
        )

    def note_used(self, number: int) -> None:
        """Notes in a new epoch that a number is used, before the checkpoint's folder is removed.

        Raises:
            CheckpointFenced: this master is fenced.
            CheckpointStorageError: the disk is full or broken; do not remove the folder then.
        """
        with self._explaining("taken over"):
            while not self._claim(self._checked(), self._owner, number):
                pass  # the next check tells of the master that was faster

    def check(self) -> None:
        """Checks that this master has the newest epoch.

        Raises:
            CheckpointFenced: another master has a newer one.
            CheckpointStorageError: the folder cannot be read.
        """
        with self._explaining("listed"):
            self._checked()

    def used(self) -> int:
        """The highest checkpoint number whose folder was removed, according to the epochs.

        Raises:
            OSError: the folder cannot be listed.
        """
        return max((_number(self._contents(epoch).get("used")) for epoch in self._epochs()), default=0)

    def close(self) -> None:
        """Releases the lock; the epoch stays the newest until another master takes over. Idempotent."""
        if self._close is not None:
            self._close()
            self._close = None

    # Inside.

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointStorageError(
                f"the checkpoint folder {self._folder} cannot be {what}: {error.strerror or error}; give a folder"
                " with free space that this user may read and write"
            ) from error

    def _checked(self) -> list[int]:
        """All epochs, of which this master has the newest. Raises CheckpointFenced if another master has it."""
        epochs = self._epochs()
        newest = max(epochs, default=0)
        if newest > self.epoch and newest not in self._mine:
            raise CheckpointFenced(
                f"epoch {newest} of the checkpoint folder {self._folder} belongs to {self._owner_of(newest)}, but this"
                f" master has epoch {self.epoch}: it was replaced and completes no more checkpoints; stop it, and give"
                " every job its own folder"
            )
        return epochs

    def _epochs(self) -> list[int]:
        self._folders.check()
        try:
            entries = self._files.list_folder(self._folder)
        except FileNotFoundError:
            return []
        matches = (_EPOCH.fullmatch(name) for name, _ in entries)
        return [int(match[1]) for match in matches if match is not None and match[0] == _name(int(match[1]))]

    def _check_free(self, epochs: list[int]) -> None:
        for epoch in sorted(epochs, reverse=True):
            if self._files.is_locked_by_another(os.path.join(self._folder, _name(epoch))):
                raise CheckpointFenced(
                    f"the checkpoint folder {self._folder} belongs to {self._owner_of(epoch)}, which is still running"
                    f" (epoch {epoch}); give every job its own folder, or stop that process first"
                )

    def _claim(self, epochs: list[int], owner: str, used: int) -> bool:
        """Creates the epoch after these; returns False if another master was faster. Raises OSError."""
        epoch = max(epochs, default=0) + 1
        path = os.path.join(self._folder, _name(epoch))
        document = {"owner": owner, "pid": os.getpid(), "host": os.uname().nodename, "used": max(used, self.used())}
        self._folders.make()
        try:
            file = self._files.create(path)
        except FileExistsError:
            return False
        self._mine.add(epoch)
        try:
            with file:
                rest = memoryview(json.dumps(document).encode() + b"\n")
                while rest:
                    rest = rest[self._files.write(file, rest) :]
                self._files.sync(file)
            self._files.sync_folder(self._folder)
            lock = self._files.lock(path)
        except OSError:
            self._files.remove(path)
            raise
        self.close()
        self._close = weakref.finalize(self, self._files.unlock, lock)
        self.epoch = max(epoch, self.epoch)
        self._owner = owner
        self._remove(epochs)
        return True

    def _remove(self, epochs: list[int]) -> None:
        for epoch in epochs:
            try:
                self._files.remove(os.path.join(self._folder, _name(epoch)))
            except FileNotFoundError:
                pass  # the next master removed it first
            except OSError as error:
                LOGGER.warning("epoch %s in %s cannot be removed: %s", epoch, self._folder, error)

    def _contents(self, epoch: int) -> dict[str, Any]:
        """The contents of an epoch's file; empty if it is missing or incomplete."""
        try:
            data = b"".join(self._files.read(os.path.join(self._folder, _name(epoch))))[:_MAX_BYTES]
            document = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def _owner_of(self, epoch: int) -> str:
        contents = self._contents(epoch)
        if not contents:
            return "another master"
        values = [str(contents.get(name, "?")) for name in ("owner", "pid", "host")]
        return "{} (process {} on {})".format(*map(safe_text, values))


def _name(epoch: int) -> str:
    return f"epoch-{epoch:08d}"


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
