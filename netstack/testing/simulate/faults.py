"""Faults of a simulation at their times, and recorded messages that lying TaskManagers repeat.

Takes: faults, the hosts and the network. Gives: nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, final

import trio

from ...cluster.control.codec import Attempt, Message
from ...cluster.control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    PartitionConsumable,
    SlotEnded,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ...cluster.jobmanager.job_master.job_master import JobMaster
from ...cluster.jobmanager.peer_budget import Charge
from ...cluster.jobmanager.service import JobManager
from ...cluster.taskmanager.job_in_process import JobInProcess
from . import scenario as kinds
from .hosts import Host, LogEvent
from .network import Network
from .operators import NUMBERER, SINK
from .scenario import JOBMANAGER, PORT, Fault
from .situations import happened

_FORGED = {SINK: [[0, 1_000_000, 1, 0]], NUMBERER: "forged"}


def attempts_over(master: JobMaster) -> list[Attempt]:
    """Returns superseded attempts of tasks whose newer attempt runs."""
    scheduler = master.scheduler
    return [
        (*scheduler.topology.place_of(number), attempt)
        for number in sorted(master.tasks.places)
        for attempt in range(scheduler.attempt(number))
    ]


def lies(master: JobMaster, taskmanager: str, chance: random.Random) -> Iterator[Message]:
    """Yields a few lies; harmless ones (about ended attempts) before those that are detected."""
    scheduler = master.scheduler
    over = attempts_over(master)
    foreign: list[Attempt] = []
    for number, slot in sorted(master.tasks.places.items()):
        vertex, index = scheduler.topology.place_of(number)
        current = scheduler.attempt(number)
        if slot.location.taskmanager.partition("#")[0] != taskmanager:
            foreign.append((vertex, index, current))
        foreign.append((vertex, index, current + chance.randint(10, 12)))
    chance.shuffle(over)
    chance.shuffle(foreign)
    for attempt in over[:4]:
        yield _lie(master, attempt, chance)
    if chance.random() < 0.5:
        yield from (_lie(master, attempt, chance) for attempt in foreign[:1])
    elif foreign and chance.random() < 0.5:
        yield TaskStates(master.job_id, "retired", (foreign[0],))
    elif chance.random() < 0.5:
        yield TaskFinished(master.job_id, (99, 0, 0), (), _FORGED, None)


def _lie(master: JobMaster, attempt: Attempt, chance: random.Random) -> Message:
    job_id = master.job_id
    last = master.last_checkpoint
    checkpoint = chance.randint(1, 3) + (0 if last is None else last[0])
    kinds: tuple[Message, ...] = (
        TaskFinished(job_id, attempt, (), _FORGED, {"size_bytes": 1, "crc32": 1}),
        TaskFinished(job_id, attempt, (), _FORGED, None),
        TaskFailed(job_id, attempt, "Forged", "it is not true", False, "", False),
        TaskStates(job_id, chance.choice(("running", "canceled", "waiting", "initializing")), (attempt,)),
        CheckpointAcknowledged(job_id, attempt, checkpoint, 1, 1, {}),
        CheckpointDeclined(job_id, attempt, checkpoint, "it does not want to"),
        PartitionConsumable(job_id, attempt, 0),
        SlotEnded(job_id, 0, (attempt,), "it is not true"),
    )
    return chance.choice(kinds)


_REPEATED: Final = (CheckpointAcknowledged, PartitionConsumable, TaskFailed, TaskFinished, TaskStates)


@final
class Faults:
    """The faults of one simulation."""

    def __init__(
        self, hosts: Mapping[str, Host], network: Network, log_event: LogEvent, check: Callable[[], None]
    ) -> None:
        self._hosts = hosts
        self._taskmanagers = [host for name, host in hosts.items() if name != JOBMANAGER]
        self._network = network
        self._log_event = log_event
        self._check = check
        self._messages: deque[tuple[str, JobMaster, Message]] = deque(maxlen=200)
        self._ending = trio.Event()

    async def happen(self, fault: Fault) -> None:
        """At its time."""
        if fault.is_at_end:
            await self._ending.wait()
        await trio.sleep(fault.at_s)
        self._log_event(f"FAULT {fault}")
        host = self._hosts[fault.host]
        others = [name for name in self._hosts if name != fault.host]
        network = self._network
        self._check()
        match fault.kind:
            case kinds.KILL | kinds.POWER:
                host.die(silently=fault.kind == kinds.POWER, for_s=fault.for_s)
            case kinds.STOP:
                host.stop(for_s=fault.for_s)
            case kinds.CUT:
                for _ in range(int(fault.amount) or 1):
                    link = await network.link_in_use(self._link_of(fault), fault.for_s)
                    network.cut(*(link or (fault.host, fault.other)))
            case kinds.UNPLUG:
                for name in others:
                    network.stall(fault.host, name)
                    network.stall(name, fault.host)
                await trio.sleep(fault.for_s)
                for name in others:
                    network.heal(fault.host, name)
                    network.heal(name, fault.host)
            case kinds.HALF:
                network.stall(fault.host, fault.other)
                await trio.sleep(fault.for_s)
                network.heal(fault.host, fault.other)
            case kinds.DELAY:
                network.set_delay(fault.host, fault.other, fault.amount)
                await trio.sleep(fault.for_s)
                network.set_delay(fault.host, fault.other, 0.001)
            case kinds.SLOW:
                host.process.slowness = fault.amount
                await trio.sleep(fault.for_s)
                host.process.slowness = 1.0
            case kinds.DISK_SLOW:
                host.disk.delay_s = fault.amount
                await trio.sleep(fault.for_s)
                host.disk.delay_s = 0.0
            case kinds.DISK_FULL:
                host.disk.room_bytes = int(fault.amount)
                await trio.sleep(fault.for_s)
                host.disk.room_bytes = None
            case kinds.LIE:
                with trio.move_on_after(fault.for_s):
                    while not any(attempts_over(master) for _, master in self._lied_to(host)):  # noqa: ASYNC110
                        await trio.sleep(0.1)
                self._lie(host)
            case kinds.REPEAT:
                latest = [each for each in self._messages if each[0].startswith(fault.host)]
                await trio.sleep(fault.for_s)
                with self._hosts[JOBMANAGER].asked():  # the effects are on the JobManager's host and disk
                    for taskmanager, master, message in latest[-5:]:
                        if master.end is None:
                            master.on_message(taskmanager, message)
        self._check()

    def _link_of(self, fault: Fault) -> tuple[str, ...]:
        """Returns the hosts between which a link is cut; between TaskManagers, one that carries data."""
        if JOBMANAGER in (fault.host, fault.other):
            return fault.host, fault.other
        return tuple(host.name for host in self._taskmanagers)

    def _lied_to(self, host: Host) -> Iterator[tuple[JobInProcess, JobMaster]]:
        manager: JobManager | None = self._hosts[JOBMANAGER].service
        if host.service is not None and manager is not None:
            for job in host.service.jobs_in_process:
                master = manager.dispatcher.running.get(job.job_id)
                if master is not None and master.end is None:
                    yield job, master

    def _lie(self, host: Host) -> None:
        for job, master in self._lied_to(host):
            for message in lies(master, f"{host.name}:{PORT}", self._network.chance):
                happened("lies")
                self._log_event(f"LIE of {host.name}: {message}")
                job._send(message)

    def overhear(self, master: JobMaster) -> None:
        """Records messages to a JobMaster, to be repeated."""
        if "on_message" not in vars(master):
            hear = master.on_message

            def on_message(taskmanager: str, message: Message, charge: Charge | None = None) -> None:
                if isinstance(message, TaskStates) and message.state == "waiting":
                    self._ending.set()
                hear(taskmanager, message, charge)
                if isinstance(message, _REPEATED):
                    self._messages.append((taskmanager, master, message))

            master.on_message = on_message  # type: ignore[method-assign]
            add = master.log.add

            def note(at: float, what: str, text: str) -> None:
                self._log_event(f"{what}: {text}")
                add(at, what, text)

            master.log.add = note  # type: ignore[method-assign]
            for entry in master.log.all():
                self._log_event(f"earlier, {entry.what}: {entry.text}")
