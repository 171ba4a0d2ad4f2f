"""TaskManagers that a JobManager dials, jobs that are placed on them, and coordinators that take part in these."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import jobmanager
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, RemoteProtocolError, RequestRefused
from netstack.cluster.control.link import TASKMANAGER, dial
from netstack.cluster.control.messages import AskDetails, OperatorEvent
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.job_record import JobRecord
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager
from netstack.schedule.execution import JobState
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings
from netstack.schedule.instructions import EndJob
from netstack.schedule.slots.slot_sharing import FixedPlacement
from netstack_transports.impaired import impairment

NETWORK = NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20)


class Listening:
    """A coordinator that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, Any]] = []
        self.refusals: list[tuple[str, str]] = []
        self.changed = trio.Event()
        self.end: EndJob | None = None

    def event(self, vertex: str, subtask: int, event: Any) -> None:
        self.heard.append((vertex, subtask, event))
        self.changed.set()

    def refused(self, taskmanager: str, reason: str) -> None:
        self.refusals.append((taskmanager, reason))
        self.changed.set()

    def ended(self, end: EndJob) -> None:
        self.end = end

    async def until(self, count: int) -> None:
        while len(self.heard) + len(self.refusals) < count:
            self.changed = trio.Event()
            await self.changed.wait()


@asynccontextmanager
async def cluster(*listen: str, **settings: Any) -> AsyncIterator[tuple[JobManager, list[TaskManager]]]:
    """A JobManager, and TaskManagers of two slots that nobody has adopted."""
    async with trio.open_nursery() as nursery:
        taskmanagers = []
        for url in listen:
            config = TaskManagerConfig(listen=url, slots=2, memory_bytes=4 << 20, allow=("adopter:",), **settings)
            taskmanagers.append(await nursery.start(_serve, config))
        async with open_jobmanager(JobManagerConfig(listen="memory://adopting", heartbeat_timeout_s=3.0)) as manager:
            yield manager, taskmanagers
        nursery.cancel_scope.cancel()


async def _serve(config: TaskManagerConfig, task_status: trio.TaskStatus[TaskManager]) -> None:
    async with open_taskmanager(config) as manager:
        task_status.started(manager)
        await trio.sleep_forever()


async def submit(
    manager: JobManager, function: str, places: list[str], coordinator: Listening, network: NetworkConfig = NETWORK
) -> JobRecord:
    job = StreamEnvironment("placed", settings=StreamSettings(network=network))
    job.invokable(f"adopter:{function}", name="talks").set_parallelism(len(places))
    job_id = await manager.dispatcher.submit(
        write_job(job.stream_graph()), placement=FixedPlacement({"talks": places}), coordinator=coordinator
    )
    return manager.dispatcher.records[job_id]


async def test_a_job_runs_where_it_is_placed_and_talks_with_its_coordinator() -> None:
    async with cluster("memory://a", "memory://b") as (manager, daemons):
        actual = [await manager.adopt(daemon.address) for daemon in daemons]
        a, b = (each.location.name for each in actual)
        places = [b, a, b]
        coordinator = Listening()
        record = await submit(manager, "echo", places, coordinator)
        await coordinator.until(3)
        addresses = {subtask: event["here"] for _, subtask, event in coordinator.heard}
        assert addresses == {subtask: f"memory://{name}" for subtask, name in enumerate(places)}
        assert record.master is not None
        coordinator.heard.clear()
        for subtask in range(3):
            record.master.send_event("talks", subtask, {"number": subtask})
        await coordinator.until(3)
        assert sorted(coordinator.heard) == [("talks", number, {"heard": {"number": number}}) for number in range(3)]
        stale = OperatorEvent(record.stored.job_id, (0, 1, 7), {"stop": "the attempt after the next ones"})
        manager.send(a, stale)  # nobody there has it
        with pytest.raises(RemoteProtocolError, match="not deployed there"):
            record.master.on_message(a, stale)  # nor here
        for subtask in range(3):
            record.master.send_event("talks", subtask, {"stop": subtask})
        master = record.master
        await record.ended.wait()
        assert coordinator.end == EndJob(JobState.FINISHED)
        assert master.tasks.results == {"talks": {index: [addresses[index], index] for index in range(3)}}
        assert len(coordinator.heard) == 3, "of an attempt that is not there it hears nothing"
        assert all(daemon.is_idle for daemon in daemons)


async def test_a_refusal_is_told_to_the_coordinator_at_once() -> None:
    async with cluster("memory://small") as (manager, (daemon,)):
        name = (await manager.adopt(daemon.address)).location.name
        coordinator = Listening()
        record = await submit(manager, "echo", [name], coordinator, NetworkConfig(memory_bytes=64 << 20))
        await coordinator.until(1)
        ((who, why),) = coordinator.refusals
        assert (who, "needs 64MiB" in why) == (name, True)
        await manager.dispatcher.cancel(record)


async def test_a_silent_taskmanager_is_lost(autojump_clock: MockClock) -> None:
    async with cluster("impaired+memory://silent?name=silent", link_in_thread=False) as (manager, (daemon,)):
        actual = await manager.adopt(daemon.address)
        coordinator = Listening()
        record = await submit(manager, "echo", [actual.location.name], coordinator)
        await coordinator.until(1)
        began_s = trio.current_time()
        impairment("silent").stall()
        await record.ended.wait()
        assert trio.current_time() - began_s < 4.0
        assert record.end is not None
        assert "silent for 3 s" in record.end["reason"]
        assert "was silent" in actual.lost_because
        impairment("silent").heal()


async def test_as_many_slots_as_asked_for_and_no_more_than_there_are() -> None:
    async with cluster("memory://two") as (manager, (daemon,)):
        with pytest.raises(RequestRefused, match=r"3 slots .* has 2: start it with --slots"):
            await manager.adopt(daemon.address, slots=3)
        assert manager.slots.total == 0
        await manager.adopt(daemon.address, slots=1)
        assert manager.slots.total == 1


async def test_who_is_no_taskmanager_or_belongs_to_another_one_is_not_adopted(autojump_clock: MockClock) -> None:
    settings = {"jobmanager": "memory://elsewhere", "link_in_thread": False}
    async with cluster("memory://taken", **settings) as (manager, (daemon,)):
        began_s = trio.current_time()
        with pytest.raises(ConnectionLost, match="JobManager at memory://elsewhere"):
            await manager.adopt(daemon.address)
        assert trio.current_time() - began_s < 1.0, "it is told at once"
        with pytest.raises(RequestRefused, match="jobmanager, not a TaskManager"):
            await manager.adopt(manager.address)
        assert manager.slots.total == 0
        assert not [*manager.taskmanagers.all()]


async def test_a_taskmanager_is_let_go_with_its_jobmanager_and_works_for_the_next() -> None:
    async with cluster("memory://shared") as (manager, (daemon,)):
        for _ in range(2):
            async with open_jobmanager(JobManagerConfig(listen="memory://one")) as one:
                name = (await one.adopt(daemon.address)).location.name
                coordinator = Listening()
                await submit(one, "asleep", [name], coordinator)
        name = (await manager.adopt(daemon.address)).location.name
        record = await submit(manager, "echo", [name], coordinator)
        await coordinator.until(1)
        assert record.master is not None
        record.master.send_event("talks", 0, {"stop": 1})
        await record.ended.wait()
        assert record.end is not None
        assert record.end["state"] == "finished"


async def test_the_port_of_a_slot_is_not_taken_for_a_taskmanager(autojump_clock: MockClock) -> None:
    async with cluster("memory://slot", in_slot=1) as (manager, (slot,)):
        with pytest.raises(ConnectionLost, match="belongs to slot 1"):
            await manager.adopt(slot.address)
        assert manager.slots.total == 0


async def test_a_mistake_in_handling_a_taskmanager_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("a bug")

    async with cluster("memory://heard", "memory://other") as (manager, daemons):
        received, other = [await manager.adopt(daemon.address) for daemon in daemons]
        monkeypatch.setattr(JobManager, "_on_taskmanager_message", breaks)
        manager.send(received.location.name, AskDetails(1))
        with trio.fail_after(120.0):
            while manager.taskmanagers.get(received.location.name) is not None:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert manager.taskmanagers.get(other.location.name) is other
        await other.link.ping()
    assert f"{received.location.name} failed because" in caplog.text


async def test_taskmanagers_that_come_and_go_without_end_are_few_lines(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"slots": 1, "data": "memory://left", "hostname": "x", "pid": 1}
    caplog.set_level(logging.INFO)
    async with jobmanager() as manager:
        names = set()
        for _ in range(2500):
            link, _ = await dial(manager.address, role=TASKMANAGER, name="x", facts=facts)
            (name,) = (each.location.name for each in manager.taskmanagers.all())
            names.add(name)
            link.close()
            while [*manager.taskmanagers.all()]:  # it is noticed by its task
                await trio.lowlevel.checkpoint()
    assert len(names) == 2500, "no name is given twice"
    lines = [each.getMessage() for each in caplog.records if each.name == "netstack.jobmanager"]
    assert 1000 < sum("registered" in line for line in lines) < 2500
    assert 1000 < sum(" lost: " in line for line in lines) < 2500
