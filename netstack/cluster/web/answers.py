"""HTTP responses: JSON documents, the page, and the history.

Takes: documents, texts, a history. Gives: HTTP responses.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, final

import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...base.text.json_text import json_text
from .history import History

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

MAX_HISTORIES: Final = 2
"""History responses that are built concurrently; each may be a hundred megabytes of text."""

_histories: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("netstack_histories")

MOST_CHARACTERS: Final = 32 << 20
"""Maximum length of one response; a job's results may be longer and are cut for the browser."""


@final
class JsonResponse(Response):
    """A JSON response that tolerates any values from users and peers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encodes the content as JSON."""
        return json_text(content, compact=True, most_characters=MOST_CHARACTERS).encode()


@final
class EventsResponse(StreamingResponse):
    """Server-sent events; the generator is closed with the response, also when the peer has left."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


def page_response(text: str) -> Response:
    """Returns the page with a policy that forbids loading anything from elsewhere."""
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


async def history_response(request: Request, history: History) -> Response:
    """Returns the whole history; built in a thread, compressed if the client accepts gzip."""
    kept = history.kept()
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")

    def encode() -> bytes:
        text = History.text(kept).encode()
        return gzip.compress(text, 1) if is_compressed else text

    try:
        limiter = _histories.get()
    except LookupError:
        limiter = trio.CapacityLimiter(MAX_HISTORIES)
        _histories.set(limiter)
    data = await trio.to_thread.run_sync(encode, limiter=limiter)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(data, media_type="application/json", headers=headers)
