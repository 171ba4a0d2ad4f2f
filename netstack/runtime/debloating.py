"""Measures one gate once a period while data comes, and tells its producers how much to put into a buffer.

Takes: a gate, the settings, a clock's `call_at`. Gives: buffer sizes to the producers of the gate, and to the gate the
debloater that its statistics are read from.

Rules:
- Throughput is what was polled in the period by the time in which there was something to poll: while the gate is empty
  and its reader waits, nothing is learnt about how fast it could be.
- A period at whose end nothing was polled although something waits goes on for another: a reader that takes longer than
  a period for a buffer is slow, not stopped, and its throughput is known when it asks for the next one. (Flink takes 0
  for such a period, so that buffers shrink to the minimum and grow again.) What was measured over several periods
  counts as so many measurements.
- A period in which nothing was polled and after which nothing waits says nothing, and ends the measuring: an idle gate
  has no timer. The next channel that gets in line begins a new one, so beside the timer the data path pays one
  comparison an edge from empty to filled.
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
"""Less time than this in which there was something to poll is none: it is what readings of a clock differ by."""


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
        polled_bytes, buffers_in_use = gate.measure()
        taken_bytes, self._polled_bytes = polled_bytes - self._polled_bytes, polled_bytes
        now = gate.now()
        if taken_bytes:
            elapsed_s = now - self._began_s
            active_s = elapsed_s - (gate.idle.total_s(now) - self._idle_s)
            if active_s > GRAIN_S:
                self._throughput_bytes_per_s = taken_bytes / active_s
            self._apply(buffers_in_use, max(1, round(elapsed_s / self._period_s)))
            self._begin_period()
        elif gate.has_data:
            self._call_at(now + self._period_s, self._on_period)
        else:
            gate.on_data = self._begin_period

    def _apply(self, buffers_in_use: int, periods: int) -> None:
        if self._throughput_bytes_per_s is not None:
            size_bytes = self._debloater.recalculate(self._throughput_bytes_per_s, buffers_in_use, periods)
            if size_bytes is not None:
                self._gate.announce_buffer_size(size_bytes)
