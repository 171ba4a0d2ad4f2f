"""A verifier that checks every byte of one delivery in sixteen, and both ends of the others.

Proven for everything: the count, and that each channel's records arrive in order and once, by the first and last record
of each delivery (an array, a list of records, a columnar batch). Lost, repeated or swapped deliveries and changed
lengths are found. Proven for a sixteenth: every index and the sum of all bytes. Other damage inside a delivery is not
detected.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

import numpy.typing as npt

from .arrivals import column
from .generator import INDEX_BYTES, MASK, filler, word_sum
from .pacing import clock_ns
from .proof import Delivery, Order
from .verifier import RecordVerifier

if TYPE_CHECKING:
    import pyarrow as pa

EVERY: Final = 16
"""One of this many deliveries is checked completely."""

_INDEX: Final = struct.Struct("<Q")
_LOG_AT_ONCE: Final = 4096
"""Deliveries that are logged together: a numpy array for each would cost more than reading it."""


@final
class SampledVerifier(RecordVerifier):
    """Checks samples of each delivery."""

    def __init__(self, *, record_bytes: int, channels: int = 1, order: Order = Order.ROUND_ROBIN) -> None:
        super().__init__(record_bytes=record_bytes, channels=channels, order=order)
        self._deliveries = 0
        self._unlogged: list[tuple[int, int, int]] = []
        self._filler_sum = word_sum(filler(record_bytes))
        self.verified = f"1 in {EVERY}"

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed`."""
        if records:
            first, last = (int.from_bytes(records[at][:INDEX_BYTES], "little") for at in (0, -1))
            if self._is_sampled():
                self._look(super().feed, channel, records, first, now_ns)
            elif len(records[-1]) == self._record_bytes:
                self._take_ends(channel, first, last, len(records), now_ns)
            else:
                self._problem(f"channel {channel}: a record of {len(records[-1])} bytes among records of others")

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_array`."""
        count = len(array)
        if count:
            width = self._record_bytes
            if array.nbytes != count * width:
                self._look(super().feed_array, channel, array, int.from_bytes(array[:1].tobytes(), "little"), now_ns)
                return
            (first,) = _INDEX.unpack_from(array.data)
            if self._is_sampled():
                self._look(super().feed_array, channel, array, first, now_ns)
            else:
                (last,) = _INDEX.unpack_from(array.data, (count - 1) * width)
                self._take_ends(channel, first, last, count, now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_arrow`."""
        count = batch.num_rows
        if count:
            index = batch.column(0)
            first = index[0].as_py()
            if self._is_sampled() or batch.num_columns != (2 if self._row_words > 1 else 1):
                self._look(super().feed_arrow, channel, batch, first, now_ns)
            else:
                self._take_ends(channel, first, index[count - 1].as_py(), count, now_ns)

    def delivery(self) -> Delivery:
        """Implements `Verifier.delivery`; sums were compared on arrival."""
        return replace(super().delivery(), checksum=None)

    def _is_sampled(self) -> bool:
        self._deliveries += 1
        return self._deliveries % EVERY == 1

    def _look(self, feed: Any, channel: int, rows: Any, first: int, now_ns: int | None) -> None:
        before, records_before = self._checksum, self.received_records
        feed(channel, rows, now_ns)
        super().finish()
        count = self.received_records - records_before
        wanted = count * first + self._step * count * (count - 1) // 2 + count * self._filler_sum
        if (self._checksum - before - wanted) & MASK:
            self._problem(f"channel {channel}: bytes of the {count} records from {first} on differ from those sent")

    def _take_ends(self, channel: int, first: int, last: int, count: int, now_ns: int | None) -> None:
        now = clock_ns() if now_ns is None else now_ns
        self.arrivals.add(count, now)
        if last != first + (count - 1) * self._step:
            self._problem(f"channel {channel}: {count} records from {first} on end with {last}")
        self._take_run(channel, first, count)
        self._unlogged.append((first, count, now))
        if len(self._unlogged) == _LOG_AT_ONCE:
            self._log_ends()

    def finish(self) -> None:
        """Implements `Verifier.finish`."""
        super().finish()
        self._log_ends()

    def _log_ends(self) -> None:
        if self._unlogged:
            firsts, counts, times = (column(values) for values in zip(*self._unlogged, strict=True))
            self._unlogged.clear()
            self.arrivals.log(self.sample_keys(firsts), counts, times)
