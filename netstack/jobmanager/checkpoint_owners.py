"""Which job has which folder of checkpoints: one job a folder, and folders that jobs name lie where they may.

Takes: folders that jobs and savepoints are submitted with. Gives: an error where one is another job's, or lies
elsewhere.

Rules: within a process the last one who takes over a folder has it (`checkpoint.fence`), so a job that names the folder
of another would end that one. So a folder is a job's from before it is touched until the job has ended. Links are
followed before folders are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import final

from ..errors import ConfigError
from ..runtime.threads import InThread


@final
class CheckpointOwners:
    """The folders of the jobs of one JobManager.

    Args:
        roots: folders below which those that jobs name have to lie; none: anywhere.
        in_thread: runs what blocks.
    """

    def __init__(self, roots: Iterable[str], in_thread: InThread) -> None:
        self._roots = tuple(roots)
        self._in_thread = in_thread
        self._owners: dict[str, tuple[str, str]] = {}
        """By folder: id and name of the job."""

    async def check_place(self, folder: str) -> None:
        """Whether jobs may name this folder.

        Raises:
            ConfigError: no; the text names the roots.
        """
        await self._in_thread(partial(self._check_place, folder))

    async def claim(self, folder: str, job_id: str, name: str) -> None:
        """The folder is this job's, until `leave`. Nothing happens where it is already.

        Raises:
            ConfigError: it is another job's.
        """
        real = await self._in_thread(partial(os.path.realpath, folder))
        owner, owner_name = self._owners.setdefault(real, (job_id, name))
        if owner != job_id:
            raise ConfigError(
                f"job {name!r}: the checkpoint folder {folder} is that of job {owner} ({owner_name}), which has not"
                " ended: give every job a folder of its own, or none, and the JobManager keeps one for it"
            )

    def leave(self, job_id: str) -> None:
        """The job has ended, or was not accepted."""
        self._owners = {folder: owner for folder, owner in self._owners.items() if owner[0] != job_id}

    def _check_place(self, folder: str) -> None:
        real = os.path.realpath(folder)
        roots = [os.path.realpath(root) for root in self._roots]
        if roots and not any(os.path.commonpath((root, real)) == root for root in roots):
            raise ConfigError(
                f"{folder} lies nowhere below {', '.join(self._roots)}, where this JobManager has checkpoints and"
                " savepoints: name a folder there, or start it with another --checkpoint-root"
            )
