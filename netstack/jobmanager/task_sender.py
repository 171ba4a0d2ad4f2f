"""Sends what a scheduler wants of tasks to the TaskManagers they are on.

Takes: instructions about tasks. Gives: messages, in turns with whatever else the loop has to do.
"""

from __future__ import annotations

from typing import Final, final

import trio

from ..control.messages import submissions
from ..schedule import instructions
from .cluster import Cluster
from .driver import JobDriver

DESCRIPTORS_A_TURN: Final = 64
"""Descriptors made before others get a turn: about a millisecond."""


@final
class TaskSender:
    """Of one job.

    Args:
        job_id: of the job.
        driver: makes messages of instructions.
        cluster: reaches TaskManagers.
    """

    def __init__(self, job_id: str, driver: JobDriver, cluster: Cluster) -> None:
        self._job_id = job_id
        self._driver = driver
        self._cluster = cluster

    async def deploy(self, deploy: instructions.Deploy) -> None:
        """Makes and sends descriptors; the scheduler is to be told nothing meanwhile.

        Raises:
            NetstackError: one cannot be made; nothing was sent.

        Cancellation: some were sent.
        """
        found: dict[str, list[bytes]] = {}
        for number, (name, descriptor) in enumerate(self._driver.deployments(deploy), 1):
            found.setdefault(name, []).append(descriptor)
            if not number % DESCRIPTORS_A_TURN:
                await trio.lowlevel.checkpoint()
        for name, descriptors in found.items():
            for message in submissions(self._job_id, descriptors):
                await self._cluster.wait_room(name)
                self._cluster.send(name, message)

    def send(
        self,
        instruction: instructions.Cancel
        | instructions.CommitTasks
        | instructions.UpdateGate
        | instructions.ReleasePartitions,
    ) -> None:
        """Sends what is small."""
        match instruction:
            case instructions.Cancel():
                messages = self._driver.cancellations(instruction)
            case instructions.CommitTasks():
                messages = self._driver.commits(instruction)
            case instructions.UpdateGate():
                messages = self._driver.updates(instruction)
            case instructions.ReleasePartitions():
                messages = self._driver.releases(instruction)
        for name, message in messages:
            self._cluster.send(name, message)
