"""The end of a job master, however it comes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from netstack.base.errors import LocalProtocolError
from netstack.cluster.control.codec import Message
from netstack.cluster.jobmanager.datasets import DatasetRecord
from netstack.cluster.jobmanager.job_master.job_master import JobMaster
from netstack.network.waiting.threads import in_thread
from netstack.schedule.graph.job_graph import JobGraph, JobVertex
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.slots.slots import PhysicalSlot


class NoCluster:
    """A cluster without TaskManagers; it breaks when slots are asked for, if told to."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks

    def send(self, taskmanager: str, message: Message) -> None: ...

    async def wait_room(self, taskmanager: str) -> None: ...

    def require(self, job_id: str, total: int) -> None:
        if self.breaks:
            raise LocalProtocolError("the cluster broke")

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None: ...

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None: ...

    def heard_s(self, taskmanager: str) -> float | None: ...

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None: ...

    async def keep_dataset(self, dataset: DatasetRecord) -> None: ...

    def describe_slots(self) -> str:
        return "nothing"


def master_of(cluster: NoCluster) -> JobMaster:
    job = JobGraph("job", (JobVertex("only", 1, invokable="m:f", is_source=True),))
    return JobMaster("ab" * 8, "job", Scheduler(job, "ab" * 8), cluster, in_thread=in_thread)


async def test_a_job_that_breaks_has_ended() -> None:
    master = master_of(NoCluster(breaks=True))
    with pytest.RaisesGroup(LocalProtocolError):
        await master.run()
    assert master.ended.is_set()
    assert master.end is None


async def test_a_job_that_is_cancelled_here_has_ended() -> None:
    master = master_of(NoCluster())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not master.ended.is_set()
        nursery.cancel_scope.cancel()
    assert master.ended.is_set()
