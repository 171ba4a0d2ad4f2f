"""TCP's congestion window on an emulated line: how much of a stream may be under way, as `cubic` decides it.

Takes: portions that were sent, with the times at which they are acknowledged or found to be lost. Gives: when the next
portion may be sent, and how large it may be.

Rules (RFC 9438 as Linux has it, with its end of slow start, HyStart):
- Slow start adds what was acknowledged, until one of three things is seen. A round's acknowledgements come without a
  pause for half of the shortest round trip; its shortest round trip is an eighth (4 ms at least, 16 ms at most) above
  that; a loss.
- Then the window follows the cubic function, or Reno's growth where that is larger; before the first loss a twentieth
  each round trip where both are smaller.
- It grows only where it was the limit. A loss leaves 0.7 of it, once for all that was under way.
- Timeouts, and the restart after an idle second, are not imitated.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, final

FRAME_BYTES: Final = 1448
"""Bytes of a stream in one full Ethernet frame of TCP: of so many one may be lost."""

_FIRST_FRAMES: Final = 10  # RFC 6928
_LEAST_FRAMES: Final = 2
_LEFT: Final = 717 / 1024  # of the window after a loss; Linux's 0.7
_CUBIC: Final = 0.4  # frames per cubed second
_RENO: Final = 3 * (1 - _LEFT) / (1 + _LEFT)  # frames per round trip
_LEAST_WATCHED_FRAMES: Final = 16
_LEAST_GROWN_S, _MOST_GROWN_S = 0.004, 0.016
_PAUSE_S: Final = 0.002
_BLIND: Final = 0.05


@final
class CubicWindow:
    """The window of one sender. Times are seconds of any monotonic clock; sizes are bytes of the stream."""

    __slots__ = (
        "_epoch_at",
        "_flat_after_s",
        "_last_most",
        "_least_s",
        "_limited_to",
        "_now",
        "_origin",
        "_recovered_at",
        "_reno",
        "_round_at",
        "_round_s",
        "_round_to",
        "_sent",
        "_slow_until",
        "_train_at",
        "_under_way",
        "_unknown",
        "size",
    )

    def __init__(self) -> None:
        """The window of a new connection."""
        self.size = float(_FIRST_FRAMES * FRAME_BYTES)
        """How much may be under way."""
        self._slow_until = math.inf  # slow start ends at this size
        self._sent = self._under_way = 0
        self._unknown: deque[tuple[float, float, int, bool]] = deque()  # (known at, sent at, size, whether lost)
        self._now = -math.inf  # of the last acknowledgement
        self._least_s = math.inf  # the shortest round trip
        self._limited_to = self._recovered_at = 0  # positions: sent when the window was full; at the last loss
        self._round_to = 0  # position: sent when the present round began
        self._round_s = math.inf  # its shortest round trip
        self._round_at = self._train_at = -math.inf  # its first acknowledgement; the last that came without a pause
        self._last_most = 0.0
        self._epoch_at: float | None = None  # when the present growth began; None before its first acknowledgement
        self._origin = self._flat_after_s = self._reno = 0.0

    @property
    def room(self) -> int:
        """Bytes that may be sent now; a frame may go a little beyond the window."""
        return max(FRAME_BYTES, int(self.size) - self._under_way)

    @property
    def known_at(self) -> float:
        """When the next acknowledgement comes; inf is never."""
        return self._unknown[0][0] if self._unknown else math.inf

    def opens_at(self, at: float, now: float) -> float:
        """Returns the time from `at` on at which there is room in the window; inf if that is after `now`.

        Acknowledgements until then are applied.
        """
        at = max(at, self._now)
        unknown = self._unknown
        while unknown:
            known_at = unknown[0][0]
            if known_at > at:
                if self._under_way < self.size:
                    break
                self._limited_to = self._sent
                if known_at > now:
                    return math.inf
                at = known_at
            self._learn(*unknown.popleft())
        return at

    def send(self, size: int, sent_at: float, known_at: float, *, is_lost: bool) -> None:
        """Records a portion whose acknowledgement comes at `known_at`, or if lost that of what came after it."""
        self._sent += size
        self._under_way += size
        if self._unknown:
            known_at = max(known_at, self._unknown[-1][0])
        self._unknown.append((known_at, sent_at, size, is_lost))

    def _learn(self, known_at: float, sent_at: float, size: int, is_lost: bool) -> None:
        self._now = known_at
        self._under_way -= size
        position = self._sent - self._under_way
        if is_lost:
            if position > self._recovered_at:
                self._shrink()
        elif position > self._recovered_at:
            took_s = known_at - sent_at
            self._least_s = min(self._least_s, took_s)
            if position > self._round_to:  # what was sent since its first acknowledgement is the next round
                self._round_to, self._round_s = self._sent, took_s
                self._round_at = self._train_at = known_at
            if known_at <= self._train_at + _PAUSE_S:
                self._train_at = known_at
            self._round_s = min(self._round_s, took_s)
            if position <= self._limited_to:
                self._grow(size)

    def _grow(self, size: int) -> None:
        if self.size < self._slow_until:
            self.size += size
            grown_s = min(max(self._least_s / 8, _LEAST_GROWN_S), _MOST_GROWN_S)
            is_full = self._train_at > self._round_at + self._least_s / 2 or self._round_s > self._least_s + grown_s
            if is_full and self.size >= _LEAST_WATCHED_FRAMES * FRAME_BYTES:
                self._slow_until = self.size
            return
        if self._epoch_at is None:
            self._epoch_at = self._now
            self._origin = max(self.size, self._last_most)
            self._flat_after_s = ((self._origin - self.size) / FRAME_BYTES / _CUBIC) ** (1 / 3)
            self._reno = self.size
        after_s = self._now - self._epoch_at + self._least_s - self._flat_after_s
        self._reno += _RENO * FRAME_BYTES * size / self.size
        target = max(self._origin + _CUBIC * FRAME_BYTES * after_s**3, self._reno)
        if not self._last_most:
            target = max(target, (1 + _BLIND) * self.size)
        if target > self.size:
            self.size += (min(target, 1.5 * self.size) - self.size) * size / self.size

    def _shrink(self) -> None:
        is_smaller = self.size < self._last_most  # the line is shared, or was: leave room (fast convergence)
        self._last_most = self.size * (1 + _LEFT) / 2 if is_smaller else self.size
        self.size = self._slow_until = max(_LEAST_FRAMES * FRAME_BYTES, self.size * _LEFT)
        self._epoch_at = None
        self._recovered_at = self._sent
