"""One direction of an impaired link: bytes enter as they come and leave when the line has brought them.

Takes: bytes, stored by the reader of the stream into the window this lends; the time, as an argument. Gives: the bytes
that are due by then.

Rules: the model is that of a cable behind a transmitter. Bytes that enter wait until the line is free, are transmitted
in portions of `PORTION_S` of the line (`start = max(entered, line free)`, `left = start + size / rate`), and arrive
`delay` after they left it. Without a rate they leave as they enter. They leave this store from its head only: whatever
is changed meanwhile, order stays. Each byte is copied once in (by the system call that stores it) and once out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, final

BLOCK_BYTES: Final = 256 * 1024
"""What one read stores at most."""

SPARE_BLOCKS: Final = 4
"""Emptied blocks kept for the next bytes: a running line frees about as many as it takes."""

PORTION_S: Final = 0.001
"""A slow line would else have to be looked at for every byte: trio wakes nobody more often than this."""


@final
class Line:
    """A line that delays and limits. All byte counts are positions since the beginning of the stream."""

    __slots__ = (
        "_blocks",
        "_delay_s",
        "_entered",
        "_flying",
        "_free_at",
        "_head",
        "_is_ended",
        "_limit",
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

    def __init__(self, queue_bytes: int, delay_s: float, rate_bytes_per_s: float | None) -> None:
        """An empty line; see `change` for the arguments.

        Args:
            queue_bytes: held at most, beyond what fits on the line (rate x delay).
            delay_s: see `change`.
            rate_bytes_per_s: see `change`.
        """
        self._queue_bytes = queue_bytes
        self._entered = self._sent = self._ready = self._taken = 0
        self._free_at = -math.inf
        self._is_ended = False
        self._waiting: deque[tuple[int, float]] = deque()  # (position after, when it entered), not transmitted yet
        self._flying: deque[tuple[int, float]] = deque()  # (position after, when it left the transmitter)
        self._blocks: deque[memoryview] = deque()
        self._spares: list[memoryview] = []
        self._head = self._tail = 0  # in the first block: where to take; in the last one: where to store
        self._set(delay_s, rate_bytes_per_s)

    @property
    def held_bytes(self) -> int:
        """What entered and was not taken yet."""
        return self._entered - self._taken

    @property
    def is_over(self) -> bool:
        """Whether the end has arrived, and everything before it was taken."""
        return self._is_ended and self._taken == self._entered and not self._waiting and not self._flying

    @property
    def takes_more(self) -> bool:
        """Whether `window` has room."""
        return self._entered - self._taken < self._limit and not self._is_ended

    def change(self, delay_s: float, rate_bytes_per_s: float | None, now: float) -> None:
        """Another line from `now` on; order stays.

        Args:
            delay_s: holds for everything that has not arrived yet.
            rate_bytes_per_s: holds for everything that has not begun to leave yet; None is without a bound.
            now: in seconds, of the clock of `enter` and `advance`.
        """
        self.advance(now)
        self._set(delay_s, rate_bytes_per_s)

    def window(self) -> memoryview | None:
        """Where the next bytes may be stored, at most one block; None when the line is full or at its end."""
        room = self._limit - (self._entered - self._taken)
        if room <= 0 or self._is_ended:
            return None
        if not self._blocks or self._tail == BLOCK_BYTES:
            self._blocks.append(self._spares.pop() if self._spares else memoryview(bytearray(BLOCK_BYTES)))
            self._tail = 0
        return self._blocks[-1][self._tail : self._tail + room]

    def enter(self, count: int, now: float) -> None:
        """The first `count` bytes of the last `window` were stored."""
        self._tail += count
        self._entered += count
        self._waiting.append((self._entered, now))

    def end(self, now: float) -> None:
        """Nothing more enters; the end travels behind the last byte."""
        self._is_ended = True
        self._waiting.append((self._entered, now))

    def advance(self, now: float) -> None:
        """Lets the time be `now`: what is due by then can be taken."""
        waiting, flying = self._waiting, self._flying
        while waiting:
            end, entered_at = waiting[0]
            left_at = max(entered_at, self._free_at)
            if left_at > now:
                break
            if self._rate is not None:
                end = min(end, self._sent + self._portion)
                left_at += (end - self._sent) / self._rate
            self._sent = end
            self._free_at = left_at
            flying.append((end, left_at))
            if end == waiting[0][0]:
                waiting.popleft()
        delay_s = self._delay_s
        while flying and flying[0][1] + delay_s <= now:
            self._ready = flying.popleft()[0]

    def due_at(self) -> float:
        """When there is something to take, as far as is known: -inf is now, inf is never."""
        if self._ready > self._taken or self.is_over:
            return -math.inf
        # After `advance` the portion that occupies the line is flying: nothing waits while nothing flies.
        return self._flying[0][1] + self._delay_s if self._flying else math.inf

    def take_into(self, windows: Sequence[memoryview], most: int | None) -> int:
        """Fills `windows` in order with what is due, with at most `most` bytes. Returns how many."""
        due = self._ready - self._taken
        if most is not None and most < due:
            due = most
        left = due
        for window in windows:
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
