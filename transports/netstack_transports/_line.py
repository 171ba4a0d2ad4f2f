"""One direction of an impaired link: delays bytes and limits their rate.

Takes: bytes, which the stream's reader stores in the lent window; the time, as an argument. Gives: the bytes that are
due.

Rules: the model is a cable behind a transmitter. Bytes wait until the transmitter is free, are transmitted in portions
of `PORTION_S` (`start = max(entered, transmitter free)`, `left = start + size / rate`), and arrive `delay` later.
Without a rate they leave when they enter. Bytes leave in order, whatever is changed meanwhile. Each byte is copied once
in (by the system call that stores it) and once out.

A portion that loses a frame arrives a round trip later, since TCP sends the frame again, and all behind it waits. With
jitter a portion arrives up to that much later. The congestion control, which sends less after a loss, is not imitated.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from netstack.base.transport import byte_view

BLOCK_BYTES: Final = 256 * 1024
"""The most bytes that one read stores."""

SPARE_BLOCKS: Final = 4
"""Emptied blocks kept for reuse: a running line frees about as many as it needs."""

PORTION_S: Final = 0.001
"""The time that one portion takes on the line; trio wakes tasks no more often than this."""

FRAME_BYTES: Final = 1448
"""Bytes of a stream in one full Ethernet frame of TCP: of so many one may be lost."""


@final
class Line:
    """A line that delays and limits. All byte counts are positions since the start of the stream."""

    __slots__ = (
        "_blocks",
        "_delay_s",
        "_entered",
        "_flying",
        "_free_at",
        "_head",
        "_is_ended",
        "_jitter_s",
        "_limit",
        "_loss",
        "_luck",
        "_portion",
        "_queue_bytes",
        "_rate",
        "_ready",
        "_sent",
        "_spares",
        "_tail",
        "_taken",
        "_waiting",
    )

    def __init__(
        self,
        queue_bytes: int,
        delay_s: float,
        rate_bytes_per_s: float | None,
        *,
        loss: float = 0.0,
        jitter_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Creates an empty line.

        Args:
            queue_bytes: the most bytes held, beyond those that fit on the line (rate x delay).
            delay_s: see `change`.
            rate_bytes_per_s: see `change`.
            loss: the part of all frames that is lost, 0 to 1.
            jitter_s: the most that is added to the delay of a portion, evenly distributed.
            seed: decides losses and jitter.
        """
        self._queue_bytes = queue_bytes
        self._loss = loss
        self._jitter_s = jitter_s
        self._luck = random.Random(seed)
        self._entered = self._sent = self._ready = self._taken = 0
        self._free_at = -math.inf
        self._is_ended = False
        self._waiting: deque[tuple[int, float]] = deque()  # (position after, when it entered), not transmitted yet
        self._flying: deque[tuple[int, float]] = deque()  # (position after, when it left the transmitter)
        self._blocks: deque[memoryview] = deque()
        self._spares: list[memoryview] = []
        self._head = self._tail = 0  # read position in the first block, write position in the last one
        self._set(delay_s, rate_bytes_per_s)

    @property
    def held_bytes(self) -> int:
        """Bytes that entered and were not taken yet."""
        return self._entered - self._taken

    @property
    def is_over(self) -> bool:
        """Whether the end has arrived, and all bytes before it were taken."""
        return self._is_ended and self._taken == self._entered and not self._waiting and not self._flying

    @property
    def takes_more(self) -> bool:
        """Whether `window` has room."""
        return self._entered - self._taken < self._limit and not self._is_ended

    def change(self, delay_s: float, rate_bytes_per_s: float | None, now: float) -> None:
        """Changes the line from `now` on; the order of bytes is kept.

        Args:
            delay_s: applies to all bytes that have not arrived yet.
            rate_bytes_per_s: applies to all bytes whose transmission has not started; None means no limit.
            now: seconds of the clock of `enter` and `advance`.
        """
        self.advance(now)
        self._set(delay_s, rate_bytes_per_s)

    def window(self) -> memoryview | None:
        """The place for the next bytes, at most one block; None if the line is full or at its end."""
        room = self._limit - (self._entered - self._taken)
        if room <= 0 or self._is_ended:
            return None
        if not self._blocks or self._tail == BLOCK_BYTES:
            self._blocks.append(self._spares.pop() if self._spares else memoryview(bytearray(BLOCK_BYTES)))
            self._tail = 0
        return self._blocks[-1][self._tail : self._tail + room]

    def enter(self, count: int, now: float) -> None:
        """Records that the first `count` bytes of the last `window` were stored."""
        self._tail += count
        self._entered += count
        self._waiting.append((self._entered, now))

    def end(self, now: float) -> None:
        """Records the end of the stream, which arrives after the last byte."""
        self._is_ended = True
        self._waiting.append((self._entered, now))

    def advance(self, now: float) -> None:
        """Moves the time forward to `now`: due bytes can be taken."""
        waiting, flying = self._waiting, self._flying
        while waiting:
            end, entered_at = waiting[0]
            left_at = max(entered_at, self._free_at)
            if left_at > now:
                break
            if self._rate is not None:
                end = min(end, self._sent + self._portion)
                left_at += (end - self._sent) / self._rate
            frames = -(-(end - self._sent) // FRAME_BYTES)
            self._sent = end
            self._free_at = left_at
            if self._loss or self._jitter_s:
                left_at += self._mishap_s(frames)
                if flying:
                    left_at = max(left_at, flying[-1][1])
            flying.append((end, left_at))
            if end == waiting[0][0]:
                waiting.popleft()
        delay_s = self._delay_s
        while flying and flying[0][1] + delay_s <= now:
            self._ready = flying.popleft()[0]

    def due_at(self) -> float:
        """The earliest known time at which there is something to take: -inf is now, inf is unknown."""
        if self._ready > self._taken or self.is_over:
            return -math.inf
        # After `advance` the portion in transmission is in `_flying`: if `_flying` is empty, nothing waits.
        return self._flying[0][1] + self._delay_s if self._flying else math.inf

    def take_into(self, windows: Sequence[memoryview], most: int | None) -> int:
        """Fills `windows` in order with due bytes, at most `most`. Returns their number."""
        due = self._ready - self._taken
        if most is not None and most < due:
            due = most
        left = due
        for window in map(byte_view, windows):
            if not left:
                break
            size = min(len(window), left)
            position = 0
            while position < size:
                count = min(size - position, BLOCK_BYTES - self._head)
                window[position : position + count] = self._blocks[0][self._head : self._head + count]
                position += count
                self._head += count
                if self._head == BLOCK_BYTES:
                    self._head = 0
                    self._spare(self._blocks.popleft())
            left -= size
        self._taken += due - left
        if self._taken == self._entered:
            self._head = self._tail = 0
        return due - left

    def _mishap_s(self, frames: int) -> float:
        """What a portion of so many frames comes later."""
        later_s = self._jitter_s * self._luck.random()
        while frames and self._luck.random() > (1 - self._loss) ** frames:
            later_s += 2 * self._delay_s
            frames = 1  # the repeated one may be lost, too
        return later_s

    def _spare(self, block: memoryview) -> None:
        if len(self._spares) < SPARE_BLOCKS:
            self._spares.append(block)

    def _set(self, delay_s: float, rate_bytes_per_s: float | None) -> None:
        self._delay_s = delay_s
        self._rate = rate_bytes_per_s
        self._limit = self._queue_bytes
        self._portion = 0
        if rate_bytes_per_s is not None:
            self._limit += int(rate_bytes_per_s * delay_s)
            self._portion = max(1, int(rate_bytes_per_s * PORTION_S))
