"""One deadline for all open buffers of a writer in a hurry, instead of one for each of them.

Takes: the open buffers of a writer that stages records (`staging`). Gives: rounds of flushes, a buffer timeout apart.

The first record behind bytes that were taken has to go the slow way, because it arms the deadline of its buffer. With
10,000 channels and a timeout of 100 ms that is one record in 20 of a writer in Python, each as dear as ten others; and
while some buffers wait for such a record, as they do as long as a flush of so many is being sent, nothing is staged. So
a writer that stages when a deadline passes goes over to rounds. Buffers stay armed when their bytes are taken; whoever
takes them gets what was shared out, and leaves staged records where they are. A timeout after a round, what is staged
is shared out, and every buffer with unannounced bytes is flushed. So nothing waits longer than the timeout,
and what was written last before a round less.

A round that finds little to flush is the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .open_buffers import OpenBuffers
    from .staging import Staging

LEAST_SHARE: Final = 16
"""Rounds end when fewer than one buffer in so many had something to flush: looking at all costs as much as arming."""


@final
class FlushRounds:
    """The rounds of one writer.

    Attributes:
        is_active: whether a round is due, so that every open buffer is armed.
    """

    __slots__ = ("_buffers", "_staging", "_timeout_s", "is_active")

    def __init__(self, buffers: OpenBuffers, staging: Staging, timeout_s: float) -> None:
        """Nothing is due.

        Args:
            buffers: those of the subpartitions are flushed.
            staging: of the same writer.
            timeout_s: from round to round.
        """
        self._buffers = buffers
        self._staging = staging
        self._timeout_s = timeout_s
        self.is_active = False

    @property
    def should_begin(self) -> bool:
        """Whether the writer is in a hurry, and there are no rounds yet."""
        return self._staging.size >= 0 and not self.is_active

    def begin(self) -> int:
        """The first round. Returns how many buffers were flushed; whoever calls has the connections send."""
        self.is_active = True
        buffers = self._buffers
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
        self.is_active = False
        self._staging.close()
        for builder, subpartition in zip(self._buffers.builders, self._buffers.partition.subpartitions, strict=False):
            subpartition.is_in_rounds = False
            if not builder.finished:
                builder.stays_armed = False
                if not subpartition.is_flushed:
                    builder.settle()
                    builder.limit = builder.position  # its next record arms a deadline of its own
