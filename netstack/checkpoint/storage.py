"""The folder of checkpoints: writes them so that a crash leaves only whole ones, finds the newest that can be used.

Takes: snapshots of tasks, then a manifest. Gives: the newest complete checkpoint, whose every byte was verified.

    folder/chk-00000042/sink-0.1a2b3c4d.state   one subtask, see `snapshot`; named after its checksum
    folder/chk-00000042/manifest.json           written last: without it the folder is no checkpoint
    folder/epoch-00000003                       who completes checkpoints, see `fence`

Rules:
- Everything here may block on the disk: call it in a thread. Any number of threads, and processes, may write tasks of
  one checkpoint; one master completes, prunes and discards, from one thread at a time. It is the last one that took the
  folder over; all before it are fenced and raise `CheckpointFenced`.
- How files are written whole or not at all, and which are removed, is the affair of `folders`.
- A number that was used is not used again: it is that of a folder, or noted in the epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from .. import crc
from ..errors import CheckpointFenced, CheckpointStorageError, ConfigError
from ..shown import shown
from .fence import CheckpointFence
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
        owner: who it is that completes checkpoints, for messages to others who try.
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
        owner: str = "a master",
        files: CheckpointFiles | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} checkpoints; give at least 1: the newest one is what a job restarts from")
        self.folder = os.path.abspath(folder)
        self._keep = keep
        files = CheckpointFiles() if files is None else files
        self._folders = CheckpointFolders(self.folder, files, random_bytes)
        self._fence = CheckpointFence(self._folders, files)
        self._owner = owner
        self._refused: tuple[RefusedCheckpoint, ...] = ()
        self._verified: set[int] = set()  # complete checkpoints that this object has written or read through

    @property
    def refused(self) -> tuple[RefusedCheckpoint, ...]:
        """What the last call of `newest` passed over, newest first."""
        return self._refused

    # Owning.

    @property
    def epoch(self) -> int:
        """Of this master; 0 until it has taken the folder over."""
        return self._fence.epoch

    def take_over(self, *, steal: bool = False) -> int:
        """Makes this object the folder's one master; to be called before `newest` says what a job goes on from.

        Whoever was it before is fenced. `complete`, `prune` and `discard` take over by themselves if nobody did.

        Args:
            steal: also from a master of another process that lives: one that is stopped or cannot be reached.

        Returns:
            The new epoch, above all before it.

        Raises:
            CheckpointFenced: another process has the folder, and lives; the text names it.
            CheckpointStorageError: the disk is full or broken.
        """
        self._fence.take_over(self._owner, steal=steal)
        return self._fence.epoch

    def close(self) -> None:
        """Lets masters of other processes take over; what was completed stays. Idempotent; so does its end."""
        self._fence.close()

    def path(self, checkpoint_id: int) -> str:
        """The folder of a checkpoint, whether it exists or not."""
        return self._folders.path(checkpoint_id)

    # Writing.

    def write_task(self, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskFile:
        """Writes one subtask's part of a checkpoint; when it returns the part survives a power failure.

        Returns:
            What the subtask acknowledges with.

        Raises:
            StateNotPlain: the state is not plain data.
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
            CheckpointFenced: another master has taken over. Nothing of this one counts any more.
            CheckpointStorageError: the disk is full or broken, or a state file is not there. `discard` it then.
        """
        self._own()
        checkpoint_id = manifest.checkpoint_id
        manifest = replace(manifest, epoch=self._fence.epoch)
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
        self._folders.write(checkpoint_id, MANIFEST_NAME, [encode_manifest(manifest)], is_first=True)
        self._fence.check()  # whoever took over since then may not have seen the manifest
        self._verified.add(checkpoint_id)
        return CompletedCheckpoint(folder, manifest)

    # Reading.

    def newest(self, *, of_job: bool = False) -> CompletedCheckpoint | None:
        """The newest complete checkpoint: of the newest epoch, and there of the highest number. All of it is decoded.

        A newer one that is damaged, half written or of a master that was fenced is named with its reason in `refused`
        and in a warning of the logger `netstack`.

        Args:
            of_job: for the job itself, which does not begin from savepoints that it went on behind.

        Returns:
            None without any.

        Raises:
            CheckpointStorageError: the folder itself cannot be listed.
        """
        manifests: list[Manifest] = []
        reasons: dict[int, str] = {}
        for checkpoint_id in self._folders.ids():
            if self._folders.is_empty(checkpoint_id):
                continue  # its files were removed; the folder was not
            try:
                manifest = self._manifest(checkpoint_id)
            except CheckpointStorageError as error:
                reasons[checkpoint_id] = str(error)
            else:
                if not (of_job and manifest.job_goes_on):
                    manifests.append(manifest)
        manifests.sort(key=lambda manifest: (manifest.epoch, manifest.checkpoint_id))
        found: Manifest | None = None
        while manifests and found is None:
            candidate = manifests.pop()
            try:
                self._check(candidate)
            except CheckpointStorageError as error:
                reasons[candidate.checkpoint_id] = str(error)
            else:
                found = candidate
        if found is not None:
            for older in manifests:
                if older.checkpoint_id > found.checkpoint_id:
                    reasons[older.checkpoint_id] = (
                        f"{MANIFEST_NAME} is of epoch {older.epoch}, whose master was replaced before epoch"
                        f" {found.epoch} completed checkpoint {found.checkpoint_id}"
                    )
        newer = [number for number in sorted(reasons, reverse=True) if found is None or number > found.checkpoint_id]
        for number in newer:
            LOGGER.warning(
                "checkpoint %s refused, an older one is looked for: %s", self._folders.path(number), reasons[number]
            )
        self._refused = tuple(RefusedCheckpoint(folder_name(number), reasons[number]) for number in newer)
        return None if found is None else CompletedCheckpoint(self._folders.path(found.checkpoint_id), found)

    def next_id(self) -> int:
        """A number above that of every checkpoint which was ever begun in this folder; 1 at first.

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
        """The snapshots of all subtasks of a complete checkpoint, by task and subtask.

        Raises:
            CheckpointStorageError: it is not complete, or damaged; the text names file and reason.
        """
        return [*self.snapshots(checkpoint_id)]

    def snapshots(self, checkpoint_id: int) -> Iterator[TaskSnapshot]:
        """As `read`, one after the other: for who need not have all of them in memory. Raises likewise, where it is."""
        for file in sorted(self._manifest(checkpoint_id).files, key=lambda file: (file.task, file.subtask)):
            yield self._snapshot(checkpoint_id, file)

    # Removing.

    def discard(self, checkpoint_id: int) -> None:
        """Removes what was written of an aborted checkpoint. What the disk refuses to remove is logged and left.

        So is everything when another master has taken over: then it is not ours to remove.
        """
        with self._only_logging():
            self._own()
            self._remove(checkpoint_id, max(self._folders.ids_if_any(), default=0))

    def prune(self, *, incomplete: bool = False) -> list[int]:
        """Removes checkpoints that nobody needs.

        These are complete ones beyond `keep`, and what is incomplete or damaged and older than the newest that the job
        may go on from, which always stays; so do savepoints. What the disk refuses to remove is logged and left.

        Args:
            incomplete: also what is newer than the newest complete one and incomplete; only while nobody writes
                checkpoints, such as before a job starts.

        Returns:
            The numbers of what was removed, newest first.

        Raises:
            CheckpointFenced: another master has the folder.
        """
        try:
            self._own()
        except CheckpointFenced:
            raise
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)
            return []
        ids = self._folders.ids_if_any()
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
        """Removes every checkpoint but savepoints, when the job has ended and nobody writes any more.

        What the disk refuses to remove is logged and left; so is everything when another master has the folder.
        """
        with self._only_logging():
            self._own()
            ids = self._folders.ids_if_any()
            for checkpoint_id in ids:
                manifest = self._manifest_if_any(checkpoint_id)
                if manifest is None or not manifest.is_savepoint:
                    self._remove(checkpoint_id, ids[-1])

    # Inside.

    def _own(self) -> None:
        """Returns if this is the folder's master, which it becomes the first time.

        Raises:
            CheckpointFenced: another one is.
            CheckpointStorageError: the disk is full or broken.
        """
        if self._fence.epoch:
            self._fence.check()
        elif self._folders.exists():
            self.take_over()

    @contextlib.contextmanager
    def _only_logging(self) -> Iterator[None]:
        try:
            yield
        except CheckpointStorageError as error:
            LOGGER.warning("no checkpoint is removed: %s", error)

    def _remove(self, checkpoint_id: int, highest: int) -> bool:
        """Removes a checkpoint; notes its number first if nothing else would tell that it was used."""
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
                LOGGER.warning("the folder of checkpoint %s keeps its number: %s", checkpoint_id, error)
                keep_folder = True
        return self._folders.remove(checkpoint_id, keep_folder=keep_folder)

    def _snapshot(self, checkpoint_id: int, file: TaskFile) -> TaskSnapshot:
        """One file, decoded.

        Raises:
            CheckpointStorageError: it is missing or damaged; the text names it and the reason.
        """
        data = b"".join(self._folders.read(checkpoint_id, file.name))
        with _naming(file.name):
            check_header(data, len(data))
            check_crc32(int.from_bytes(data[-CRC_BYTES:], "big"), file.crc32)
            snapshot = decode_snapshot(data, checkpoint_id)
            if (snapshot.task, snapshot.subtask) != (file.task, file.subtask):
                raise CheckpointStorageError(f"holds the state of {shown(snapshot.task)}-{shown(snapshot.subtask)}")
        return snapshot

    def _check(self, manifest: Manifest) -> None:
        """Reads and decodes every file of a checkpoint, one at a time: what cannot be decoded is not gone on from.

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
                crc32 = crc.crc32(memoryview(held)[:-CRC_BYTES], crc32)
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
