"""What every request passes before anybody looks at it: who is asked, from where, and how much.

Takes: requests of browsers and programs. Gives: those that may go on; an answer to all others.

Rules: a page of somebody else, whose browser reaches us, gets nowhere. It either comes under a name of its own (DNS
rebinding), which is not among ours, or says from where it comes. An IP address is no name, so it is always ours. What a
request makes us do wrong ends that request.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Iterable
from typing import Any, Final, final
from urllib.parse import urlsplit

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..json_text import json_text
from ..limited_log import LimitedLog
from ..shown import shown, shown_error

LOGGER: Final = logging.getLogger("netstack.web")

MAX_BODY_BYTES: Final = 64 * 1024
MAX_PATH_BYTES: Final = 2048
"""Of path and query; the longest that anybody needs are an id and a search."""

BODY_S: Final = 10.0
"""For all of the body."""

BROKE: Final = "this request broke here; the JobManager's log says how"

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_SAFE: Final = ("GET", "HEAD")


@final
class Guard:
    """An ASGI application around another.

    Args:
        app: the other.
        names: host names under which it is asked, beside those of this host and any IP address.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        host = socket.gethostname().lower()
        self._names = {"localhost", host, host.partition(".")[0], *(name.lower() for name in names)}
        self._log = LimitedLog(LOGGER, trio.current_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is None:
                await self._pass_on(scope, receive, send)
            else:
                await _answer(send, *refusal)
        # nothing else is spoken here: a WebSocket that nobody accepts is refused

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_PATH_BYTES:
            return 414, f"the path and its query are longer than {MAX_PATH_BYTES} bytes"
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            return 421, f"{shown(host, 80)} is no name of this JobManager; give it --web-name NAME if it is"
        if scope["method"] not in _SAFE:
            origin = headers.get(b"origin")
            if origin is not None and _place(origin) != host:
                return 403, f"a page of {shown(origin, 80)} may change nothing here"
            if origin is None and headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
                return 403, "a page of another site may change nothing here"
        length = headers.get(b"content-length", "0")
        if len(length) > 19 or not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY_BYTES:
            return 413, f"the most that is sent here is {MAX_BODY_BYTES} bytes"
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

        async def noted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        body = None
        with trio.move_on_after(BODY_S):
            body = await _whole_body(receive)
            if body is None:
                await _answer(send, 413, f"the most that is sent here is {MAX_BODY_BYTES} bytes")
                return
        if body is None:
            await _answer(send, 408, f"the body did not come within {BODY_S:g} s")
            return
        pending = [body]

        async def given() -> Message:
            return pending.pop() if pending else await receive()

        try:
            await self._app(scope, given, noted)
        except Exception as error:  # what one request makes us do ends that request
            what = f"a request broke: {shown(scope['path'], 80)}: {shown_error(error, 200)}"
            self._log.log(logging.ERROR, "broke", what)
            if not has_begun:
                await _answer(send, 500, BROKE)


async def _whole_body(receive: Receive) -> Message | None:
    """The message with the body, or the one that says that nobody listens any more; None: it is too long."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return {**message, "body": body}


async def _answer(send: Send, status: int, text: str) -> None:
    body = json_text({"errors": [text]}, compact=True).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _hostname(host: str) -> str:
    """Of a `Host` header, without its port; empty if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """Host and port of an `Origin` header."""
    return origin.partition("://")[2]


def json_of(body: bytes) -> Any:
    """The value of a body; None of an empty one.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(body) if body else None
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
