"""The gates of one task: each is opened when all of its producers are known.

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
        self._open: list[SingleInputGate | None] = [None] * len(self._descriptors)
        self._updated = Signal()

    @property
    def is_complete(self) -> bool:
        """Whether all of them are open."""
        return None not in self._open

    @property
    def channel_count(self) -> int:
        """Of all of them, whether they are open or not."""
        return sum(descriptor.number_of_channels for descriptor in self._descriptors)

    @property
    def opened(self) -> Sequence[SingleInputGate | None]:
        """Those that are open, in order of their index; None stands for one that is not."""
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

    async def open(self) -> dict[int, SingleInputGate]:
        """Opens the gates whose producers are all known by now; waits until there is one, or all are open.

        Returns:
            Those that it opened, by index.

        Raises as `NetworkEnvironment.open_gate`. Cancellation: what was opened stays open until `close`.
        """
        opened: dict[int, SingleInputGate] = {}
        while not opened and not self.is_complete:
            for number, gate in enumerate(self._open):
                known = self._known(number) if gate is None else None
                if known is not None and all(channel.address for channel in known.channels):
                    opened[number] = self._open[number] = await self._environment.open_gate(known.channels)
            if not opened:
                await self._updated.wait()
        return opened

    def close(self) -> None:
        """Closes those that are open; idempotent."""
        for gate in self._open:
            if gate is not None:
                gate.close()

    def _known(self, number: int) -> GateDescriptor:
        return self._descriptors[number].gate(self._read, self._updates[number])
