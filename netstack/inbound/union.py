"""Several gates as one input: UnionInputGate.

Takes: gates. Gives: their buffers and events, fair among gates, with the channels of all of them numbered through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from ..buffer.buffer import Buffer
from ..buffer.statistics import LocalBufferPoolStatistics
from ..errors import LocalProtocolError
from .gate import SingleInputGate
from .leaving import ClosedByLeaving
from .statistics import GateStatistics


@final
class UnionInputGate(ClosedByLeaving):
    """Several gates as one input.

    Fair among gates, one buffer a turn; channel indexes follow each other gate by gate, in the order in which gates
    came.
    """

    def __init__(self, gates: Sequence[SingleInputGate], *, missing: int = 0) -> None:
        """Starts with some gates.

        Args:
            gates: distinct ones, at least one; two with those that are missing.
            missing: how many will be added: the union is not finished before.

        Raises:
            LocalProtocolError: too few, or one of them twice.
        """
        if not gates or len(gates) + missing < 2 or len(set(map(id, gates))) != len(gates):
            raise LocalProtocolError(f"a UnionInputGate needs at least 2 distinct gates, got {len(gates)}")
        self.on_available: Callable[[], None] | None = None
        self.config = gates[0].config
        self.now = gates[0].now
        self.spin_s = gates[0].spin_s
        self.idle = gates[0].idle
        """Its reader waits because there is nothing to poll in any gate: the time of each of them."""
        self._missing = len(gates) + missing
        self._gates: list[SingleInputGate] = []
        self._offsets: list[int] = []
        self._line: deque[int] = deque()
        for gate in gates:
            self.add(gate)

    def add(self, gate: SingleInputGate) -> None:
        """One of those that were missing is there; its channels follow those of all before.

        Raises:
            LocalProtocolError: none is missing.
        """
        if not self._missing:
            raise LocalProtocolError("a UnionInputGate has all of its gates; say missing= when it is made")
        index = len(self._gates)
        self._offsets.append(self.channel_count)
        self.spin_s = min(self.spin_s, gate.spin_s)
        gate.idle = self.idle
        gate.on_priority = self.on_priority if self._gates else gate.on_priority
        self._gates.append(gate)
        self._missing -= 1
        notify = gate.on_available = self._notifier(index)
        if gate.is_available:
            notify()

    @property
    def on_priority(self) -> Callable[[], None] | None:
        """What each gate calls when a priority event came and none waited."""
        return self._gates[0].on_priority

    @on_priority.setter
    def on_priority(self, callback: Callable[[], None] | None) -> None:
        for gate in self._gates:
            gate.on_priority = callback

    @property
    def channel_count(self) -> int:
        """Over all gates."""
        return sum(gate.channel_count for gate in self._gates)

    @property
    def is_available(self) -> bool:
        """Whether `poll` is worth calling."""
        return bool(self._line) or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether every gate is, and none is missing."""
        return not self._missing and all(gate.is_finished for gate in self._gates)

    @property
    def ended_with_drain(self) -> bool | None:
        """None until every gate has seen the end of its data; then whether all of them said drain."""
        states = [gate.ended_with_drain for gate in self._gates]
        return None if self._missing or None in states else all(states)

    def poll(self) -> Buffer | None:
        """The next buffer or event of the gate whose turn it is; raises what that gate raises."""
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
        """The gate whose turn it is; gates with priority events go first."""
        for index in self._line:
            if self._gates[index].has_priority:
                self._line.remove(index)
                return index
        return self._line.popleft()

    def read_connections(self) -> None:
        """Before waiting: has every gate announce what is due and look whether more has arrived."""
        for gate in self._gates:
            gate.read_connections()

    def count_records(self, channel_index: int, count: int) -> None:
        """The reader has decoded records of a channel."""
        gate, _ = self._locate(channel_index)
        gate.records += count

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Every record of a channel was processed."""
        gate, local = self._locate(channel_index)
        gate.acknowledge_end_of_data(local)

    def resume(self, channel_index: int) -> None:
        """Lets a channel go on after a blocking event."""
        gate, local = self._locate(channel_index)
        gate.resume(local)

    @property
    def has_priority(self) -> bool:
        """Whether the next poll gives a priority event."""
        return any(gate.has_priority for gate in self._gates)

    def channel_key(self, channel_index: int) -> tuple[str, int]:
        """What a channel reads: (partition id, subpartition)."""
        gate, local = self._locate(channel_index)
        return gate.channel_key(local)

    def start_capture(self, channel_index: int, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Keeps what is in front of a barrier of a channel; False when that can never come."""
        gate, local = self._locate(channel_index)
        return gate.start_capture(local, checkpoint_id, unconsumed)

    def take_capture(self, channel_index: int, checkpoint_id: int) -> bytes:
        """Ends the capture of a channel; returns what was kept."""
        gate, local = self._locate(channel_index)
        return gate.take_capture(local, checkpoint_id)

    def prioritize(self, channel_index: int, sequence: int) -> None:
        """An announced barrier of a channel overtakes what is in front of it."""
        gate, local = self._locate(channel_index)
        gate.prioritize(local, sequence)

    def close(self) -> None:
        """Closes every gate; idempotent."""
        for gate in self._gates:
            gate.close()

    def _left_behind(self) -> str:
        return "; ".join(filter(None, (gate._left_behind() for gate in self._gates)))

    def statistics(self) -> GateStatistics:
        """The channels of all gates, numbered through; their pools as one."""
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
