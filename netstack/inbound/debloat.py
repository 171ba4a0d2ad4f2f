"""How large buffers should be so that what is under way takes about a given time to consume (FLIP-183).

Takes: measured throughput and the number of buffers in use, once a period. Gives: a buffer size, when it has changed
enough to announce it to the producers.

Sizes are shrunk, not counts: a buffer that carries less is sooner consumed, while pools, credit and the share of each
channel stay as they are. The formula is Flink's (`BufferDebloater`, `BufferSizeEMA`):

    desired = throughput * target ; instant = min(desired / buffers in use, 2 * last)
    last += 2 / (samples + 1) * (instant - last), then clamped to [min, max]

The bound of twice the last size makes growing as fast as shrinking, however large the desired size is.
"""

from __future__ import annotations

from typing import Final, final

_MAX_PERIODS: Final = 1000
"""More of them would change nothing that matters: by then even a moving average over hundreds has arrived."""


@final
class BufferDebloater:
    """The size of the buffers that the producers of one gate fill."""

    __slots__ = (
        "_alpha",
        "_last",
        "_max_bytes",
        "_min_bytes",
        "_target_s",
        "_threshold_percent",
        "announced_bytes",
        "estimated_time_to_consume_s",
    )

    def __init__(
        self,
        *,
        target_s: float,
        samples: int,
        threshold_percent: int,
        min_bytes: int,
        max_bytes: int,
        start_bytes: int | None = None,
    ) -> None:
        """Starts without a measurement. `NetworkConfig` has checked the numbers.

        Args:
            target_s: how long what is under way should take to consume.
            samples: the newest counts 2 / (samples + 1).
            threshold_percent: changes of less than this are not announced.
            min_bytes: smallest size.
            max_bytes: largest size: the segments'.
            start_bytes: the size before the first measurement; None is the largest.
        """
        self._target_s = target_s
        self._alpha = 2.0 / (samples + 1)
        self._threshold_percent = threshold_percent
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self.announced_bytes = max_bytes if start_bytes is None else start_bytes
        """The size that was announced last, or that producers use before an announcement."""
        self._last = float(self.announced_bytes)
        self.estimated_time_to_consume_s: float | None = None
        """How long what was under way at the last measurement takes; None before the first."""

    def recalculate(self, throughput_bytes_per_s: float, buffers_in_use: int, periods: int = 1) -> int | None:
        """Takes one measurement.

        Args:
            throughput_bytes_per_s: bytes consumed per second in which there was something to consume.
            buffers_in_use: filled and not yet consumed, at either end.
            periods: how many it was measured over; it counts as so many alike.

        Returns:
            The size to announce, in bytes; None when it has not changed enough. The smallest and the largest size are
            announced however small the step to them.
        """
        in_use = max(1, buffers_in_use)
        desired = throughput_bytes_per_s * self._target_s / in_use
        last = self._last
        for _ in range(min(periods, _MAX_PERIODS)):
            last += self._alpha * (min(desired, 2.0 * last) - last)
            last = max(float(self._min_bytes), min(last, float(self._max_bytes)))
        self._last = last
        size = round(last)
        self.estimated_time_to_consume_s = size * in_use / max(1.0, throughput_bytes_per_s)
        announced = self.announced_bytes
        if size == announced:
            return None
        threshold = announced * self._threshold_percent // 100
        if self._min_bytes < size < self._max_bytes and abs(size - announced) < threshold:
            return None
        self.announced_bytes = size
        return size
