"""Stores the final states of ended tasks, next to the checkpoints of their job.

Takes: the snapshot of a task at its end. Gives: a file that is copied into every later checkpoint for that task.

    FOLDER/finals/chk-00000000/TASK-SUBTASK.CRC.state

A task writes its final state before it reports that it has finished. So no message carries a state, and later
checkpoints contain the finished task even if its TaskManager is lost.

Rules: a file is named after its checksum, so attempts never overwrite each other's files. The calls block.
"""

from __future__ import annotations

import os
from typing import Final, final

from ...base.errors import CheckpointStorageError
from .files import CheckpointFiles
from .folders import CheckpointFolders
from .snapshot import TaskFile, TaskSnapshot, decode_snapshot, encode_snapshot
from .storage import CheckpointStorage

FOLDER_NAME: Final = "finals"

NO_CHECKPOINT: Final = 0
"""Stands for a checkpoint id in files of final states, and in the report that such a file cannot be written yet."""


@final
class FinalStates:
    """The final states of one job.

    Args:
        folder: the folder of the job's checkpoints.
        root: as of `CheckpointStorage`.
    """

    def __init__(self, folder: str | os.PathLike[str], *, root: str | None = None) -> None:
        path = os.path.abspath(folder)
        self._folders = CheckpointFolders(os.path.join(path, FOLDER_NAME), CheckpointFiles(), root=root or path)

    def write(self, snapshot: TaskSnapshot) -> TaskFile:
        """Writes the final state of a task; once it returns, the file survives a power failure.

        Returns:
            The file, which the task reports and `copy` takes.

        Raises:
            CheckpointError: the state is not plain data.
            CheckpointStorageError: the disk is full or broken.
        """
        pieces, file = encode_snapshot(NO_CHECKPOINT, snapshot)
        self._folders.write(NO_CHECKPOINT, file.name, pieces)
        return file

    def copy(self, final: TaskFile, checkpoint_id: int, storage: CheckpointStorage) -> TaskFile:
        """Copies a final state into a checkpoint.

        Raises:
            CheckpointStorageError: the file is missing or damaged, or the copy cannot be written.
        """
        name = final.name
        snapshot = decode_snapshot(b"".join(self._folders.read(NO_CHECKPOINT, name)), NO_CHECKPOINT)
        if (snapshot.task, snapshot.subtask) != (final.task, final.subtask):
            raise CheckpointStorageError(f"{name} holds the state of {snapshot.task}-{snapshot.subtask}")
        return storage.write_task(checkpoint_id, snapshot)

    def clear(self) -> None:
        """Removes all final states; called before a job's first task starts, or after its last task has ended."""
        self._folders.remove(NO_CHECKPOINT, keep_folder=False)
