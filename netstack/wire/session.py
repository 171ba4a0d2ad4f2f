"""A session: one connection's bytes counted in both directions, so that they outlive the stream that carries them.

Takes: what a stream took and what it brought, positions the peer tells. Gives: what to send again on another stream,
and when to tell the peer how far we are.

Positions count the bytes of one direction from the first of its hello on; those of later streams that only say which
session they carry are not counted. What was sent is kept until the peer has acknowledged it, so a cut loses
nothing; what the peer has is never sent again, so it repeats nothing. All channels, their sequence numbers, credits,
events and half frames are made of these bytes, so nothing else has to be brought into line.

Rules:
- Kept memory is bounded: with `WINDOW_BYTES` kept nothing more is sent. The peer tells its position every
  `ANNOUNCE_EVERY_BYTES` it receives, whether or not anybody reads its channels, so that never waits for a consumer.
- The copy is kept, never the buffer: segments go home as they do without sessions.
- A position the peer cannot have is its mistake: more than was sent, or, where it goes on, less than before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from ..errors import ErrorCode, RemoteProtocolError

SESSION_BYTES: Final = 16
"""Of an id: nobody guesses one."""

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Kept at most, and a write more: 4 GB/s over a round trip of a millisecond."""

ANNOUNCE_EVERY_BYTES: Final = 256 * 1024
ANNOUNCE_EVERY_CONTROL_BYTES: Final = 16 * 1024
"""Of a direction that brings data, and of one that brings credit."""

PIGGYBACK_BYTES: Final = 2 * 1024
"""After so many bytes the position goes along with whatever is sent anyway."""

MERGED_BYTES: Final = 16 * 1024
"""Small writes are kept together, up to this."""


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """A snapshot of what a session cost.

    Attributes:
        cuts: streams that broke under it.
        resumed: how often it went on with another one.
        resent_bytes: sent again after a cut.
        suspended_s: seconds without a stream, without those of a cut that still lasts.
        kept_bytes: sent, and not known to have arrived.
    """

    cuts: int
    resumed: int
    resent_bytes: int
    suspended_s: float
    kept_bytes: int


@final
class SentBytes:
    """What was sent and may have to be sent again, in order."""

    def __init__(self) -> None:
        self.sent = 0
        """Position behind the last byte a stream took."""
        self.acknowledged = 0
        """Position up to which the peer has everything."""
        self._kept: deque[bytes | bytearray] = deque()
        self._first = 0  # position of the first byte kept: somewhere before `acknowledged`

    @property
    def kept_bytes(self) -> int:
        """Sent, and not known to have arrived."""
        return self.sent - self.acknowledged

    def keep(self, pieces: Sequence[bytes | bytearray | memoryview], count: int) -> None:
        """A stream took the first `count` bytes of `pieces`."""
        self.sent += count
        whole = b"".join(pieces)
        if len(whole) != count:
            whole = whole[:count]
        kept = self._kept
        if count < MERGED_BYTES:
            if kept and isinstance(last := kept[-1], bytearray) and len(last) < MERGED_BYTES:
                last += whole
                return
            kept.append(bytearray(whole))
            return
        kept.append(whole)

    def acknowledge(self, position: int) -> None:
        """The peer has everything up to `position`. One from before a cut may come behind it, and changes nothing.

        Raises:
            RemoteProtocolError: more than was sent.
        """
        if position > self.sent:
            raise self.impossible(position)
        if position <= self.acknowledged:
            return
        self.acknowledged = position
        kept = self._kept
        first = self._first
        while kept and first + len(kept[0]) <= position:
            first += len(kept.popleft())
        self._first = first

    def impossible(self, position: int) -> RemoteProtocolError:
        """The peer cannot be there."""
        return RemoteProtocolError(
            ErrorCode.UNEXPECTED_FRAME,
            f"position {position} was announced; {self.sent} bytes were sent, of which the peer had {self.acknowledged}"
            " before",
        )

    def rest(self) -> deque[memoryview]:
        """A copy of what the peer has not got, in pieces: to be sent again."""
        skip = self.acknowledged - self._first
        rest: deque[memoryview] = deque()
        for chunk in self._kept:
            rest.append(memoryview(bytes(chunk))[skip:])
            skip = 0
        return rest

    def forget(self) -> None:
        """Nothing will ever be sent again."""
        self._kept.clear()
        self.acknowledged = self._first = self.sent


@final
class Session:
    """Both directions of one connection. See the module."""

    def __init__(self, *, offer: bytes | None, grace_s: float) -> None:
        """Begins with the first byte of the first stream; whether it will be used the hellos decide.

        Args:
            offer: the id the producing side gives it; None at the consumer, which receives it.
            grace_s: how long this side waits for another stream.
        """
        self.id = offer
        self.is_offered = offer is not None
        """Whether this side gave the id: then the other one dials."""
        self.grace_s = grace_s
        self.is_used = False
        """Whether both sides know it: a cut no longer ends the connection."""
        self.is_declined = False
        """Whether the peer knows no sessions: nothing is kept any more."""
        self.is_ending = False
        """Whether the peer has said goodbye: the end of its stream is no cut."""
        self.attempt = 0
        """Number of the last attempt to go on; each has a higher one, so one that was delayed does no harm."""
        self.cuts = 0
        self.resumed = 0
        self.resent_bytes = 0
        self.suspended_s = 0.0
        self.sent = SentBytes()
        self.received = 0
        """Bytes taken from streams."""
        self.on_room: Callable[[], object] | None = None
        """Called when the peer has acknowledged something while `WINDOW_BYTES` were kept."""
        self._announced = 0
        self._announce_every = ANNOUNCE_EVERY_CONTROL_BYTES if self.is_offered else ANNOUNCE_EVERY_BYTES

    def begin(self, session: bytes, peer_grace_s: float) -> None:
        """The consumer receives the id; from now on a cut does not end the connection."""
        self.id = session
        self.grace_s = min(self.grace_s, peer_grace_s)
        self.is_used = True

    def decline(self) -> None:
        """The hellos do not agree on sessions: a cut ends the connection."""
        self.is_declined = True
        self.sent.forget()

    def acknowledge(self, position: int) -> None:
        """The peer has everything up to `position`; raises what `SentBytes.acknowledge` does."""
        was_full = self.sent.kept_bytes >= WINDOW_BYTES
        self.sent.acknowledge(position)
        if was_full and self.on_room is not None:
            self.on_room()

    @property
    def must_announce(self) -> bool:
        """Whether our position must be announced to the peer now."""
        return self.received - self._announced >= self._announce_every

    def position_to_announce(self, *, is_writing: bool) -> int | None:
        """Our position if it should be announced; earlier when something is written anyway."""
        news = self.received - self._announced
        if not self.is_used or news < (PIGGYBACK_BYTES if is_writing else self._announce_every):
            return None
        self._announced = self.received
        return self.received

    def announce(self) -> int:
        """Our position, which the peer gets with a new stream."""
        self._announced = self.received
        return self.received

    def check_position(self, position: int) -> None:
        """Raises RemoteProtocolError: the peer cannot go on there, it has less than before or more than all."""
        if not self.sent.acknowledged <= position <= self.sent.sent:
            raise self.sent.impossible(position)

    def go_on(self, position: int) -> deque[memoryview]:
        """Another stream carries the session; the peer has everything up to `position`. Returns what to send first.

        Raises:
            RemoteProtocolError: it cannot be there.
        """
        self.check_position(position)
        self.sent.acknowledge(position)
        rest = self.sent.rest()
        self.resumed += 1
        self.resent_bytes += self.sent.kept_bytes
        return rest

    def statistics(self) -> SessionStatistics:
        """A snapshot; O(1)."""
        return SessionStatistics(
            cuts=self.cuts,
            resumed=self.resumed,
            resent_bytes=self.resent_bytes,
            suspended_s=self.suspended_s,
            kept_bytes=self.sent.kept_bytes,
        )
