"""Request checks in front of the application: host name, origin, size and time limits.

Takes: requests of browsers and programs. Gives: valid requests to the application; an error response to all others.

Rules: pages of other sites cannot use a visitor's browser to reach the JobManager. Such a request either carries a
foreign host name (DNS rebinding) or a foreign origin; both are rejected. IP addresses are always accepted as host. An
exception while a request is served fails that request only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, final
from urllib.parse import urlsplit

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...base.text.json_text import json_text
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_repr
from ...network.connection.authentication import Secret

COOKIE: Final = "netstack_session"
"""The beginning of the cookie's name. Browsers send cookies to all ports of a host, so its port follows."""

SESSION_S: Final = 12 * 3600.0
MAX_SESSIONS: Final = 256
"""Sessions of the tokens of one secret; then the oldest of these ends, so clients end no session of an operator."""


@final
class LoginSessions:
    """Authorises requests of one web interface: bearer tokens for programs, sessions for browsers.

    A session is 32 random bytes in a cookie that scripts cannot read and that browsers send only to this site and only
    from it. It expires with its token, or after `SESSION_S`. Sessions are kept in memory, so a restarted JobManager
    requires a token again.

    Args:
        keys: the secrets whose tokens are valid, the most powerful first; without any, all requests are authorised.
        is_secure: whether the page is served over TLS; restricts its cookie to TLS.
        port: of the page.
        clock: seconds since 1970.
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


LOGGER: Final = logging.getLogger("netstack.web")

MAX_BODY_BYTES: Final = 64 * 1024
MAX_PATH_BYTES: Final = 2048
"""Limit of path and query together; the longest useful ones are an id and a search."""

BODY_S: Final = 10.0
"""Limit for receiving the body."""

BROKE: Final = "the JobManager failed to serve this request; its log has the error"

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_SAFE: Final = ("GET", "HEAD")


@final
class Guard:
    """An ASGI middleware that checks each request.

    Args:
        names: accepted host names, in addition to those of this host and any IP address.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        host = socket.gethostname().lower()
        self._names = {"localhost", host, host.partition(".")[0], *(name.lower() for name in names)}
        self._log = LimitedLog(LOGGER, trio.current_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        refusal = self._refusal(scope)
        if refusal is None:
            await self._pass_on(scope, receive, send)
        else:
            await _answer(send, *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_PATH_BYTES:
            return 414, f"the path and its query are longer than {MAX_PATH_BYTES} bytes"
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            return (
                421,
                f"{safe_repr(host, 80)} is not a known host name of this JobManager;"
                " start it with --web-name NAME to allow it",
            )
        if scope["method"] not in _SAFE:
            origin = headers.get(b"origin")
            if origin is not None and origin.partition("://")[2] != host:
                return 403, f"requests from pages of {safe_repr(origin, 80)} may not change anything here"
            if origin is None and headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
                return 403, "requests from pages of other sites may not change anything here"
        length = headers.get(b"content-length", "0")
        if len(length) > 19 or not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY_BYTES:
            return 413, f"the body is longer than the limit of {MAX_BODY_BYTES} bytes"
        return None

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._names
        return True

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        body = None
        with trio.move_on_after(BODY_S):
            body = await _whole_body(receive)
            if body is None:
                await _answer(send, 413, f"the body is longer than the limit of {MAX_BODY_BYTES} bytes")
                return
        if body is None:
            await _answer(send, 408, f"the body did not arrive within {BODY_S:g} s")
            return
        pending = [body]

        async def receive_body() -> Message:
            return pending.pop() if pending else await receive()

        try:
            await self._app(scope, receive_body, send_with_headers)
        except Exception as error:  # fails this request only
            what = f"request failed: {safe_repr(scope['path'], 80)}: {safe_error(error, 200)}"
            self._log.log(logging.ERROR, "broke", what)
            if not has_begun:
                await _answer(send, 500, BROKE)


async def _whole_body(receive: Receive) -> Message | None:
    """Returns the message with the whole body, or the disconnect message; None if the body is too long."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return {**message, "body": bytes(body)}


async def _answer(send: Send, status: int, text: str) -> None:
    body = json_text({"errors": [text]}, compact=True).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _hostname(host: str) -> str:
    """Returns the host name of a `Host` header without its port; empty if the header is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def json_of(body: bytes) -> Any:
    """Parses the body of a request; None if it is empty. Raises ValueError if the body is not JSON."""
    try:
        return json.loads(body) if body else None
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
