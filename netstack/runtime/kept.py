"""Partitions that are kept in files, as a TaskManager has them: with threads for the disk, and a folder of its own.

Takes: settings, the network's memory. Gives: a `KeptPartitionFactory`; no file is left at the end.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import trio

from ..buffer.network_pool import NetworkBufferPool
from ..config import NetworkConfig
from ..ids import PartitionId
from ..shuffle.files import FOLDER_PREFIX, SealedFiles, ShuffleFolder
from ..shuffle.partition import KeptPartitionFactory
from .disk import DiskDriver
from .visits import Visits


@final
@dataclass(frozen=True, slots=True)
class KeptTogether:
    """How several processes of a TaskManager keep their partitions in one folder.

    Attributes:
        folder: its name; see `folder_name`.
        prefix: of the files of this process.
        hand_over: see `KeptPartitionFactory`.
    """

    folder: str
    prefix: str
    hand_over: Callable[[PartitionId, SealedFiles], None] | None


def folder_name() -> str:
    """A name for a folder that nobody else has."""
    return f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


@final
class KeptPartitions:
    """Of one process.

    Attributes:
        factory: makes the partitions.
    """

    def __init__(
        self,
        config: NetworkConfig,
        network: NetworkBufferPool,
        nursery: trio.Nursery,
        visits: Visits,
        together: KeptTogether | None = None,
    ) -> None:
        """Touches no file yet; but what a dead process left in a folder that was set goes now, not when it is short."""
        together = together or KeptTogether(folder_name(), "", None)
        self._folder = ShuffleFolder(config.shuffle_directory, together.folder, together.prefix)
        self._disk = DiskDriver(nursery, self._folder.make, visits)
        self.factory = KeptPartitionFactory(config, network, self._disk, self._folder, together.hand_over)
        if config.shuffle_directory is not None:
            self._disk.prepare()

    @property
    def folder(self) -> str:
        """Where its files are; it exists as soon as there are some."""
        return self._folder.path

    async def close(self) -> None:
        """Removes every file of this process, also when cancelled; for the end, when no thread uses them any more."""
        if self._folder.is_made:
            with trio.CancelScope(shield=True):
                await self._disk.run(self._folder.remove)
