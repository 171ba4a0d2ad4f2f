"""Buffer debloating for one gate: measures its throughput and announces buffer sizes to its producers.

Takes: a gate, the settings, a clock's `call_at`. Gives: buffer sizes to the producers of the gate, and the debloater to
the gate's statistics.

Rules:
- Throughput is the bytes polled in the period divided by the time in which there was data to poll: an empty gate with a
  waiting reader says nothing about how fast the reader could be.
- If nothing was polled in a period although data waits, the period is extended: a reader that needs longer than a
  period for a buffer is slow, not stopped, and its throughput is known when it polls next. (Flink measures 0 for such a
  period, so buffers shrink to the minimum and grow again.) A measurement over several periods counts as that many.
- A period in which nothing was polled and after which nothing waits ends the measurement: an idle gate has no timer.
  The next channel that receives data starts a new one, so the data path only pays one comparison when a channel becomes
  non-empty.
- Nothing is counted per buffer: the polled bytes are the received bytes without the queued ones, summed over the
  channels once a period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..base.config import NetworkConfig
from ..exchange.inbound.debloat import BufferDebloater
from ..exchange.inbound.gate import SingleInputGate

GRAIN_S: Final = 1e-6
"""An active time below this is noise of the clock and counts as none."""


@final
class GateDebloating:
    """Adjusts the buffer size of one gate's producers until the gate ends."""

    def __init__(
        self,
        gate: SingleInputGate,
        config: NetworkConfig,
        target_s: float,
        *,
        call_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Starts; the gate keeps a reference.

        Args:
            gate: with all its channels, before the first poll; its channels have announced the start size.
            config: period, samples, threshold, bounds.
            target_s: the intended time to consume the data in flight.
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
