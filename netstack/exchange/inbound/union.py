"""UnionInputGate: several gates as one input.

Takes: gates. Gives: their buffers and events, fair among gates; channel indexes run over all gates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from ...base.errors import LocalProtocolError
from ..buffer.buffer import Buffer
from ..buffer.statistics import LocalBufferPoolStatistics
from .closing import ClosingContext
from .gate import SingleInputGate
from .statistics import GateStatistics


@final
class UnionInputGate(ClosingContext):
    """Several gates as one input.

    Fair among gates, one buffer each. Channel indexes continue from gate to gate, in the order of the gates.
    """

    def __init__(self, gates: Sequence[SingleInputGate], *, missing: int = 0) -> None:
        """Starts with some gates.

        Args:
            gates: distinct gates, at least one; at least two together with the missing ones.
            missing: number of gates that will be added; the union is not finished before.

        Raises:
            LocalProtocolError: too few gates or one of them twice.
        """
        if not gates or len(gates) + missing < 2 or len(set(map(id, gates))) != len(gates):
            raise LocalProtocolError(f"a UnionInputGate needs at least 2 distinct gates, got {len(gates)}")
        self.on_available: Callable[[], None] | None = None
        self.on_added: Callable[[], None] | None = None
        """Called when a missing gate was added, before its data is announced: `channel_count` has grown."""
        self.config = gates[0].config
        self.now = gates[0].now
        self.spin_s = gates[0].spin_s
        self.idle = gates[0].idle
        """Time its reader waited because no gate had data; shared by all gates."""
        self._missing = len(gates) + missing
        self._gates: list[SingleInputGate] = []
        self._offsets: list[int] = []
        self._line: deque[int] = deque()
        for gate in gates:
            self.add(gate)

    def add(self, gate: SingleInputGate) -> None:
        """Adds a missing gate; its channels follow all earlier ones.

        Raises:
            LocalProtocolError: no gate is missing.
        """
        if not self._missing:
            raise LocalProtocolError(
                "the UnionInputGate is complete; pass missing= to its constructor to add gates later"
            )
        index = len(self._gates)
        self._offsets.append(self.channel_count)
        self.spin_s = min(self.spin_s, gate.spin_s)
        gate.idle = self.idle
        gate.on_priority = self.on_priority if self._gates else gate.on_priority
        self._gates.append(gate)
        self._missing -= 1
        if self.on_added is not None:
            self.on_added()
        notify = gate.on_available = self._notifier(index)
        if gate.is_available:
            notify()

    @property
    def on_priority(self) -> Callable[[], None] | None:
        """Called by each gate when a priority event arrives and none was waiting."""
        return self._gates[0].on_priority

    @on_priority.setter
    def on_priority(self, callback: Callable[[], None] | None) -> None:
        for gate in self._gates:
            gate.on_priority = callback

    @property
    def channel_count(self) -> int:
        """Number of channels of all gates."""
        return sum(gate.channel_count for gate in self._gates)

    @property
    def is_available(self) -> bool:
        """Whether `poll` may return something or raise."""
        return bool(self._line) or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether every gate is finished, and none is missing."""
        return not self._missing and all(gate.is_finished for gate in self._gates)

    @property
    def ended_with_drain(self) -> bool | None:
        """Whether all gates ended with drain; None until every gate has received the end of its data."""
        states = [gate.ended_with_drain for gate in self._gates]
        return None if self._missing or None in states else all(states)

    def poll(self) -> Buffer | None:
        """The next buffer or event, of the gate at the front of the line; raises that gate's errors."""
        line = self._line
        while line:
            index = line.popleft() if len(line) == 1 else self._take_turn()
            gate = self._gates[index]
            try:
                buffer = gate.poll()
            finally:
                if gate.is_available and not gate.is_finished and not gate.is_closed:
                    line.append(index)
            if buffer is not None:
                buffer.channel_index += self._offsets[index]
                return buffer
        return None

    def _take_turn(self) -> int:
        """The next gate; gates with priority events go first."""
        for index in self._line:
            if self._gates[index].has_priority:
                self._line.remove(index)
                return index
        return self._line.popleft()

    def read_connections(self) -> None:
        """Reads and writes the connections of every gate without waiting."""
        for gate in self._gates:
            gate.read_connections()

    def count_records(self, channel_index: int, count: int) -> None:
        """Counts records that the reader has decoded from a channel."""
        gate, _ = self._locate(channel_index)
        gate.records += count

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Sends that every record of a channel was processed."""
        gate, local = self._locate(channel_index)
        gate.acknowledge_end_of_data(local)

    def resume(self, channel_index: int) -> None:
        """Lets a channel continue after a blocking event."""
        gate, local = self._locate(channel_index)
        gate.resume(local)

    @property
    def has_priority(self) -> bool:
        """Whether the next poll returns a priority event."""
        return any(gate.has_priority for gate in self._gates)

    def channel_key(self, channel_index: int) -> tuple[str, int]:
        """The partition id and subpartition that a channel reads."""
        gate, local = self._locate(channel_index)
        return gate.channel_key(local)

    def start_capture(self, channel_index: int, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Keeps the unprocessed data in front of a channel's barrier. Returns False if that barrier never comes."""
        gate, local = self._locate(channel_index)
        return gate.start_capture(local, checkpoint_id, unconsumed)

    def take_capture(self, channel_index: int, checkpoint_id: int) -> bytes:
        """Ends the capture of a channel; returns the data."""
        gate, local = self._locate(channel_index)
        return gate.take_capture(local, checkpoint_id)

    def prioritize(self, channel_index: int, sequence: int) -> None:
        """Makes an announced barrier of a channel overtake the data in front of it."""
        gate, local = self._locate(channel_index)
        gate.prioritize(local, sequence)

    def close(self) -> None:
        """Closes every gate on purpose. Idempotent."""
        for gate in self._gates:
            gate.close()

    def abandon(self) -> None:
        """Abandons every gate. Idempotent."""
        for gate in self._gates:
            gate.abandon()

    def _describe_unread(self) -> str:
        return "; ".join(filter(None, (gate._describe_unread() for gate in self._gates)))

    def statistics(self) -> GateStatistics:
        """Snapshots of the channels of all gates under the union's indexes, and of their pools as one."""
        parts = [gate.statistics() for gate in self._gates]
        channels = [channel for part in parts for channel in part.channels]
        return GateStatistics(
            name=" and ".join(part.name for part in parts),
            channels=tuple(replace(channel, channel_index=index) for index, channel in enumerate(channels)),
            pool=LocalBufferPoolStatistics.sum_of([part.pool for part in parts if part.pool is not None]),
            records=sum(part.records for part in parts),
            idle=self.idle.statistics(self.now()),
            is_finished=self.is_finished,
        )

    def _locate(self, channel_index: int) -> tuple[SingleInputGate, int]:
        for gate, offset in zip(reversed(self._gates), reversed(self._offsets), strict=True):
            if channel_index >= offset:
                return gate, channel_index - offset
        raise LocalProtocolError(f"channel index {channel_index}; the union has 0 to {self.channel_count - 1}")

    def _notifier(self, index: int) -> Callable[[], None]:
        def on_available() -> None:
            was_empty = not self._line
            if index not in self._line:
                self._line.append(index)
            if was_empty and self.on_available is not None:
                self.on_available()

        return on_available
