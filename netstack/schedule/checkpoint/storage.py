"""Stores the checkpoints of a job in a folder: writes them crash-safely, and finds the newest valid one.

Takes: snapshots of tasks, then a manifest. Gives: the newest complete checkpoint, with all bytes verified.

    folder/chk-00000042/sink-0.1a2b3c4d.state   one subtask, see `snapshot`; named after its checksum
    folder/chk-00000042/manifest.json           written last; without it the folder is no checkpoint
    folder/epoch-00000003                       the master that may complete checkpoints, see `fence`

Rules:
- Every method may block on the disk: call it in a thread. Any number of threads and processes may write snapshots of
  one checkpoint. Only one master completes, prunes and discards, one at a time in whatever threads: the last one that
  took the folder over. Earlier masters are fenced and get `CheckpointFenced`.
- `folders` writes files atomically and decides which files are removed.
- A checkpoint number is never reused: used numbers belong to a folder or are noted in the epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from ...base.errors import CheckpointFenced, CheckpointStorageError, ConfigError
from ...base.text.safe_text import safe_repr
from .fence import CheckpointFence
from .files import CheckpointFiles
from .folders import MANIFEST_NAME, CheckpointFolders, folder_name
from .snapshot import (
    CRC_BYTES,
    Manifest,
    TaskFile,
    TaskSnapshot,
    check_crc32,
    check_header,
    check_pieces,
    decode_manifest,
    decode_snapshot,
    encode_manifest,
    encode_snapshot,
)

LOGGER: Final = logging.getLogger("netstack")


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that a job can be recovered from.

    Attributes:
        path: its folder.
        manifest: its manifest.
    """

    path: str
    manifest: Manifest

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        return self.manifest.checkpoint_id


@dataclass(frozen=True, slots=True)
class RefusedCheckpoint:
    """A checkpoint that `newest` skipped.

    Attributes:
        name: name of its folder.
        reason: the file, and why it is invalid.
    """

    name: str
    reason: str


@final
class CheckpointStorage:
    """The checkpoints of one job in one folder, which all its processes share.

    Checkpoints that earlier jobs left in the folder are neither used nor removed (`own_from`).

    Args:
        folder: the folder; created with the first snapshot. Other files in it are never touched.
        keep: number of complete checkpoints that `prune` keeps; savepoints do not count and are always kept.
        owner: name of this master, for error messages to other masters.
        files: the system calls.
        root: a folder above `folder`, below which no link is followed; None: links may lead to `folder`.

    Raises:
        ConfigError: `keep` is below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        owner: str = "a master",
        files: CheckpointFiles | None = None,
        root: str | None = None,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} checkpoints; give at least 1, since a job restarts from the newest one")
        self.folder = os.path.abspath(folder)
        self._keep = keep
        files = CheckpointFiles() if files is None else files
        self.root = root
        self._folders = CheckpointFolders(self.folder, files, root=root)
        self._fence = CheckpointFence(self._folders, files)
        self._owner = owner
        self._refused: tuple[RefusedCheckpoint, ...] = ()
        self._first_own = 0
        self._changes = threading.RLock()  # held while this master changes the folder
        self._verified: set[int] = set()  # complete checkpoints that this object has written or verified

    @property
    def refused(self) -> tuple[RefusedCheckpoint, ...]:
        """The checkpoints that the last call of `newest` skipped, newest first."""
        return self._refused

    # Ownership.

    def take_over(self, *, steal: bool = False) -> int:
        """Makes this object the master of the folder; call it before `newest` determines the checkpoint to restore.

        The earlier master is fenced. `complete`, `prune` and `discard` take over by themselves if there is no master.

        Args:
            steal: also take over from a live process, which is stopped or unreachable.

        Returns:
            The new epoch, greater than all earlier ones.

        Raises:
            CheckpointFenced: another live process owns the folder; the text names it.
            CheckpointStorageError: the disk is full or broken.
        """
        with self._changes:
            self._fence.take_over(self._owner, steal=steal)
            return self._fence.epoch

    def close(self) -> None:
        """Lets masters of other processes take over, as the end of the process does. Idempotent."""
        self._fence.close()

    def own_from(self, first: int) -> None:
        """Says which checkpoints are the job's own: those from number `first` on."""
        self._first_own = first

    def path(self, checkpoint_id: int) -> str:
        """The folder of a checkpoint, whether it exists or not."""
        return self._folders.path(checkpoint_id)

    # Writing.

    def write_task(self, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskFile:
        """Writes the snapshot of one subtask; once it returns, the snapshot survives a power failure.

        Returns:
            The file, for the subtask's acknowledgement.

        Raises:
            StateNotPlain: the state is not plain data.
            CheckpointStorageError: the disk is full or broken, or the checkpoint is already complete. Temporary files
                are removed if possible. Abort the checkpoint; the job can continue.
        """
        pieces, file = encode_snapshot(checkpoint_id, snapshot)
        if self._folders.has_file(checkpoint_id, MANIFEST_NAME):
            raise CheckpointStorageError(
                f"checkpoint {checkpoint_id} in {self._folders.path(checkpoint_id)} is already complete, so {file.name}"
                " is too late; this process belongs to an earlier run of the job"
            )
        self._folders.write(checkpoint_id, file.name, pieces)
        return file

    def complete(self, manifest: Manifest) -> CompletedCheckpoint:
        """Completes a checkpoint by writing its manifest.

        Raises:
            CheckpointFenced: another master has taken over; this one can complete nothing any more.
            CheckpointStorageError: the disk is full or broken, or a state file is missing. `discard` it then.
        """
        with self._owned():
            checkpoint_id = manifest.checkpoint_id
            manifest = replace(manifest, epoch=self._fence.epoch)
            folder = self._folders.path(checkpoint_id)
            for file in manifest.files:
                path = os.path.join(folder, file.name)
                try:
                    size_bytes = self._folders.size_bytes(checkpoint_id, file.name)
                except OSError as error:
                    raise CheckpointStorageError(
                        f"checkpoint {checkpoint_id}: {path} was acknowledged but is missing: {error.strerror};"
                        " give all processes of the job the same folder"
                    ) from error
                if size_bytes != file.size_bytes:
                    raise CheckpointStorageError(
                        f"checkpoint {checkpoint_id}: {path} has {size_bytes} bytes, but {file.size_bytes} were"
                        " acknowledged: another job writes there; give every job its own folder"
                    )
            self._folders.write(checkpoint_id, MANIFEST_NAME, [encode_manifest(manifest)], is_first=True)
            self._fence.check()  # a master that took over meanwhile may not have seen the manifest
            self._verified.add(checkpoint_id)
            return CompletedCheckpoint(folder, manifest)

    # Reading.

    def newest(self, *, of_job: bool = False) -> CompletedCheckpoint | None:
        """The newest complete checkpoint: the highest number of the newest epoch. All its files are decoded.

        A newer checkpoint that is damaged, incomplete or of a fenced master is listed in `refused`, and logged as a
        warning by the logger `netstack`.

        Args:
            of_job: skip savepoints after which the job continued, since the job does not restart from them.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            CheckpointStorageError: the folder itself cannot be listed.
        """
        manifests: list[Manifest] = []
        reasons: dict[int, str] = {}
        for checkpoint_id in filter(self._is_own, self._folders.ids()):
            if self._folders.is_empty(checkpoint_id):
                continue  # its files were removed, but not the folder
            try:
                manifest = self._manifest(checkpoint_id)
            except CheckpointStorageError as error:
                reasons[checkpoint_id] = str(error)
            else:
                if not (of_job and manifest.job_goes_on):
                    manifests.append(manifest)
        manifests.sort(key=lambda manifest: (manifest.epoch, manifest.checkpoint_id))
        newest: Manifest | None = None
        while manifests and newest is None:
            candidate = manifests.pop()
            try:
                self._check(candidate)
            except CheckpointStorageError as error:
                reasons[candidate.checkpoint_id] = str(error)
            else:
                newest = candidate
        if newest is not None:
            for older in manifests:
                if older.checkpoint_id > newest.checkpoint_id:
                    reasons[older.checkpoint_id] = (
                        f"{MANIFEST_NAME} is of epoch {older.epoch}, whose master was replaced before epoch"
                        f" {newest.epoch} completed checkpoint {newest.checkpoint_id}"
                    )
        newer = [number for number in sorted(reasons, reverse=True) if newest is None or number > newest.checkpoint_id]
        for number in newer:
            LOGGER.warning(
                "checkpoint %s is invalid, trying an older one: %s", self._folders.path(number), reasons[number]
            )
        self._refused = tuple(RefusedCheckpoint(folder_name(number), reasons[number]) for number in newer)
        return None if newest is None else CompletedCheckpoint(self._folders.path(newest.checkpoint_id), newest)

    def next_id(self) -> int:
        """A number greater than that of every checkpoint that was ever begun in this folder; 1 in a new folder.

        Raises:
            CheckpointStorageError: the folder cannot be listed.
        """
        try:
            return max(*self._folders.ids(), self._fence.used(), 0) + 1
        except OSError as error:
            raise CheckpointStorageError(
                f"the checkpoint folder {self.folder} cannot be listed: {error.strerror or error}"
            ) from error

    def read(self, checkpoint_id: int) -> list[TaskSnapshot]:
        """The snapshots of all subtasks of a complete checkpoint, ordered by task and subtask.

        Raises:
            CheckpointStorageError: the checkpoint is incomplete or damaged; the text names the file and the reason.
        """
        return [*self.snapshots(checkpoint_id)]

    def snapshots(self, checkpoint_id: int) -> Iterator[TaskSnapshot]:
        """Yields the snapshots of `read` one by one, so that they need not all be in memory. Raises as `read`."""
        for file in sorted(self._manifest(checkpoint_id).files, key=lambda file: (file.task, file.subtask)):
            yield self._snapshot(checkpoint_id, file)

    # Removing.

    def discard(self, checkpoint_id: int) -> None:
        """Removes the files of an aborted checkpoint. Files that cannot be removed are logged and left.

        If another master has taken over, nothing is removed.
        """
        with self._only_logging(), self._owned():
            self._remove(checkpoint_id, max(self._folders.ids_if_any(), default=0))

    def prune(self, *, incomplete: bool = False) -> list[int]:
        """Removes obsolete checkpoints.

        These are complete checkpoints beyond `keep`, and incomplete or damaged ones that are older than the newest one
        the job can restart from. That one and savepoints are always kept. Files that cannot be removed are logged and
        left.

        Args:
            incomplete: also remove incomplete checkpoints that are newer than the newest complete one; only allowed
                while no checkpoint is written, such as before a job starts.

        Returns:
            The numbers of the removed checkpoints, newest first.

        Raises:
            CheckpointFenced: another master has the folder.
        """
        removed: list[int] = []
        with self._only_logging(CheckpointFenced), self._owned():
            removed += self._pruned(incomplete)
        return removed

    def _pruned(self, incomplete: bool) -> list[int]:
        ids = [*filter(self._is_own, self._folders.ids_if_any())]
        kept = 0
        newest: int | None = None
        removed = []
        for checkpoint_id in reversed(ids):
            manifest = self._manifest_if_any(checkpoint_id)
            is_good = manifest is not None and self._is_good(manifest)
            if manifest is not None and is_good and newest is None and not manifest.job_goes_on:
                newest = checkpoint_id
            if manifest is not None and manifest.is_savepoint:
                self._folders.remove_temporary(checkpoint_id)
            elif is_good and kept < self._keep:
                kept += 1
                self._folders.remove_temporary(checkpoint_id)
            elif (newest is not None or incomplete) and self._remove(checkpoint_id, ids[-1]):
                removed.append(checkpoint_id)
        return removed

    def remove_all(self) -> None:
        """Removes all checkpoints of the job except savepoints, after it has ended.

        Files that cannot be removed are logged and left. If another master owns the folder, nothing is removed.
        """
        with self._only_logging(), self._owned():
            ids = [*filter(self._is_own, self._folders.ids_if_any())]
            for checkpoint_id in ids:
                manifest = self._manifest_if_any(checkpoint_id)
                if manifest is None or not manifest.is_savepoint:
                    self._remove(checkpoint_id, ids[-1])

    # Inside.

    def _is_own(self, checkpoint_id: int) -> bool:
        return checkpoint_id >= self._first_own

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        """Makes a change of the folder: alone, and as its master; the first change takes the folder over.

        Raises:
            CheckpointFenced: another master owns the folder.
            CheckpointStorageError: the disk is full or broken.
        """
        with self._changes:
            if self._fence.epoch:
                self._fence.check()
            elif self._folders.exists():
                self.take_over()
            yield

    @contextlib.contextmanager
    def _only_logging(self, raised: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except raised:
            raise
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)

    def _remove(self, checkpoint_id: int, highest: int) -> bool:
        """Removes a checkpoint. Notes its number first if it is the highest, so that it is not reused."""
        self._verified.discard(checkpoint_id)
        keep_folder = False
        if not self._folders.is_folder(checkpoint_id):
            return False
        if checkpoint_id >= highest:
            try:
                self._fence.note_used(checkpoint_id)
            except CheckpointFenced:
                raise
            except CheckpointStorageError as error:
                LOGGER.warning(
                    "the empty folder of checkpoint %s stays, so that its number is not used again: %s",
                    checkpoint_id,
                    error,
                )
                keep_folder = True
        return self._folders.remove(checkpoint_id, keep_folder=keep_folder)

    def _snapshot(self, checkpoint_id: int, file: TaskFile) -> TaskSnapshot:
        """Reads and decodes one file.

        Raises:
            CheckpointStorageError: it is missing or damaged; the text names it and the reason.
        """
        data = b"".join(self._folders.read(checkpoint_id, file.name))
        with _naming(file.name):
            check_header(data, len(data))
            check_crc32(int.from_bytes(data[-CRC_BYTES:], "big"), file.crc32)
            snapshot = decode_snapshot(data, checkpoint_id)
            if (snapshot.task, snapshot.subtask) != (file.task, file.subtask):
                raise CheckpointStorageError(
                    f"holds the state of {safe_repr(snapshot.task)}-{safe_repr(snapshot.subtask)}"
                )
        return snapshot

    def _check(self, manifest: Manifest) -> None:
        """Reads and decodes every file of a checkpoint, one at a time.

        Raises:
            CheckpointStorageError: a file is missing or damaged; the text names it and the reason.
        """
        for file in manifest.files:
            self._snapshot(manifest.checkpoint_id, file)
        self._verified.add(manifest.checkpoint_id)

    def _manifest(self, checkpoint_id: int) -> Manifest:
        data = b"".join(self._folders.read(checkpoint_id, MANIFEST_NAME))
        with _naming(MANIFEST_NAME):
            return decode_manifest(data, checkpoint_id)

    def _manifest_if_any(self, checkpoint_id: int) -> Manifest | None:
        try:
            return self._manifest(checkpoint_id)
        except CheckpointStorageError:
            return None

    def _verify(self, manifest: Manifest) -> None:
        """Compares the checksums of every file of a checkpoint.

        Raises:
            CheckpointStorageError: a file is missing or damaged; the text names it and the reason.
        """
        for file in manifest.files:
            with _naming(file.name):
                check_pieces(self._folders.read(manifest.checkpoint_id, file.name), file.crc32)
        self._verified.add(manifest.checkpoint_id)

    def _is_good(self, manifest: Manifest) -> bool:
        if manifest.checkpoint_id not in self._verified:
            try:
                self._verify(manifest)
            except CheckpointStorageError:
                return False
        return True


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Puts a file's name in front of the error's text."""
    try:
        yield
    except CheckpointStorageError as error:
        raise CheckpointStorageError(f"{name} {error}") from error
