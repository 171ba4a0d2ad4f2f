"""One direction of an impaired link: delays bytes and limits their rate.

Takes: bytes, which the stream's reader stores in the lent window; the time, as an argument. Gives: the bytes that are
due.

Rules: the model is a cable behind a transmitter. Bytes wait until the transmitter is free, are transmitted in portions
of `PORTION_S` (`start = max(entered, transmitter free)`, `left = start + size / rate`), and arrive `delay` later.
Without a rate they leave when they enter. Bytes leave in order, whatever is changed meanwhile. Each byte is copied once
in (by the system call that stores it) and once out.

A frame that is lost arrives a round trip later, since TCP sends it again, and all behind it waits. With jitter a
portion arrives up to that much later.

With a `CubicWindow` the line has TCP's sender in front of it: bytes wait until the window has room for them, and then
in the transmitter's queue, of `queue_bytes`. A portion that does not fit there is lost: it arrives a round trip and the
queue's time later. Losses make the window smaller.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from netstack.base.transport import byte_view

from ._window import FRAME_BYTES, CubicWindow

BLOCK_BYTES: Final = 256 * 1024
"""The most bytes that one read stores."""

SPARE_BLOCKS: Final = 4
"""Emptied blocks kept for reuse: a running line frees about as many as it needs."""

PORTION_S: Final = 0.001
"""The time that one portion takes on the line; trio wakes tasks no more often than this."""

BURST_S: Final = 0.0005
"""The same with a window: what the kernel of a sender hands over at once."""


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
        "_unsent_bytes",
        "_until_loss",
        "_waiting",
        "_window",
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
        unsent_bytes: int | None = None,
    ) -> None:
        """Creates an empty line.

        Args:
            queue_bytes: the most bytes held, beyond those that fit on the line (rate x delay).
            delay_s: see `change`.
            rate_bytes_per_s: see `change`.
            loss: the part of all frames that is lost, 0 to 1.
            jitter_s: the most that is added to the delay of a portion, evenly distributed.
            seed: decides losses and jitter.
            unsent_bytes: gives the line a sender with TCP's window, in front of which so many bytes wait at most.
        """
        self._queue_bytes = queue_bytes
        self._unsent_bytes = unsent_bytes
        self._window = None if unsent_bytes is None else CubicWindow()
        self._loss = loss
        self._jitter_s = jitter_s
        self._luck = random.Random(seed)
        self._until_loss = self._next_loss()  # frames
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
        return self._room > 0 and not self._is_ended

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
        room = self._room
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
        waiting, flying, window = self._waiting, self._flying, self._window
        while waiting:
            end, entered_at = waiting[0]
            if window is None:
                sent_at = starts_at = max(entered_at, self._free_at)
            else:
                sent_at = window.opens_at(entered_at, now)
                starts_at = max(sent_at, self._free_at)
                end = min(end, self._sent + window.room)
            if sent_at > now:
                break
            if self._portion:
                end = min(end, self._sent + self._portion)
            if self._loss:
                end = min(end, self._sent + max(1, self._until_loss) * FRAME_BYTES)
            size = end - self._sent
            left_at, late_s = self._transmit(size, sent_at, starts_at)
            if window is not None:
                window.send(size, sent_at, left_at + 2 * self._delay_s, is_lost=late_s > 0)
            arrives_at = left_at + late_s + self._jitter_s * self._luck.random()
            flying.append((end, max(arrives_at, flying[-1][1]) if flying else arrives_at))
            self._sent = end
            if end == waiting[0][0]:
                waiting.popleft()
        delay_s = self._delay_s
        while flying and flying[0][1] + delay_s <= now:
            self._ready = flying.popleft()[0]

    def due_at(self) -> float:
        """When to look again, the earliest known time at which there is something to take: -inf is now, inf is unknown.

        If the line is full, also when TCP's window opens.
        """
        if self._ready > self._taken or self.is_over:
            return -math.inf
        # After `advance` the portion in transmission is in `_flying`: if `_flying` is empty, only the window is closed.
        due_at = self._flying[0][1] + self._delay_s if self._flying else math.inf
        if self._window is not None and self._waiting and (not self._flying or not self.takes_more):
            due_at = min(due_at, self._window.known_at)
        return due_at

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

    @property
    def _room(self) -> int:
        """How many bytes may enter."""
        if self._unsent_bytes is None:
            return self._limit - (self._entered - self._taken)
        return self._unsent_bytes - (self._entered - self._sent)

    def _transmit(self, size: int, sent_at: float, starts_at: float) -> tuple[float, float]:
        """Returns when a portion has left the transmitter, and how much later it comes because it was lost."""
        queued_s = starts_at - sent_at
        seconds = 0.0
        if self._rate is not None:
            seconds = size / self._rate
            if self._window is not None and queued_s > 0 and queued_s * self._rate + size > self._queue_bytes:
                return starts_at, 2 * self._delay_s + queued_s
        self._free_at = left_at = starts_at + seconds
        late_s = 0.0
        if self._loss:
            if not self._until_loss and size:
                self._until_loss = self._next_loss()
                late_s = queued_s
                while True:
                    late_s += 2 * self._delay_s
                    if self._luck.random() >= self._loss:  # the repeated one may be lost, too
                        break
            else:
                self._until_loss -= -(-size // FRAME_BYTES)
        return left_at, late_s

    def _next_loss(self) -> int:
        """How many frames arrive before the next one that does not."""
        return int(math.log(1 - self._luck.random()) / math.log1p(-self._loss)) if self._loss else 0

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
            if self._window is not None:
                self._portion = max(FRAME_BYTES, int(rate_bytes_per_s * BURST_S))
