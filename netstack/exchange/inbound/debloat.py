"""BufferDebloater: sizes buffers so that the data in flight takes a given time to consume (FLIP-183).

Takes: throughput and the number of buffers in use, once a period. Gives: a buffer size, when it has changed enough to
announce it to the producers.

It shrinks sizes, not counts: a smaller buffer is consumed sooner, while pools, credit and the shares of the channels
stay the same. The formula is Flink's (`BufferDebloater`, `BufferSizeEMA`):

    desired = throughput * target ; instant = min(desired / buffers in use, 2 * last)
    last += 2 / (samples + 1) * (instant - last), then clamped to [min, max]

The bound of twice the last size makes the size grow as fast as it shrinks, however large the desired size is.
"""

from __future__ import annotations

from typing import Final, final

_MAX_PERIODS: Final = 1000
"""More periods change nothing: even a moving average over hundreds of samples has converged."""


@final
class BufferDebloater:
    """Computes the buffer size for the producers of one gate."""

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
        """Starts without a measurement; `NetworkConfig` has checked the values.

        Args:
            target_s: time that the data in flight should take to consume.
            samples: window of the moving average; the newest sample has weight 2 / (samples + 1).
            threshold_percent: smaller changes are not announced.
            min_bytes: smallest size.
            max_bytes: largest size: that of a segment.
            start_bytes: size before the first measurement; None: the largest.
        """
        self._target_s = target_s
        self._alpha = 2.0 / (samples + 1)
        self._threshold_percent = threshold_percent
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self.announced_bytes = max_bytes if start_bytes is None else start_bytes
        """The last announced size, or the initial one."""
        self._last = float(self.announced_bytes)
        self.estimated_time_to_consume_s: float | None = None
        """Time to consume the data in flight at the last measurement; None before the first."""

    def recalculate(self, throughput_bytes_per_s: float, buffers_in_use: int, periods: int = 1) -> int | None:
        """Adds one measurement.

        Args:
            throughput_bytes_per_s: bytes consumed per second of the time in which data was available.
            buffers_in_use: filled and unconsumed buffers, at either end.
            periods: number of periods that the measurement covers; it counts as that many equal samples.

        Returns:
            The size to announce, in bytes; None if it changed too little. The smallest and the largest size are
            announced after any change.
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
