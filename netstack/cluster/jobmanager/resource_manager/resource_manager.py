"""Gives slots of TaskManagers to jobs; a TaskManager opens a job before the job receives slots there.

Takes: lost TaskManagers, the slots that jobs require and return, the answers `JobOpened` and `JobRefused`. Gives:
`OpenJob` messages, and slots to JobMasters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

import trio

from ....schedule.slots.slots import PhysicalSlot
from ...control.messages import CloseJob, OpenJob
from ...control.reports import JobRefused
from ..dispatcher import Dispatcher
from ..job_master.job_master import JobMaster
from ..job_services import JobManagerParts
from .taskmanagers import ConnectedTaskManager

BARRED_S: Final = 10.0
"""Time after which a TaskManager that rejected a job is offered the job again."""

ORDER_PATIENCE_S: Final = 0.5
"""How long opened slots wait for TaskManagers that registered earlier, to keep the planned order."""

MEMORY_TIMEOUT_S: Final = 30.0
"""How long a TaskManager waits for network memory that other jobs hold."""


@final
class ResourceManager:
    """Decides through the SlotManager which job gets which slots, and hands them over."""

    def __init__(self, parts: JobManagerParts, dispatcher: Dispatcher, nursery: trio.Nursery) -> None:
        self._dispatcher = dispatcher
        self._slots = parts.slots
        self._taskmanagers = parts.taskmanagers
        self._nursery = nursery

    def lost(self, taskmanager: ConnectedTaskManager) -> None:
        """Removes a lost TaskManager; the jobs that it was opening lack its slots again."""
        self._slots.lose(taskmanager.location.name)
        for job_id, slots in taskmanager.opening.items():
            self._slots.missed(job_id, len(slots))

    def require(self, job_id: str, total: int) -> None:
        """Sets the number of slots that a job is to be offered in all."""
        self._slots.require(job_id, total)
        self.offer()

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """Frees slots that a job no longer needs."""
        for slot in slots:
            self._slots.give_back(job_id, slot.location.taskmanager, slot.index)
        self.offer()

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """Sets the TaskManagers of which a job accepts no more slots."""
        self._slots.block(job_id, taskmanagers)
        self.offer()

    def offer(self) -> None:
        """Offers free slots to jobs that lack some."""
        for offer in self._slots.offers():
            master = self._dispatcher.running.get(offer.job_id)
            taskmanager = self._taskmanagers.get(offer.taskmanager)
            if master is None or taskmanager is None:
                continue
            if offer.job_id in taskmanager.opening:
                taskmanager.opening[offer.job_id] += offer.slots
            elif offer.job_id in taskmanager.jobs:
                master.offered(taskmanager.location, offer.slots)
            else:
                taskmanager.opening[offer.job_id] = offer.slots
                job = self._dispatcher.records[offer.job_id]
                address = taskmanager.location.address
                taskmanager.link.send(
                    OpenJob(offer.job_id, master.name, MEMORY_TIMEOUT_S, address, job.network, job.information)
                )

    def opened(self, taskmanager: ConnectedTaskManager, job_id: str, master: JobMaster) -> None:
        """Handles a TaskManager that has opened a job: offers its slots to the job."""
        if job_id not in taskmanager.opening and job_id not in taskmanager.jobs:
            return  # it was not asked
        taskmanager.jobs.add(job_id)
        if all(job_id in each.jobs or job_id not in each.opening for each in self._taskmanagers.all()):
            self._offer_opened(job_id, master)
        else:
            self._nursery.start_soon(self._offer_later, job_id, master)

    def refused(self, taskmanager: ConnectedTaskManager, refusal: JobRefused, master: JobMaster) -> None:
        """Handles a TaskManager that rejects a job: other jobs get its slots; it is offered the job again later."""
        job_id, name = refusal.job_id, taskmanager.location.name
        if job_id not in taskmanager.opening and job_id not in taskmanager.jobs:
            return  # it was not asked, or has refused already
        self._slots.missed(job_id, len(taskmanager.opening.pop(job_id, ())))
        taskmanager.jobs.discard(job_id)
        master.refused(name, refusal.text)
        self._slots.bar(job_id, name)
        self._offer_opened(job_id, master)
        self._nursery.start_soon(self._offer_again, job_id, name)
        self.offer()

    def job_left(self, job_id: str) -> None:
        """Frees the slots of an ended job."""
        self._slots.job_left(job_id)
        for taskmanager in self._taskmanagers.all():
            taskmanager.jobs.discard(job_id)
            if taskmanager.opening.pop(job_id, None) is not None:  # the slots were never offered to the job
                taskmanager.link.send(CloseJob(job_id))
        self.offer()

    async def _offer_later(self, job_id: str, master: JobMaster) -> None:
        await trio.sleep(ORDER_PATIENCE_S)
        self._offer_opened(job_id, master)

    def _offer_opened(self, job_id: str, master: JobMaster) -> None:
        """Offers opened slots in the order of registration, which breaks ties as the plan does."""
        if self._dispatcher.running.get(job_id) is not master:
            return
        for taskmanager in self._taskmanagers.all():
            if job_id in taskmanager.jobs and (slots := taskmanager.opening.pop(job_id, ())):
                master.offered(taskmanager.location, slots)

    async def _offer_again(self, job_id: str, taskmanager: str) -> None:
        await trio.sleep(BARRED_S)
        self._slots.unbar(job_id, taskmanager)
        self.offer()
