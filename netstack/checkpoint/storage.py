"""The folder of checkpoints: writes them so that a crash leaves only whole ones, finds the newest that can be used.

Takes: snapshots of tasks, then a manifest. Gives: the newest complete checkpoint, whose every byte was verified.

    folder/chk-00000042/sink-0.state     one subtask, see `snapshot`
    folder/chk-00000042/manifest.json    written last: without it the folder is no checkpoint

Rules:
- Everything here may block on the disk: call it in a thread. Any number of threads, and processes, may write tasks of
  one checkpoint; one process completes, prunes and discards.
- How files are written whole or not at all, and which are removed, is the affair of `folders`.
- The folder with the highest number is emptied but not removed: a number that was used is not used again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

from ..errors import CheckpointStorageError, ConfigError
from .files import CheckpointFiles
from .folders import MANIFEST_NAME, CheckpointFolders, folder_name
from .snapshot import (
    CRC_BYTES,
    HEADER_BYTES,
    Manifest,
    TaskFile,
    TaskSnapshot,
    check_crc32,
    check_header,
    decode_manifest,
    decode_snapshot,
    encode_manifest,
    encode_snapshot,
)

LOGGER: Final = logging.getLogger("netstack")


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that can be recovered from.

    Attributes:
        path: its folder.
        manifest: what it consists of.
    """

    path: str
    manifest: Manifest

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        return self.manifest.checkpoint_id


@dataclass(frozen=True, slots=True)
class RefusedCheckpoint:
    """A checkpoint that `newest` passed over.

    Attributes:
        name: of its folder.
        reason: the file, and what is wrong with it.
    """

    name: str
    reason: str


@final
class CheckpointStorage:
    """The checkpoints of one job in one folder, which all its processes share.

    Args:
        folder: where; made when the first task is written. Nobody else's files in it are touched.
        keep: how many complete checkpoints `prune` leaves; savepoints do not count, and stay.
        files: the system calls.
        random_bytes: source of temporary names.

    Raises:
        ConfigError: `keep` is below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        files: CheckpointFiles | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} checkpoints; give at least 1: the newest one is what a job restarts from")
        self.folder = os.path.abspath(folder)
        self._keep = keep
        self._folders = CheckpointFolders(self.folder, CheckpointFiles() if files is None else files, random_bytes)
        self._refused: tuple[RefusedCheckpoint, ...] = ()
        self._verified: set[int] = set()  # complete checkpoints that this object has written or read through

    @property
    def refused(self) -> tuple[RefusedCheckpoint, ...]:
        """What the last call of `newest` passed over, newest first."""
        return self._refused

    # Writing.

    def write_task(self, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskFile:
        """Writes one subtask's part of a checkpoint; when it returns the part survives a power failure.

        Returns:
            What the subtask acknowledges with.

        Raises:
            CheckpointError: the state is not plain data.
            CheckpointStorageError: the disk is full or broken, or the checkpoint is complete already. No temporary file
                is left if the disk lets us remove it. Abort the checkpoint; the job can go on.
        """
        pieces, file = encode_snapshot(checkpoint_id, snapshot)
        if self._folders.has_file(checkpoint_id, MANIFEST_NAME):
            raise CheckpointStorageError(
                f"checkpoint {checkpoint_id} in {self._folders.path(checkpoint_id)} is complete already, and"
                f" {file.name} is late: this process belongs to an earlier run of the job"
            )
        self._folders.write(checkpoint_id, file.name, pieces)
        return file

    def complete(self, manifest: Manifest) -> CompletedCheckpoint:
        """Makes a checkpoint of what its tasks have written, by writing the manifest.

        Raises:
            CheckpointStorageError: the disk is full or broken, or a state file is not there. `discard` it then.
        """
        checkpoint_id = manifest.checkpoint_id
        folder = self._folders.path(checkpoint_id)
        for file in manifest.files:
            path = os.path.join(folder, file.name)
            try:
                size_bytes = self._folders.size_bytes(checkpoint_id, file.name)
            except OSError as error:
                raise CheckpointStorageError(
                    f"checkpoint {checkpoint_id}: {path} was acknowledged and is not there: {error.strerror};"
                    " give all processes of the job the same folder"
                ) from error
            if size_bytes != file.size_bytes:
                raise CheckpointStorageError(
                    f"checkpoint {checkpoint_id}: {path} has {size_bytes} bytes, and {file.size_bytes} were"
                    " acknowledged: somebody else writes there; give every job a folder of its own"
                )
        self._folders.write(checkpoint_id, MANIFEST_NAME, [encode_manifest(manifest)])
        self._verified.add(checkpoint_id)
        return CompletedCheckpoint(folder, manifest)

    # Reading.

    def newest(self) -> CompletedCheckpoint | None:
        """The newest complete checkpoint; every byte of its files is read and verified.

        A newer one that is damaged or half written is named with its reason in `refused` and in a warning of the logger
        `netstack`.

        Returns:
            None without any.

        Raises:
            CheckpointStorageError: the folder itself cannot be listed.
        """
        refused: list[RefusedCheckpoint] = []
        found: CompletedCheckpoint | None = None
        for checkpoint_id in reversed(self._folders.ids()):
            path = self._folders.path(checkpoint_id)
            try:
                if self._folders.is_empty(checkpoint_id):
                    continue  # it was discarded, and only keeps its number
                manifest = self._manifest(checkpoint_id)
                self._verify(manifest)
            except CheckpointStorageError as error:
                refused.append(RefusedCheckpoint(folder_name(checkpoint_id), str(error)))
                LOGGER.warning("checkpoint %s refused, an older one is looked for: %s", path, error)
            else:
                found = CompletedCheckpoint(path, manifest)
                break
        self._refused = tuple(refused)
        return found

    def next_id(self) -> int:
        """A number above that of every checkpoint which was ever begun in this folder; 1 at first.

        Raises:
            CheckpointStorageError: the folder cannot be listed.
        """
        return max(self._folders.ids(), default=0) + 1

    def read(self, checkpoint_id: int) -> list[TaskSnapshot]:
        """The snapshots of all subtasks of a complete checkpoint, by task and subtask.

        Raises:
            CheckpointStorageError: it is not complete, or damaged; the text names file and reason.
        """
        snapshots = []
        for file in sorted(self._manifest(checkpoint_id).files, key=lambda file: (file.task, file.subtask)):
            data = b"".join(self._folders.read(checkpoint_id, file.name))
            with _naming(file.name):
                snapshot = decode_snapshot(data, checkpoint_id)
                check_crc32(int.from_bytes(data[-CRC_BYTES:], "big"), file.crc32)
            snapshots.append(snapshot)
        return snapshots

    # Removing.

    def discard(self, checkpoint_id: int) -> None:
        """Removes what was written of an aborted checkpoint. What the disk refuses to remove is logged and left."""
        highest = max(self._folders.ids_if_any(), default=checkpoint_id)
        self._verified.discard(checkpoint_id)
        self._folders.remove(checkpoint_id, keep_folder=checkpoint_id >= highest)

    def prune(self, *, incomplete: bool = False) -> list[int]:
        """Removes checkpoints that nobody needs.

        These are complete ones beyond `keep`, and what is incomplete or damaged and older than the newest complete one,
        which always stays; so do savepoints. What the disk refuses to remove is logged and left.

        Args:
            incomplete: also what is newer than the newest complete one and incomplete; only while nobody writes
                checkpoints, such as before a job starts.

        Returns:
            The numbers of what was removed, newest first.
        """
        ids = self._folders.ids_if_any()
        kept = 0
        newest: int | None = None
        removed = []
        for checkpoint_id in reversed(ids):
            manifest = self._manifest_if_any(checkpoint_id)
            is_good = manifest is not None and self._is_good(manifest)
            if is_good and newest is None:
                newest = checkpoint_id
            if manifest is not None and manifest.is_savepoint:
                self._folders.remove_temporary(checkpoint_id)
            elif is_good and kept < self._keep:
                kept += 1
                self._folders.remove_temporary(checkpoint_id)
            elif newest is not None or incomplete:
                self._verified.discard(checkpoint_id)
                if self._folders.remove(checkpoint_id, keep_folder=checkpoint_id == ids[-1]):
                    removed.append(checkpoint_id)
        return removed

    # Inside.

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
        """Reads every file of a checkpoint and compares checksums, without holding more than a piece of it.

        Raises:
            CheckpointStorageError: a file is missing or damaged; the text names it and the reason.
        """
        for file in manifest.files:
            size_bytes = crc32 = 0
            head = tail = b""
            for piece in self._folders.read(manifest.checkpoint_id, file.name):
                size_bytes += len(piece)
                if len(head) < HEADER_BYTES:
                    head += piece[:HEADER_BYTES]
                # The last bytes are the checksum itself, so those are always held back.
                held = tail + piece
                crc32 = zlib.crc32(memoryview(held)[:-CRC_BYTES], crc32)
                tail = held[-CRC_BYTES:]
            with _naming(file.name):
                check_header(head, size_bytes)
                check_crc32(crc32, int.from_bytes(tail, "big"))
                check_crc32(crc32, file.crc32)
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
    """Puts a file's name in front of what is wrong with it."""
    try:
        yield
    except CheckpointStorageError as error:
        raise CheckpointStorageError(f"{name} {error}") from error
