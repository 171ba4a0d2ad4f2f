"""Who may look: bearer tokens of programs, and sessions of browsers, got once for a token.

Takes: tokens (`Secret.web_token`), headers of requests. Gives: cookies; whether a request may go on.

Rules: a session is 32 random bytes that scripts of the page cannot read, and that browsers send to nobody else and from
no other site. It ends with the token that it was got for, or after `SESSION_S`. Sessions are kept in memory: a
JobManager that starts anew asks for a token again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, final

from ..runtime.authentication import Secret

COOKIE: Final = "netstack_session"
SESSION_S: Final = 12 * 3600.0
MAX_SESSIONS: Final = 256
"""The oldest goes."""


@final
class Sessions:
    """All of one page.

    Args:
        keys: the secrets whose tokens are good, the most powerful first; none lets everybody look.
        is_secure: whether the page is served over TLS, so that its cookie goes no other way.
        clock: seconds since 1970.
    """

    def __init__(self, keys: Iterable[Secret], *, is_secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._keys = tuple(keys)
        self._is_secure = is_secure
        self._clock = clock
        self._ends: dict[bytes, tuple[float, int]] = {}
        """When sessions end, and which key their tokens were made with."""

    def may(self, headers: Mapping[str, str], *, only: int | None = None) -> bool:
        """Whether a request with these headers may go on; with `only` for who has a token of one of the first keys."""
        if not self._keys:
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._end_of(token, only) is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        end, number = self._ends.get(_digest(cookie.value), (0.0, 0)) if cookie is not None else (0.0, 0)
        return end > self._clock() and (only is None or number < only)

    def log_in(self, token: str) -> str | None:
        """A `Set-Cookie` header for a good token; None for any other."""
        number = next((n for n in range(len(self._keys)) if self._end_of(token, n + 1) is not None), 0)
        end = self._end_of(token)
        if end is None:
            return None
        now = self._clock()
        end = min(end, now + SESSION_S)
        session = secrets.token_urlsafe(32)
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        self._ends[_digest(session)] = end, number
        secure = "; Secure" if self._is_secure else ""
        return f"{COOKIE}={session}; Path=/; Max-Age={int(end - now)}; HttpOnly; SameSite=Strict{secure}"

    def _end_of(self, token: str, only: int | None = None) -> float | None:
        """When a token ends; None: it is none, or has ended; or is of none of the first `only` keys."""
        ends = (key.end_of_web_token(token.strip()) for key in self._keys[:only])
        return next((end for end in ends if end is not None and end > self._clock()), None)


def _digest(session: str) -> bytes:
    """What is kept: comparing it tells nothing about a session by the time it takes."""
    return hashlib.sha256(session.encode("utf-8", "replace")).digest()
