"""What a running task is given: its partitions, its gates, and a line to whoever deployed it.

Takes: a `TaskDescriptor` and the run's TaskManager. Gives: `Task` to an invokable.

An invokable is `async def invokable(task: Task) -> Any`; what it returns is plain data for the coordinator. It runs in
the daemon's event loop, beside others: what computes for long holds everybody up and belongs into a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from ..errors import ConfigError
from ..inbound.gate import SingleInputGate
from ..outbound.partition import ResultPartition
from ..runtime.network_environment import NetworkEnvironment
from .messages import Plain, TaskDescriptor, check_said

INBOX_MESSAGES: Final = 4096
"""What a coordinator may say to a task before it listens."""


@final
class Task:
    """One subtask, from the inside.

    Attributes:
        name: of its vertex.
        subtask: which of its subtasks, from 0.
        parameters: as deployed.
        manager: the TaskManager of the run; its statistics are those of all its tasks.
        partitions: what it produces, ready to be written; those left unfinished when it ends are failed, so that
            consumers learn of it.
    """

    def __init__(self, descriptor: TaskDescriptor, manager: NetworkEnvironment, send: Callable[[Plain], None]) -> None:
        """Creates the partitions.

        Raises:
            InsufficientBuffers: their buffers are not free.
            LocalProtocolError: a name is taken.
            ConfigError: a name or number cannot be.
        """
        self.name = descriptor.task
        self.subtask = descriptor.subtask
        self.parameters = descriptor.parameters
        self.manager = manager
        self.partitions: tuple[ResultPartition, ...] = tuple(
            manager.create_partition(partition.name, subpartitions=partition.subpartitions, kind=partition.type)
            for partition in descriptor.partitions
        )
        self._gates = descriptor.gates
        self._open: list[SingleInputGate] = []
        self._send = send
        self._inbox, self._messages = trio.open_memory_channel[Plain](INBOX_MESSAGES)

    def __str__(self) -> str:
        return f"{self.name}-{self.subtask}"

    @property
    def gate_count(self) -> int:
        """How many gates it reads."""
        return len(self._gates)

    async def open_gate(self, index: int = 0) -> SingleInputGate:
        """Opens one of its gates; it is closed when the task ends.

        Raises:
            ConfigError: it has no such gate.
            NetstackError: see `NetworkEnvironment.open_gate`.

        Cancellation: see `NetworkEnvironment.open_gate`.
        """
        if not 0 <= index < len(self._gates):
            raise ConfigError(f"task {self} has {len(self._gates)} gates, so none of index {index}")
        gate = await self.manager.open_gate(self._gates[index])
        self._open.append(gate)
        return gate

    def send(self, message: Plain) -> None:
        """Tells the coordinator something; never waits.

        Raises:
            ConfigError: it is no dict of plain data, or more than a frame holds.
        """
        self._send(check_said(message))

    async def receive(self) -> Plain:
        """The next message of the coordinator. Cancellation: nothing is lost."""
        return await self._messages.receive()

    def told(self, message: Plain) -> None:
        """The coordinator said something. Called by the run.

        Raises:
            WouldBlock: `INBOX_MESSAGES` wait already.
        """
        self._inbox.send_nowait(message)

    def close(self, failure: str = "") -> None:
        """Closes its gates; fails partitions that are unfinished. Called by the run when the invokable has ended.

        A finished partition stays for its consumers, until the run is closed.

        Args:
            failure: why the task failed; empty when it returned.
        """
        for gate in self._open:
            gate.close()
        for partition in self.partitions:
            if not partition.is_finished:
                partition.fail(failure or f"task {self} ended and left it unfinished")
