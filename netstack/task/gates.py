"""The gates of one task: opened when all of their producers are known.

Takes: the gates of a descriptor, and updates of them. Gives: open gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from ..errors import LocalProtocolError
from ..inbound.gate import SingleInputGate
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.signal import Signal
from ..schedule.descriptors.descriptors import GateDescriptor, InputGateDescriptor, MaybeOffloaded
from ..schedule.descriptors.shuffle import ShuffleDescriptors


@final
class TaskGates:
    """See the module."""

    def __init__(
        self,
        descriptors: Sequence[InputGateDescriptor],
        environment: NetworkEnvironment,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None,
    ) -> None:
        """Opens nothing yet.

        Args:
            descriptors: as deployed.
            environment: where they are opened.
            read: the list behind a part of them; None reads what is inline.
        """
        self._descriptors = tuple(descriptors)
        self._environment = environment
        self._read = read
        self._updates: list[list[ShuffleDescriptors]] = [[] for _ in descriptors]
        self._open: list[SingleInputGate] = []
        self._updated = Signal()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._descriptors)

    @property
    def opened(self) -> Sequence[SingleInputGate]:
        """Those that are open, in order of their index."""
        return self._open

    def update(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Producers that a gate did not know are known now.

        Raises:
            LocalProtocolError: there is no such gate.
        """
        if not 0 <= gate < len(self._descriptors):
            raise LocalProtocolError(f"an update for gate {gate}, and the task has {len(self._descriptors)}")
        self._updates[gate].append(descriptors)
        self._updated.wake()

    async def open(self) -> list[SingleInputGate]:
        """Opens every gate, as soon as all of its producers are known. Raises as `NetworkEnvironment.open_gate`.

        Cancellation: what was opened stays open until `close`.
        """
        for number in range(len(self._descriptors)):
            known = self._known(number)
            while not all(channel.address for channel in known.channels):
                await self._updated.wait()
                known = self._known(number)
            self._open.append(await self._environment.open_gate(known.channels))
        return list(self._open)

    def close(self) -> None:
        """Closes those that are open; idempotent."""
        for gate in self._open:
            gate.close()

    def _known(self, number: int) -> GateDescriptor:
        return self._descriptors[number].gate(self._read, self._updates[number])
