"""Aligns the barriers of a gate for its reader: each is returned once, when it has arrived on every channel.

Takes: the events of a gate, as its reader polls them, and the ends of channels. Gives: the events for the application.

A channel whose barrier has arrived stays blocked until the barriers of all other channels have arrived, so nothing that
was written after a barrier is read before it (`schedule/checkpoint/barrier` has the rules; tasks use the same handler).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ...base.errors import LocalProtocolError, NetstackError
from ...base.events import Alignment, CancelCheckpointMarker, CheckpointBarrier, Event
from ...exchange.buffer.buffer import Buffer
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.inbound.union import UnionInputGate
from ...schedule.checkpoint.barrier import AbortReason, AlignmentStatistics, BarrierHandler
from ...schedule.checkpoint.barrier.ports import blocks_producer


@final
class AlignedBarriers:
    """The barriers of one gate (a `CheckpointedInputs` and a `CheckpointTask`)."""

    def __init__(self, gate: SingleInputGate | UnionInputGate) -> None:
        self._gate = gate
        self._events: list[Event] = []
        self._is_over = False
        self._handler = BarrierHandler(gate.channel_count, self, self, unaligned=False, now=gate.now, call_at=_no_timer)

    def on_event(self, channel: int, event: Event) -> list[Event]:
        """Takes an event polled from a channel; returns those for the application.

        Raises:
            LocalProtocolError: a barrier is not aligned, or the channel delivered it twice.
        """
        if isinstance(event, CheckpointBarrier):
            self._on_barrier(channel, event)
        elif not isinstance(event, CancelCheckpointMarker):
            self._events.append(event)
        elif not self._is_over:
            self._handler.on_cancel(channel, event.checkpoint_id)
        return self._take()

    def on_end(self, channel: int) -> list[Event]:
        """Takes the end of a channel, which counts as its barrier; returns the events for the application."""
        if not self._is_over:
            self._handler.on_end_of_partition(channel)
        return self._take()

    def poll(self) -> Buffer | None:
        """Polls the gate. The failure of a channel ends alignment: no barrier is complete without that channel's.

        Blocked channels are then resumed, and further barriers dropped.
        """
        try:
            return self._gate.poll()
        except NetstackError:
            self._is_over = True
            self._handler.close()
            self._events.clear()
            raise

    def _on_barrier(self, channel: int, barrier: CheckpointBarrier) -> None:
        if self._is_over:
            if blocks_producer(barrier):
                self._gate.resume(channel)
            return
        if barrier.alignment is not Alignment.ALIGNED:
            raise LocalProtocolError(
                f"channel {channel} delivered barrier {barrier.checkpoint_id}, which is {barrier.alignment.name}: a"
                " reader with aligns_barriers=True takes only barriers with Alignment.ALIGNED"
            )
        self._handler.on_barrier(channel, barrier)

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # From the barrier handler.

    def resume(self, channel: int) -> None:
        """Implements `CheckpointedInputs.resume`."""
        try:
            self._gate.resume(channel)
        except LocalProtocolError:
            if not self._is_over:
                raise  # else it may be the channel that has failed

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Never called: no checkpoint becomes unaligned here."""

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Never called."""

    def prioritize(self, channel: int, sequence: int) -> None:
        """Never called."""

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        """Implements `CheckpointTask.on_barrier`: the barrier has arrived everywhere."""
        self._events.append(barrier)

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        """Implements `CheckpointTask.inputs_complete`."""

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Implements `CheckpointTask.abort`: a marker came, or a newer barrier."""
        self._events.append(CancelCheckpointMarker(checkpoint_id))


def _no_timer(_deadline_s: float, _callback: Callable[[], None]) -> None:
    """Never called: without unaligned checkpoints there is no timeout."""
