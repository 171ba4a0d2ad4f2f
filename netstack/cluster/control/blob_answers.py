"""Serves the blob requests of one peer, several at a time, no faster than the peer reads the answers.

Takes: `FetchBlob` requests. Gives: `BlobPart` messages over the peer's link.

Rules: each part is sent only when the link has room, so a peer that requests and does not read costs at most `AT_ONCE`
parts of memory plus the unsent bytes of the link. A read error becomes the answer to that request and affects no other.
An answer that waits for another TaskManager does not delay the next ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ...base.errors import ErrorCode, RemoteProtocolError
from ...base.text.safe_text import safe_error, safe_repr
from .link import MessageLink
from .messages import BlobPart
from .reports import FetchBlob

MAX_FETCHES: Final = 1024
"""Requests that may wait; a peer requests one part of a blob at a time."""

MAX_PLACES: Final = 64
"""Places at which reading a blob failed, in one request; a peer names the last ones."""

MAX_CHARACTERS: Final = 16384
"""Characters of one request."""

AT_ONCE: Final = 8
"""Requests that are served concurrently."""


@final
class BlobAnswers:
    """The blob requests of one TaskManager; `run` serves them until `stop` or cancellation.

    Args:
        answer: returns the requested part.
    """

    def __init__(self, link: MessageLink, answer: Callable[[FetchBlob], Awaitable[BlobPart]]) -> None:
        self._link = link
        self._answer = answer
        self._turn = trio.Lock()
        self._free = trio.Semaphore(AT_ONCE)
        self._send, self._receive = trio.open_memory_channel[FetchBlob](MAX_FETCHES)
        self._scope = trio.CancelScope()

    def enqueue(self, fetch: FetchBlob) -> None:
        """Queues a request. Raises RemoteProtocolError if it is long, or `MAX_FETCHES` requests wait already."""
        characters = len(fetch.key) + sum(map(len, fetch.failed))
        if len(fetch.failed) > MAX_PLACES or characters > MAX_CHARACTERS:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{self._link.peer} requests blob {safe_repr(fetch.key, 40)} with {len(fetch.failed)} failed places and"
                f" {characters} characters; the limits are {MAX_PLACES} and {MAX_CHARACTERS}",
            )
        try:
            self._send.send_nowait(fetch)
        except trio.WouldBlock:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{self._link.peer} requests blobs and does not read the answers: {MAX_FETCHES} requests are queued",
            ) from None

    async def run(self) -> None:
        """Serves requests until `stop`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._free.acquire()
                    nursery.start_soon(self._serve, await self._receive.receive())

    async def _serve(self, fetch: FetchBlob) -> None:
        try:
            part = await self._answer(fetch)
        except Exception as error:  # fails this request only
            part = BlobPart(fetch.key, 0, -1, safe_error(error).encode())
        async with self._turn:
            await self._link.wait_room()
            self._link.send(part)
        self._free.release()

    def stop(self) -> None:
        """Ends `run`, because the peer no longer reads. Idempotent."""
        self._scope.cancel()
