"""Measures one gate once a period while data comes, and tells its producers how much to put into a buffer.

Takes: a gate, the settings, a clock's `call_at`. Gives: `NewBufferSize` to the producers of the gate; the debloater that
its statistics are read from.

Rules:
- Throughput is what was polled in the period by the time in which there was something to poll: while the gate is empty
  and its reader waits, nothing is learnt about how fast it could be.
- A period in which nothing was polled although something waits has throughput 0. One in which nothing was polled, and
  after which nothing waits, says nothing, and ends the measuring: an idle gate has no timer. The next channel that gets
  in line begins a new period, so beside the timer the data path pays one comparison an edge from empty to filled.
- Nothing is counted a buffer: what was polled is what has come without what is still queued, added up over the channels
  once a period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..config import NetworkConfig
from ..inbound.debloat import BufferDebloater
from ..inbound.gate import SingleInputGate

GRAIN_S: Final = 1e-6
"""Less time than this in which there was something to poll is none: it is the difference of four readings of a clock."""


@final
class GateDebloating:
    """Sizes the buffers of one gate's producers until the gate ends."""

    def __init__(
        self,
        gate: SingleInputGate,
        config: NetworkConfig,
        target_s: float,
        *,
        call_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Begins; the gate keeps it alive.

        Args:
            gate: with all its channels, and not polled yet; they know the start size.
            config: period, samples, threshold, bounds.
            target_s: how long what is under way should take to consume.
            call_at: calls back once, at a time of the gate's clock.
        """
        self._gate = gate
        self._period_s = config.debloat_period_s
        self._call_at = call_at
        self._debloater = gate.debloater = BufferDebloater(
            target_s=target_s,
            samples=config.debloat_samples,
            threshold_percent=config.debloat_threshold_percent,
            min_bytes=config.debloat_min_buffer_bytes,
            max_bytes=config.segment_size_bytes,
            start_bytes=config.debloat_start_buffer_bytes,
        )
        self._polled_bytes = 0
        self._throughput_bytes_per_s: float | None = None
        self._began_s = self._idle_s = 0.0
        if gate.has_data:
            self._begin_period()
        else:
            gate.on_data = self._begin_period

    def _begin_period(self) -> None:
        gate = self._gate
        gate.on_data = None
        now = self._began_s = gate.now()
        self._idle_s = gate.idle.total_s(now)
        self._call_at(now + self._period_s, self._on_period)

    def _on_period(self) -> None:
        gate = self._gate
        if gate.is_closed or gate.is_finished:
            return
        before_bytes = self._polled_bytes
        self._polled_bytes, buffers_in_use = gate.measure()
        taken_bytes = self._polled_bytes - before_bytes
        if not taken_bytes and not gate.has_data:
            gate.on_data = self._begin_period
            return
        now = gate.now()
        active_s = now - self._began_s - (gate.idle.total_s(now) - self._idle_s)
        if active_s > GRAIN_S:
            self._throughput_bytes_per_s = taken_bytes / active_s
        if self._throughput_bytes_per_s is not None:
            size_bytes = self._debloater.recalculate(self._throughput_bytes_per_s, buffers_in_use)
            if size_bytes is not None:
                gate.announce_buffer_size(size_bytes)
        self._begin_period()
