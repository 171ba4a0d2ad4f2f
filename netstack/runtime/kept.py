"""Partitions that are kept in files, as a TaskManager has them: with threads for the disk, and a folder of its own.

Takes: settings, the network's memory. Gives: a `KeptPartitionFactory`; no file is left at the end.
"""

from __future__ import annotations

import os
import secrets
from typing import final

import trio

from ..buffer.network_pool import NetworkBufferPool
from ..config import NetworkConfig
from ..shuffle.files import FOLDER_PREFIX, ShuffleFolder
from ..shuffle.partition import KeptPartitionFactory
from .disk import DiskDriver
from .visits import Visits


@final
class KeptPartitions:
    """Of one TaskManager.

    Attributes:
        factory: makes the partitions.
    """

    def __init__(
        self, config: NetworkConfig, network: NetworkBufferPool, nursery: trio.Nursery, visits: Visits
    ) -> None:
        """Touches no file yet; but what a dead process left in a folder that was set goes now, not when it is short."""
        name = f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = ShuffleFolder(config.shuffle_directory, name)
        self._disk = DiskDriver(nursery, self._folder.make, visits)
        self.factory = KeptPartitionFactory(config, network, self._disk, self._folder)
        if config.shuffle_directory is not None:
            self._disk.prepare()

    @property
    def folder(self) -> str:
        """Where its files are; it exists as soon as there are some."""
        return self._folder.path

    async def close(self) -> None:
        """Removes every file, also when cancelled; for the end, when no thread uses them any more."""
        if self._folder.is_made:
            with trio.CancelScope(shield=True):
                await self._disk.run(self._folder.remove)
