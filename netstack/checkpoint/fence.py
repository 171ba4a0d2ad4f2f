"""Who may complete checkpoints in a folder: one lock that dies with its process, and numbers that only grow.

Takes: the folder. Gives: an epoch to each master that takes it over; whether an epoch is still the newest.

    folder/epoch-00000003     written by the third master; locked while its process lives

Rules:
- A file of an epoch is created, which only one can do, and never changed. Its contents, JSON for people to read, say
  who took over, and the highest checkpoint number whose folder was removed again: no number is used twice.
- A process that holds the lock keeps masters of other processes out; within a process the last one to take over owns
  the folder. Where there are no locks (some network file systems) epochs alone decide.
- Whoever is not of the newest epoch is fenced, for good. A master looks after it has published a manifest, whoever
  takes over looks for manifests after it has taken over; so no checkpoint is told to be complete by the one and missed
  by the other, without any lock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from typing import Any, Final, final

from ..errors import CheckpointFenced, CheckpointStorageError
from ..shown import shown_text
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
        folders: of the checkpoints; the one they are in is made when it is taken over.
        files: the system calls.

    Attributes:
        epoch: ours; 0 before `take_over`.
    """

    def __init__(self, folders: CheckpointFolders, files: CheckpointFiles) -> None:
        self.epoch = 0
        self._folders = folders
        self._folder = folders.folder
        self._files = files
        self._owner = ""
        self._close: weakref.finalize[Any, CheckpointFence] | None = None

    def take_over(self, owner: str, *, steal: bool = False, used: int = 0) -> None:
        """Makes a new epoch, ours. Every older one is fenced from then on.

        Args:
            owner: who it is, for messages.
            steal: also from a master whose process lives: one that is stopped, or cannot be reached.
            used: the highest number whose folder is to be removed.

        Raises:
            CheckpointFenced: the process of another master lives, or others are faster without end.
            CheckpointStorageError: the disk is full or broken.
        """
        try:
            for _ in range(_TRIES):
                epochs = self._epochs()
                if not steal:
                    self._check_free(epochs)
                file = os.path.join(self._folder, _name(max(epochs, default=0) + 1))
                try:
                    self._claim(file, owner, max(used, self.used()))
                except FileExistsError:
                    continue
                self.epoch = max(epochs, default=0) + 1
                self._owner = owner
                self._remove(epochs)
                return
        except OSError as error:
            raise CheckpointStorageError(
                f"the checkpoint folder {self._folder} cannot be taken over: {error.strerror or error}; give a folder"
                " that this user may read and write, with room"
            ) from error
        raise CheckpointFenced(f"other masters take over the checkpoint folder {self._folder} without end")

    def note_used(self, number: int) -> None:
        """A checkpoint's folder is about to be removed, and its number is not to be used again: the next epoch, ours.

        Raises:
            CheckpointFenced: we are fenced.
            CheckpointStorageError: the disk is full or broken; then leave the folder.
        """
        self.check()
        self.take_over(self._owner, steal=True, used=number)

    def check(self) -> None:
        """Returns if ours is the newest epoch.

        Raises:
            CheckpointFenced: it is not.
            CheckpointStorageError: the folder cannot be read.
        """
        try:
            newest = max(self._epochs(), default=0)
        except OSError as error:
            raise CheckpointStorageError(
                f"the checkpoint folder {self._folder} cannot be listed: {error.strerror or error}"
            ) from error
        if newest > self.epoch:
            raise CheckpointFenced(
                f"epoch {newest} of the checkpoint folder {self._folder} belongs to {self._told(newest)}, and this"
                f" master is of epoch {self.epoch}: it was replaced, and completes no checkpoint; end it, and give"
                " every job a folder of its own"
            )

    def used(self) -> int:
        """The highest number whose folder was removed, by what is known.

        Raises:
            OSError: the folder cannot be listed.
        """
        return max((_number(self._contents(epoch).get("used")) for epoch in self._epochs()), default=0)

    def close(self) -> None:
        """Lets go of the lock; the epoch stays the newest until somebody takes over. Idempotent."""
        if self._close is not None:
            self._close()
            self._close = None

    # Inside.

    def _epochs(self) -> list[int]:
        try:
            entries = self._files.list_folder(self._folder)
        except FileNotFoundError:
            return []
        matches = (_EPOCH.fullmatch(name) for name, _ in entries)
        return [int(match[1]) for match in matches if match is not None and match[0] == _name(int(match[1]))]

    def _check_free(self, epochs: list[int]) -> None:
        newest = max(epochs, default=0)
        path = os.path.join(self._folder, _name(newest))
        if newest and self._files.is_locked_by_another(path):
            raise CheckpointFenced(
                f"the checkpoint folder {self._folder} belongs to {self._told(newest)}, whose process lives (epoch"
                f" {newest}); give every job a folder of its own, or end that one first"
            )

    def _claim(self, path: str, owner: str, used: int) -> None:
        document = {"owner": owner, "pid": os.getpid(), "host": os.uname().nodename, "used": used}
        self._folders.make()
        file = self._files.create(path)
        try:
            with file:
                rest = memoryview(json.dumps(document).encode() + b"\n")
                while rest:
                    rest = rest[self._files.write(file, rest) :]
                self._files.sync(file)
            self._files.sync_folder(self._folder)
        except OSError:
            self._files.remove(path)
            raise
        self.close()
        self._close = weakref.finalize(self, self._files.unlock, self._files.lock(path))

    def _remove(self, epochs: list[int]) -> None:
        for epoch in epochs:
            try:
                self._files.remove(os.path.join(self._folder, _name(epoch)))
            except FileNotFoundError:
                pass  # whoever took over next was faster
            except OSError as error:
                LOGGER.warning("epoch %s in %s cannot be removed: %s", epoch, self._folder, error)

    def _contents(self, epoch: int) -> dict[str, Any]:
        """What a file says; nothing if it is gone, or half written."""
        try:
            data = b"".join(self._files.read(os.path.join(self._folder, _name(epoch))))[:_MAX_BYTES]
            document = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def _told(self, epoch: int) -> str:
        found = self._contents(epoch)
        if not found:
            return "another master"
        said = [str(found.get(name, "?")) for name in ("owner", "pid", "host")]
        return "{} (process {} on {})".format(*map(shown_text, said))


def _name(epoch: int) -> str:
    return f"epoch-{epoch:08d}"


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
