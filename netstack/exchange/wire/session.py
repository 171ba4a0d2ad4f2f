"""Session: counts one connection's bytes in both directions, so that the connection survives the loss of its stream.

Takes: bytes that a stream sent and received, positions from the peer. Gives: the bytes to send again on another stream,
and when to announce our position.

Positions count the bytes of one direction from the first byte of its hello. The greeting of later streams is not
counted. Sent bytes are kept until the peer has acknowledged them, so a cut loses nothing; acknowledged bytes are never
sent again, so nothing is repeated. All channels, sequence numbers, credits, events and partial frames are made of these
bytes, so nothing else needs to be synchronised.

Rules:
- Kept memory is bounded: while `WINDOW_BYTES` are kept, nothing is sent. The peer announces its position every
  `ANNOUNCE_EVERY_BYTES` received bytes, whether or not its channels are read, so this never waits for a consumer.
- Sessions keep copies, not buffers: segments return to their pool as without sessions.
- An impossible position is a protocol violation of the peer: more than was sent, or, when resuming, less than before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from ...base.errors import ErrorCode, RemoteProtocolError

SESSION_BYTES: Final = 16
"""Length of an id, which cannot be guessed."""

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Maximum of kept bytes, plus one write: enough for 4 GB/s at a round trip of a millisecond."""

ANNOUNCE_EVERY_BYTES: Final = 256 * 1024
ANNOUNCE_EVERY_CONTROL_BYTES: Final = 16 * 1024
"""For a direction that carries data, and for one that carries credit."""

PIGGYBACK_BYTES: Final = 2 * 1024
"""After this many bytes the position is added to the next write."""

MERGED_BYTES: Final = 16 * 1024
"""Small writes are kept in one piece, up to this size."""


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """A snapshot of the cost of a session.

    Attributes:
        cuts: streams that broke.
        resumed: number of streams that replaced a broken one.
        resent_bytes: bytes sent again after a cut.
        suspended_s: seconds without a stream, except those of a present cut.
        kept_bytes: bytes sent and not acknowledged.
    """

    cuts: int
    resumed: int
    resent_bytes: int
    suspended_s: float
    kept_bytes: int


@final
class SentBytes:
    """The sent bytes that may have to be sent again, in order."""

    def __init__(self) -> None:
        self.sent = 0
        """Position behind the last sent byte."""
        self.acknowledged = 0
        """Position up to which the peer has acknowledged."""
        self._kept: deque[bytes | bytearray] = deque()
        self._first = 0  # position of the first kept byte, not above `acknowledged`

    @property
    def kept_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.sent - self.acknowledged

    def keep(self, pieces: Sequence[bytes | bytearray | memoryview], count: int) -> None:
        """Keeps the first `count` bytes of `pieces`, which a stream has taken."""
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
        """Drops bytes up to `position`, which the peer has received. A late, smaller position changes nothing.

        Raises:
            RemoteProtocolError: `position` is more than was sent.
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
        """The error of an impossible position."""
        return RemoteProtocolError(
            ErrorCode.UNEXPECTED_FRAME,
            f"the peer announced position {position}, but {self.sent} bytes were sent, of which it had acknowledged"
            f" {self.acknowledged}",
        )

    def rest(self) -> deque[memoryview]:
        """Copies the unacknowledged bytes, in pieces, to send them again."""
        skip = self.acknowledged - self._first
        rest: deque[memoryview] = deque()
        for chunk in self._kept:
            rest.append(memoryview(bytes(chunk))[skip:])
            skip = 0
        return rest

    def forget(self) -> None:
        """Drops all kept bytes."""
        self._kept.clear()
        self.acknowledged = self._first = self.sent


@final
class Session:
    """The session of one connection, in both directions."""

    def __init__(self, *, offer: bytes | None, grace_s: float) -> None:
        """Begins with the first byte of the first stream; the hellos decide whether it is used.

        Args:
            offer: its id at the producer, which chooses it; None at the consumer, which receives it.
            grace_s: how long this side waits for another stream.
        """
        self.id = offer
        self.is_offered = offer is not None
        """Whether this side chose the id: the other side then dials."""
        self.grace_s = grace_s
        self.is_used = False
        """Whether both sides use it: a cut then does not end the connection."""
        self.is_declined = False
        """Whether the peer does not support sessions: nothing is kept."""
        self.is_ending = False
        """Whether the peer has sent its goodbye: the end of its stream is then not a cut."""
        self.attempt = 0
        """Number of the last attempt to resume; each has a higher one, so a delayed attempt does no harm."""
        self.cuts = 0
        self.resumed = 0
        self.resent_bytes = 0
        self.suspended_s = 0.0
        self.sent = SentBytes()
        self.received = 0
        """Received bytes."""
        self.on_room: Callable[[], object] | None = None
        """Called when an acknowledgement makes room below `WINDOW_BYTES`."""
        self._announced = 0
        self._announce_every = ANNOUNCE_EVERY_CONTROL_BYTES if self.is_offered else ANNOUNCE_EVERY_BYTES

    def begin(self, session: bytes, peer_grace_s: float) -> None:
        """Stores the id at the consumer; from now on a cut does not end the connection."""
        self.id = session
        self.grace_s = min(self.grace_s, peer_grace_s)
        self.is_used = True

    def decline(self) -> None:
        """Ends the session: the hellos did not agree on sessions, so a cut ends the connection."""
        self.is_declined = True
        self.sent.forget()

    def acknowledge(self, position: int) -> None:
        """Drops kept bytes up to `position`; raises as `SentBytes.acknowledge`."""
        was_full = self.sent.kept_bytes >= WINDOW_BYTES
        self.sent.acknowledge(position)
        if was_full and self.on_room is not None:
            self.on_room()

    @property
    def must_announce(self) -> bool:
        """Whether our position must be announced now."""
        return self.received - self._announced >= self._announce_every

    def position_to_announce(self, *, is_writing: bool) -> int | None:
        """Our position if it should be announced; earlier if other frames are written anyway."""
        news = self.received - self._announced
        if not self.is_used or news < (PIGGYBACK_BYTES if is_writing else self._announce_every):
            return None
        self._announced = self.received
        return self.received

    def announce(self) -> int:
        """Our position, to be announced on a new stream."""
        self._announced = self.received
        return self.received

    def check_position(self, position: int) -> None:
        """Raises RemoteProtocolError if the peer cannot resume at `position`: less than before, or more than sent."""
        if not self.sent.acknowledged <= position <= self.sent.sent:
            raise self.sent.impossible(position)

    def go_on(self, position: int) -> deque[memoryview]:
        """Resumes on another stream, where the peer has everything up to `position`. Returns the bytes to send first.

        Raises:
            RemoteProtocolError: an impossible position.
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
