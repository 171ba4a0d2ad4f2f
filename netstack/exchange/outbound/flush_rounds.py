"""Flushes all open buffers of a busy writer together, at one deadline instead of one for each buffer.

Takes: the open buffers of a writer that stages records (`staging`). Gives: rounds of flushes, a buffer timeout apart.

The first record after a flush takes the slow path, because it arms the deadline of its buffer. With 10,000 channels
and a timeout of 100 ms that is one record in 20 of a writer in Python, and each costs as much as ten others. Nothing
can be staged while a buffer waits for such a record, which is usual while so many flushed buffers are being sent. So
a writer that is staging when a deadline passes switches to rounds. Buffers stay armed when their bytes are taken, and
readers leave staged records alone. After each timeout, a round distributes staged records and flushes every buffer
with unannounced bytes. So nothing waits longer than the timeout.

Rounds end when one finds little to flush.
"""

from __future__ import annotations

from typing import Final, final

from .open_buffers import OpenBuffers
from .staging import Staging

LEAST_SHARE: Final = 16
"""Rounds end when fewer than one buffer in this many had bytes to flush: a round costs as much as arming deadlines."""


@final
class FlushRounds:
    """The flush rounds of one writer; `OpenBuffers.in_rounds` says whether a next one is scheduled."""

    __slots__ = ("_buffers", "_staging", "_timeout_s")

    def __init__(self, buffers: OpenBuffers, staging: Staging, timeout_s: float) -> None:
        """Starts inactive.

        Args:
            buffers: the buffers to flush, without the broadcast buffer.
            staging: the staging of the same writer.
            timeout_s: seconds between rounds.
        """
        self._buffers = buffers
        self._staging = staging
        self._timeout_s = timeout_s

    def begin(self) -> int | None:
        """Runs the first round, if the writer is staging. Returns the number of buffers that it flushed."""
        buffers = self._buffers
        if buffers.in_rounds or self._staging.size < 0:
            return None
        buffers.in_rounds = True
        for builder, subpartition in zip(buffers.builders, buffers.partition.subpartitions, strict=False):
            subpartition.is_in_rounds = True
            if not builder.finished:
                builder.stays_armed = True
                builder.limit = builder.capacity
        flushed = self._flush()
        self._await_next()
        return flushed

    def _on_time(self) -> None:
        flushed = self._flush()
        if flushed * LEAST_SHARE < len(self._buffers.partition.subpartitions):
            self._end()
        else:
            self._await_next()
        if flushed:
            self._buffers.on_flushed(flushed)

    def _await_next(self) -> None:
        host = self._buffers.partition.host
        host.call_at(host.now() + self._timeout_s, self._on_time)

    def _flush(self) -> int:
        staging = self._staging
        if self._buffers.has_marks:
            staging.close()
            self._buffers.flush_marked()
        if staging.size >= 0:
            staging.on_full()
        flushed = 0
        for builder, subpartition in zip(self._buffers.builders, self._buffers.partition.subpartitions, strict=False):
            if not builder.finished and subpartition.flush():
                flushed += 1
        return flushed

    def _end(self) -> None:
        self._buffers.in_rounds = False
        self._staging.close()
        for builder, subpartition in zip(self._buffers.builders, self._buffers.partition.subpartitions, strict=False):
            subpartition.is_in_rounds = False
            if not builder.finished:
                builder.stays_armed = False
                if not subpartition.is_flushed:
                    builder.settle()
                    builder.limit = builder.position  # the next record arms its own deadline
