"""Authorisation of web requests: bearer tokens for programs, sessions for browsers.

Takes: tokens (`Secret.web_token`), request headers. Gives: cookies; whether a request is authorised.

Rules: a session is 32 random bytes in a cookie that scripts cannot read and that browsers send only to this site and
only from it. It expires with its token, or after `SESSION_S`. Sessions are kept in memory, so a restarted JobManager
requires a token again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, final

from ...network.connection.authentication import Secret

COOKIE: Final = "netstack_session"
"""The beginning of the cookie's name. Browsers send cookies to all ports of a host, so its port follows."""

SESSION_S: Final = 12 * 3600.0
MAX_SESSIONS: Final = 256
"""Sessions of the tokens of one secret; then the oldest of these ends, so clients end no session of an operator."""


@final
class LoginSessions:
    """The sessions of one web interface.

    Args:
        keys: the secrets whose tokens are valid, the most powerful first; without any, all requests are authorised.
        is_secure: whether the page is served over TLS; restricts its cookie to TLS.
        port: of the page.
        clock: seconds since 1970.

    Attributes:
        cookie: name of the cookie.
    """

    def __init__(
        self, keys: Iterable[Secret], *, is_secure: bool, port: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self.cookie = f"{COOKIE}_{port}"
        self._keys = tuple(keys)
        self._is_secure = is_secure
        self._clock = clock
        self._ends: dict[bytes, tuple[float, int]] = {}
        """Expiry of each session, and the index of its token's key."""

    def may(self, headers: Mapping[str, str], *, only: int | None = None) -> bool:
        """Whether these headers authorise a request; `only` accepts tokens of the first `only` keys."""
        if not self._keys:
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._end_of(token, only) is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        end, number = self._ends.get(_digest(cookie.value), (0.0, 0)) if cookie is not None else (0.0, 0)
        return end > self._clock() and (only is None or number < only)

    def log_in(self, token: str) -> str | None:
        """Returns a `Set-Cookie` header for a valid token; None for any other."""
        number = next((n for n in range(len(self._keys)) if self._end_of(token, n + 1) is not None), 0)
        end = self._end_of(token)
        if end is None:
            return None
        now = self._clock()
        end = min(end, now + SESSION_S)
        session = secrets.token_urlsafe(32)
        for each in [each for each, (until, _) in self._ends.items() if until <= now]:
            del self._ends[each]
        alike = [each for each, (_, of) in self._ends.items() if of == number]
        for each in alike[: max(0, len(alike) - MAX_SESSIONS + 1)]:
            del self._ends[each]
        self._ends[_digest(session)] = end, number
        secure = "; Secure" if self._is_secure else ""
        return f"{self.cookie}={session}; Path=/; Max-Age={int(end - now)}; HttpOnly; SameSite=Strict{secure}"

    def _end_of(self, token: str, only: int | None = None) -> float | None:
        """Returns when a token expires; None if it is invalid, expired, or not of the first `only` keys."""
        ends = (key.end_of_web_token(token.strip()) for key in self._keys[:only])
        return next((end for end in ends if end is not None and end > self._clock()), None)


def _digest(session: str) -> bytes:
    """Returns a session's stored digest, whose comparison leaks nothing about the session through timing."""
    return hashlib.sha256(session.encode("utf-8", "replace")).digest()
