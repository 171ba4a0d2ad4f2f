"""Answers over HTTP: documents of any values; the page itself and the history, which a replayed page shares.

Takes: documents, texts, a history. Gives: HTTP responses.
"""

from __future__ import annotations

import gzip
from functools import partial
from typing import Any, Final, final

import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ..json_text import json_text
from .history import History

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

MAX_HISTORIES: Final = 2
"""Answers with all that is kept that are made at a time: each may be a hundred megabytes of text."""

_histories: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("netstack_histories")


MOST_CHARACTERS: Final = 32 << 20
"""Of one answer; results of a job are as long as its user likes, and a browser need not have all of them."""


@final
class JsonResponse(Response):
    """A document, with whatever users and peers put into it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encodes the content as JSON."""
        return json_text(content, compact=True, most_characters=MOST_CHARACTERS).encode()


def page_response(text: str) -> Response:
    """The page, which may load nothing from elsewhere."""
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


async def history_response(request: Request, history: History) -> Response:
    """Everything that is kept, compressed for those who take that; made in a thread."""
    kept = history.kept()
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")

    def made() -> bytes:
        text = History.text(kept).encode()
        return gzip.compress(text, 1) if is_compressed else text

    try:
        limiter = _histories.get()
    except LookupError:
        limiter = trio.CapacityLimiter(MAX_HISTORIES)
        _histories.set(limiter)
    data = await trio.to_thread.run_sync(partial(made), limiter=limiter)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(data, media_type="application/json", headers=headers)
