"""Who may stay connected: bounds in number and time on peers that have not proven themselves, and on all.

Takes: accepted streams. Gives: the same streams, proven; or closes them with the reason.

Rules:
- Who is silent keeps nobody out: when too many have not proven themselves, one gives way to the newcomer: of the source
  that has the most of them, the newcomer's if it is among those, the one that has had the longest time. So a host that
  floods us pushes out its own.
- At most `max_connections + max_unproven` streams are open at once, and of one source an eighth less than
  `max_connections`: whoever has proven itself leaves room for others too.
- Each `admit` runs in a task of its own; none waits for another.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import trio

from ..errors import AuthenticationFailed, ConfigError, Refusal
from ..transport import ByteStream
from .authentication import KNOWN_AS_VARIABLE, Secret, Token, prove_acceptor


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """A snapshot.

    Attributes:
        connections: admitted and not left yet.
        unproven: that have not proven themselves yet.
        admitted: ever.
        refused: ever, by reason; every reason is there.
    """

    connections: int
    unproven: int
    admitted: int
    refused: Mapping[Refusal, int]


@final
class Admission:
    """The door of one acceptor, or of several that share its bounds."""

    def __init__(
        self,
        secret: Secret | None,
        *,
        client_secret: Secret | None = None,
        max_connections: int = 1024,
        max_unproven: int = 64,
        timeout_s: float,
        token: Token = secrets.token_bytes,
    ) -> None:
        """Nobody is in.

        Args:
            secret: to be proven by both ends; None admits everybody for whom there is room.
            client_secret: may be proven instead, by those who only ask.
            max_connections: admitted at once.
            max_unproven: at once.
            timeout_s: for the proof.
            token: makes nonces.

        Raises:
            ConfigError: a bound below 1, a timeout that is not above 0.
        """
        for name, value in (("max_connections", max_connections), ("max_unproven", max_unproven)):
            if value < 1:
                raise ConfigError(f"{name}={value}; the minimum is 1")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s} for the proof of a secret; give a number of seconds above 0")
        self._secret = secret
        self._client_secret = client_secret
        self._max_connections = max_connections
        self._max_unproven = max_unproven
        self._timeout_s = timeout_s
        self._token = token
        given = os.environ.get(KNOWN_AS_VARIABLE, "")
        self._known_as = tuple(address.strip() for address in given.split(",") if address.strip())
        self._most_of_one = max_connections - max_connections // 8
        self._admitted_from: dict[ByteStream, str] = {}
        self._sources: Counter[str] = Counter()
        self._unproven: dict[trio.CancelScope, str] = {}  # and where from; oldest first
        self._admitted = 0
        self._refused = dict.fromkeys(Refusal, 0)

    async def admit(self, stream: ByteStream) -> bool:
        """Returns when the peer has proven itself; `left` must then be called once when its connection has ended.

        Returns:
            Whether it may be anybody; otherwise it has proven the clients' secret.

        Raises:
            AuthenticationFailed: it did not, or there is no room; the stream is closed.

        Cancellation: the stream is closed.
        """
        try:
            self._check_room(stream)
            is_anybody = True
            if self._secret is None:
                await trio.lowlevel.checkpoint()
            else:
                is_anybody = await self._prove(stream, self._secret)
            self._check_room(stream)
        except BaseException as error:
            stream.close()
            if isinstance(error, AuthenticationFailed):
                self._refused[error.reason] += 1
            raise
        source = _source(stream)
        self._admitted_from[stream] = source
        self._sources[source] += 1
        self._admitted += 1
        return is_anybody

    def left(self, stream: ByteStream) -> None:
        """The connection on a stream that was admitted has ended. Idempotent."""
        source = self._admitted_from.pop(stream, None)
        if source is None:
            return
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]

    def statistics(self) -> AdmissionStatistics:
        """A snapshot; O(1)."""
        return AdmissionStatistics(len(self._admitted_from), len(self._unproven), self._admitted, dict(self._refused))

    async def _prove(self, stream: ByteStream, secret: Secret) -> bool:
        is_anybody = False
        source = _source(stream)
        if len(self._unproven) >= self._max_unproven:
            self._make_room(source)
        scope = trio.CancelScope(deadline=trio.current_time() + self._timeout_s)
        self._unproven[scope] = source
        try:
            with scope:
                is_anybody = await prove_acceptor(
                    stream, secret, also=self._client_secret, known_as=self._known_as, token=self._token
                )
        finally:
            is_crowded_out = scope not in self._unproven
            self._unproven.pop(scope, None)
        if not scope.cancelled_caught:
            return is_anybody
        if is_crowded_out:
            raise AuthenticationFailed(
                Refusal.CROWDED_OUT,
                f"{stream.peer} did not prove the shared secret before {self._max_unproven} newer connections came",
            )
        raise AuthenticationFailed(
            Refusal.TOO_SLOW, f"{stream.peer} did not prove the shared secret within {self._timeout_s:g} s"
        )

    def _make_room(self, newcomer: str) -> None:
        """O(unproven): the oldest of the source that has the most gives way."""
        counts = Counter(self._unproven.values())
        most = max(counts.values())
        crowded = newcomer if counts[newcomer] == most else None
        for scope, source in self._unproven.items():
            if source == crowded or (crowded is None and counts[source] == most):
                del self._unproven[scope]
                scope.cancel()
                return

    def _check_room(self, stream: ByteStream) -> None:
        count = len(self._admitted_from)
        if count >= self._max_connections:
            raise AuthenticationFailed(
                Refusal.FULL, f"{stream.peer} finds {count} connections here, which is the most; try later"
            )
        source = _source(stream)
        if source and self._sources[source] >= self._most_of_one:
            raise AuthenticationFailed(
                Refusal.FULL,
                f"{stream.peer} finds {self._most_of_one} connections of its host here, and the rest of"
                f" {self._max_connections} is for others; close some, or raise max_connections",
            )


def _source(stream: ByteStream) -> str:
    """The host, or the path, that a stream comes from."""
    return stream.endpoints()[1].rpartition(":")[0]
