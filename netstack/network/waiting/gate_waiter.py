"""Waits for the next buffer of a gate, and handles its events, for `network.reader`.

Takes: a gate, its reader's way to wait. Gives: buffers, one at a time; the events that are for the application.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

import trio

from ...base.errors import LocalProtocolError
from ...base.events import DataType, Event, decode_event
from ...exchange.buffer.buffer import Buffer
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.inbound.union import UnionInputGate
from .parking import Parking, TaskParking

if TYPE_CHECKING:
    from .aligned_barriers import AlignedBarriers

TURN_BUFFERS: Final = 64
"""A reader that never waits lets other tasks run after this many buffers."""

_BUSY: Final = "another task reads from this reader; give each task a gate of its own"

Engine = SingleInputGate | UnionInputGate


@final
class GateWaiter:
    """Fetches the next buffer for a reader, with as few waits as possible."""

    def __init__(self, gate: Engine, parking: Parking | None, aligns_barriers: bool = False) -> None:
        if gate.on_available is not None:
            raise LocalProtocolError("this gate already has a reader, or is part of a union; open another gate")
        self.gate = gate
        self.single = gate if isinstance(gate, SingleInputGate) else None
        self.parking: Parking = TaskParking() if parking is None else parking
        self._turn = 0
        self._resume: int | None = None
        self._is_waiting = False
        self._aligned: AlignedBarriers | None = None
        self.poll = gate.poll
        """Polls the gate without waiting."""
        if aligns_barriers:
            from .aligned_barriers import AlignedBarriers  # other readers need no checkpoints

            self._aligned = AlignedBarriers(gate)
            self.poll = self._aligned.poll
        gate.on_available = self.parking.wake

    @property
    def aligns_barriers(self) -> bool:
        """Whether barriers are aligned."""
        return self._aligned is not None

    async def next_buffer(self) -> Buffer | None:
        """The next data buffer or event; None when all channels have ended."""
        self._begin()
        gate = self.gate
        self._turn += 1
        if self._turn >= TURN_BUFFERS:
            self._turn = 0
            with self.alone():
                await self.parking.checkpoint()
        while True:
            buffer = self.poll()
            if buffer is not None:
                self._turn += buffer.buffers - 1
                return buffer
            if gate.is_finished:
                return None
            gate.read_connections()
            if not gate.is_available:
                gate.idle.begin(gate.now())
                self._is_waiting = True  # like `alone`, but cheaper for each record of a slow stream
                try:
                    await self.parking.wait(gate.spin_s, self._look)
                finally:
                    self._is_waiting = False
                    gate.idle.end(gate.now())
                self._turn = 0

    def at_hand(self) -> Buffer | None:
        """The next buffer if it is ready and nothing else has to be done first; otherwise None: call `next_buffer`."""
        if self._is_waiting or self._resume is not None or self._turn >= TURN_BUFFERS - 1:
            return None
        buffer = self.poll()
        if buffer is not None:
            self._turn += buffer.buffers
        return buffer

    def _look(self) -> bool:
        self.gate.read_connections()
        return self.gate.is_available

    def next_buffer_nowait(self) -> Buffer | None:
        """The next data buffer or event if it is ready; raises `trio.WouldBlock` otherwise."""
        self._begin()
        gate = self.gate
        buffer = self.poll()
        if buffer is None and not gate.is_finished:
            gate.read_connections()
            buffer = self.poll()
            if buffer is None and not gate.is_finished:
                raise trio.WouldBlock
        return buffer

    def _begin(self) -> None:
        """Refuses a second task, and resumes the channel behind the last barrier."""
        if self._is_waiting:
            raise trio.BusyResourceError(_BUSY)
        if self._resume is not None:
            channel, self._resume = self._resume, None
            self.gate.resume(channel)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes other tasks that use the reader meanwhile raise BusyResourceError."""
        if self._is_waiting:
            raise trio.BusyResourceError(_BUSY)
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def events_of(self, buffer: Buffer) -> list[Event]:
        """Handles an event buffer; returns the events for the application."""
        data_type = buffer.data_type
        if data_type is DataType.ANNOUNCEMENT:  # of a barrier that comes in its place
            buffer.recycle()
            return []
        channel = buffer.channel_index
        event = decode_event(buffer.memory)
        buffer.recycle()
        if data_type is DataType.END_OF_DATA:
            self.gate.acknowledge_end_of_data(channel)
            return []
        if data_type is DataType.END_OF_PARTITION:
            return [] if self._aligned is None else self._aligned.on_end(channel)
        if self._aligned is not None:
            return self._aligned.on_event(channel, event)
        if data_type.blocks_upstream:
            # The channel's producer waits behind an aligned barrier until the application requests the next element.
            self._resume = channel
        return [event]
