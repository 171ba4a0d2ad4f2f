"""A JobManager that does what a test says, over the real protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.ids import ResultPartitionType
from netstack.base.transport import Listener, transport_for
from netstack.cluster.control.build import own_build
from netstack.cluster.control.codec import Attempt, Message
from netstack.cluster.control.link import JOBMANAGER, ControlLink, Greeting, full_build
from netstack.cluster.control.messages import OpenJob, SubmitTasks
from netstack.cluster.control.reports import JobOpened, JobProgress, TaskFailed, TaskFinished, TaskStates
from netstack.cluster.control.routing import read_route
from netstack.schedule.descriptors.descriptors import (
    ExecutionAttemptId,
    InputGateDescriptor,
    MaybeOffloaded,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from netstack.schedule.descriptors.information import JobInformation, OperatorInformation, TaskInformation
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress, partition_name
from netstack.schedule.graph.job_graph import OperatorKind

JOB = "00c0ffee00c0ffee"
Kind = TypeVar("Kind")


class Driver:
    """One registration: the JobManager's end of it."""

    def __init__(self, link: ControlLink, greeting: Greeting) -> None:
        self.link = link
        self.greeting = greeting
        self.heard: list[Message] = []

    async def next(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; states are taken apart by `outcome`."""
        while True:
            message = await self.link.receive()
            self.heard.append(message)
            if isinstance(message, kind):
                return message

    async def open_job(self, job_id: str = JOB, address: str = "memory://nowhere") -> None:
        self.link.send(OpenJob(job_id, "test", 5.0, address, None, b""))
        await self.next(JobOpened)

    async def outcomes(self, *attempts: Attempt) -> dict[Attempt, str]:
        """How these ended: `finished`, `canceled`, or why they failed."""
        actual: dict[Attempt, str] = {}
        while not actual.keys() >= set(attempts):
            message = await self.link.receive()
            self.heard.append(message)
            match message:
                case TaskStates(_, "canceled", canceled):
                    actual |= dict.fromkeys(canceled, "canceled")
                case TaskFinished():
                    actual[message.attempt] = "finished"
                case TaskFailed():
                    actual[message.attempt] = message.text
        return actual

    async def running(self, *attempts: Attempt) -> None:
        """Waits until these run."""
        missing = set(attempts)
        for each in self.heard:
            if isinstance(each, TaskStates) and each.state == "running":
                missing -= set(each.attempts)
        while missing:
            reported = await self.next(TaskStates)
            if reported.state == "running":
                missing -= set(reported.attempts)

    def states(self) -> list[tuple[str, int]]:
        """The batches of states that were told: (state, how many)."""
        return [(each.state, len(each.attempts)) for each in self.heard if isinstance(each, TaskStates)]

    def failure(self, attempt: Attempt) -> TaskFailed:
        (actual,) = [each for each in self.heard if isinstance(each, TaskFailed) and each.attempt == attempt]
        return actual

    def submit(self, *descriptors: TaskDeploymentDescriptor, job_id: str = JOB) -> None:
        self.link.send(SubmitTasks(job_id, tuple(descriptor.pack() for descriptor in descriptors)))

    def silence(self) -> list[Message]:
        """What was said besides progress."""
        return [each for each in self.heard if not isinstance(each, JobProgress)]


@asynccontextmanager
async def listening(url: str = "memory://jobmanager") -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """A JobManager's port; gives its address and what accepts the next registration."""
    listener = await transport_for(url).listen(url)
    async with trio.open_nursery() as nursery:

        async def accept() -> Driver:
            return await _accept(listener, nursery)

        try:
            yield listener.address, accept
        finally:
            listener.close()
            nursery.cancel_scope.cancel()


async def _accept(listener: Listener, nursery: trio.Nursery) -> Driver:
    stream = await listener.accept()
    assert await read_route(stream) is None
    link = ControlLink(stream, heartbeat_timeout_s=1.0)
    greeting = await link.greet(full_build(own_build()), "jm", JOBMANAGER, {"heartbeat_timeout_s": 1.0})

    async def run() -> None:
        try:
            await link.run()
        except ConnectionLost:
            return

    nursery.start_soon(run)
    return Driver(link, greeting)


def task(
    attribute: str,
    attempt: Attempt = (0, 0, 0),
    *,
    function: str = "",
    parameters: dict[str, Any] | None = None,
    partitions: tuple[PartitionDescriptor, ...] = (),
    gates: tuple[InputGateDescriptor, ...] = (),
    information: MaybeOffloaded | None = None,
    job: JobInformation | None = None,
    job_id: str = JOB,
) -> TaskDeploymentDescriptor:
    """An attempt of a vertex that runs `userjobs.jobs:attribute`."""
    operator = OperatorInformation(
        attribute, OperatorKind.INVOKABLE, function or f"userjobs.jobs:{attribute}", parameters or {}
    )
    return TaskDeploymentDescriptor(
        ExecutionAttemptId(job_id, *attempt),
        "tm/0",
        (job or JobInformation(job_id)).pack(),
        information or TaskInformation(attribute, operators=(operator,)).pack(),
        partitions=partitions,
        gates=gates,
    )


def information_of(attribute: str) -> bytes:
    """What the subtasks of that vertex share."""
    operator = OperatorInformation(attribute, OperatorKind.INVOKABLE, f"userjobs.jobs:{attribute}", {})
    return TaskInformation(attribute, operators=(operator,)).pack()


def produces(attempt: Attempt, dataset: str = "words") -> tuple[PartitionDescriptor, ...]:
    """One partition of one subpartition."""
    return (PartitionDescriptor(partition_name(JOB, dataset, attempt[1], attempt[2]), 1, dataset=dataset),)


def reads(address: str, attempt: Attempt, dataset: str = "words") -> tuple[InputGateDescriptor, ...]:
    """One gate that reads the partition of this attempt at this address."""
    descriptors = ShuffleDescriptors.of(
        JOB,
        dataset,
        [TaskManagerLocation("tm", address)],
        index=[0],
        partition=[attempt[1]],
        attempt=[attempt[2]],
        taskmanager=[0],
    )
    listed = compress(descriptors.serialised())
    return (InputGateDescriptor(dataset, ResultPartitionType.PIPELINED_BOUNDED, 1, ((0, 1, 0, 1),), (listed,)),)
