"""Admission of accepted connections: bounds the number of unproven and of all peers, and the time for the proof.

Takes: accepted streams. Gives: the same streams, proven; or closes them with a reason.

Rules:
- Silent peers do not block others: if too many peers are unproven, the oldest one of the source with the most unproven
  peers is closed (of the newcomer's source, if that is among them). So a host that floods us displaces its own
  connections.
- At most `max_connections + max_unproven` streams are open at once, and at most 7/8 of `max_connections` from one
  source: a proven peer leaves room for others too.
- Each `admit` runs in its own task; none waits for another.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import trio

from ...base.errors import AuthenticationFailed, ConfigError, Refusal
from ...base.transport import ByteStream
from .authentication import KNOWN_AS_VARIABLE, Secret, prove_acceptor


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """A snapshot.

    Attributes:
        connections: currently admitted.
        unproven: currently unproven.
        admitted: admitted so far.
        refused: refused so far, by reason; every reason is present.
    """

    connections: int
    unproven: int
    admitted: int
    refused: Mapping[Refusal, int]


@final
class Admission:
    """Admits the connections of one acceptor, or of several that share the bounds."""

    def __init__(
        self,
        secret: Secret | None,
        *,
        client_secret: Secret | None = None,
        max_connections: int = 1024,
        max_unproven: int = 64,
        timeout_s: float,
    ) -> None:
        """Starts without connections.

        Args:
            secret: both ends must prove it; None admits every peer while there is room.
            client_secret: clients may prove this one instead.
            max_connections: the most admitted connections at once.
            max_unproven: the most unproven peers at once.
            timeout_s: the time for the proof.

        Raises:
            ConfigError: a bound is below 1, or the timeout is not above 0.
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
        given = os.environ.get(KNOWN_AS_VARIABLE, "")
        self._known_as = tuple(address.strip() for address in given.split(",") if address.strip())
        self._most_of_one = max_connections - max_connections // 8
        self._admitted_from: dict[ByteStream, str] = {}
        self._sources: Counter[str] = Counter()
        self._unproven: dict[trio.CancelScope, str] = {}  # with the source; oldest first
        self._admitted = 0
        self._refused = dict.fromkeys(Refusal, 0)

    async def admit(self, stream: ByteStream) -> bool:
        """Returns after the peer has proven the secret; call `left` once when its connection has ended.

        Returns:
            Whether the peer may have any role; otherwise it has proven the clients' secret.

        Raises:
            AuthenticationFailed: the proof failed, or there is no room; the stream is closed.

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
        """Ends the connection of an admitted stream. Idempotent."""
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
                is_anybody = await prove_acceptor(stream, secret, also=self._client_secret, known_as=self._known_as)
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
        """Closes the oldest unproven peer of the source that has the most; O(unproven)."""
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
                Refusal.FULL,
                f"{stream.peer} was refused: {count} connections are open, which is max_connections; try later",
            )
        source = _source(stream)
        if source and self._sources[source] >= self._most_of_one:
            raise AuthenticationFailed(
                Refusal.FULL,
                f"{stream.peer} was refused: its host has {self._most_of_one} connections, and the rest of"
                f" max_connections={self._max_connections} is reserved; close some, or raise max_connections",
            )


def _source(stream: ByteStream) -> str:
    return stream.endpoints()[1].rpartition(":")[0]
