"""What the checkpoints of a job ask of its tasks, carried out wherever these run.

Takes: wishes of `JobCheckpoints`. Gives: messages to TaskManagers, events for the scheduler, sentences for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, final

from ..checkpoint.coordinator import Subtask
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..control.messages import AbortCheckpoint, CheckpointCompleted, TriggerCheckpoint
from ..errors import ErrorCode, RemoteProtocolError
from ..schedule import events
from .cluster import Cluster
from .job_tasks import JobTasks

LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class TaskCommands:
    """The tasks of one job, for its checkpoints (a `CheckpointCommands`).

    Attributes:
        last_stored: number and folder of the newest checkpoint of this run that a restart begins from; None without
            any.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        tasks: JobTasks,
        storage: CheckpointStorage,
        cluster: Cluster,
        taskmanagers: Collection[str],
        *,
        post: Callable[[events.Event], None],
        note: Callable[[str, str], None],
    ) -> None:
        """Nothing is said yet.

        Args:
            job_id: of the job.
            name: of the job.
            tasks: its tasks.
            storage: of its checkpoints.
            cluster: reaches TaskManagers.
            taskmanagers: names of those that the job uses now.
            post: tells the scheduler something.
            note: adds to the job's log: a word, and a sentence.
        """
        self.last_stored: tuple[int, str] | None = None
        self._job_id = job_id
        self._name = name
        self._tasks = tasks
        self._storage = storage
        self._cluster = cluster
        self._taskmanagers = taskmanagers
        self._post = post
        self._note = note
        self._finals: dict[Subtask, TaskFile] = {}

    def left(self, subtask: Subtask, final: dict[str, Any]) -> None:
        """A task has ended, and written its final state.

        Raises:
            RemoteProtocolError: what it says of that is no file.
        """
        size_bytes, crc32 = final.get("size_bytes"), final.get("crc32")
        if type(size_bytes) is not int or type(crc32) is not int:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "the final state of a task has no size and checksum")
        self._finals[subtask] = TaskFile(*subtask, size_bytes, crc32)

    # For `JobCheckpoints`.

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask], *, is_savepoint: bool, stops: bool) -> None:
        """See `CheckpointCommands.trigger`."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._cluster.send(name, TriggerCheckpoint(self._job_id, barrier, tuple(attempts), is_savepoint, stops))

    def abort_checkpoint(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """See `CheckpointCommands.abort_checkpoint`."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._cluster.send(name, AbortCheckpoint(self._job_id, checkpoint_id, tuple(attempts)))

    def final_of(self, subtask: Subtask) -> TaskFile | None:
        """See `CheckpointCommands.final_of`."""
        return self._finals.get(subtask)

    def checkpoint_stored(self, checkpoint_id: int, *, job_goes_on: bool) -> None:
        """See `CheckpointCommands.checkpoint_stored`."""
        if job_goes_on:
            self._note("checkpoint", f"savepoint {checkpoint_id} is complete")
            return
        self.last_stored = checkpoint_id, self._storage.path(checkpoint_id)
        self._note("checkpoint", f"checkpoint {checkpoint_id} is complete")
        self._post(events.CheckpointStored(0.0, checkpoint_id))
        for taskmanager in self._taskmanagers:
            self._cluster.send(taskmanager, CheckpointCompleted(self._job_id, checkpoint_id))

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, *, is_failure: bool) -> None:
        """See `CheckpointCommands.checkpoint_aborted`."""
        text = f"checkpoint {checkpoint_id} was aborted: {reason}"
        self._note("failure" if is_failure else "checkpoint", text)
        LOGGER.log(logging.WARNING if is_failure else logging.INFO, "job %s (%s): %s", self._job_id, self._name, text)

    def fail(self, reason: str) -> None:
        """See `CheckpointCommands.fail`."""
        self._post(events.GlobalFailure(0.0, reason))
