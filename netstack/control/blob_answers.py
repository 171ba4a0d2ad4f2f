"""Answers the questions of one peer for blobs, a few at a time, as it takes the answers.

Takes: questions. Gives: parts of blobs over its link.

Rules: parts are sent one after the other when there is room, so for a peer that asks and does not read this holds
`AT_ONCE` of them and what is on its way. An error while reading is sent as the answer, and harms no other. Some answers
wait for other TaskManagers, and the next ones do not wait for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ..errors import ErrorCode, RemoteProtocolError
from ..shown import shown_error
from .link import MessageLink
from .messages import BlobPart
from .reports import FetchBlob

MAX_FETCHES: Final = 1024
"""Questions that wait: of each blob one part is asked for at a time."""


AT_ONCE: Final = 8


@final
class BlobAnswers:
    """The answers to one peer, a TaskManager: `run` it, until `stop` or cancelled.

    Args:
        link: to it.
        answer: gives a part.
    """

    def __init__(self, link: MessageLink, answer: Callable[[FetchBlob], Awaitable[BlobPart]]) -> None:
        self._link = link
        self._answer = answer
        self._turn = trio.Lock()
        self._send, self._receive = trio.open_memory_channel[FetchBlob](MAX_FETCHES)
        self._scope = trio.CancelScope()

    def want(self, fetch: FetchBlob) -> None:
        """It asks for a part.

        Raises:
            RemoteProtocolError: `MAX_FETCHES` questions wait already.
        """
        try:
            self._send.send_nowait(fetch)
        except trio.WouldBlock:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{self._link.peer} asks for blobs and does not read: {MAX_FETCHES} questions wait",
            ) from None

    async def run(self) -> None:
        """Answers until `stop`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(self._work)

    async def _work(self) -> None:
        async for fetch in self._receive:
            try:
                part = await self._answer(fetch)
            except Exception as error:  # whatever it asked for, others go on
                part = BlobPart(fetch.key, 0, -1, shown_error(error).encode())
            async with self._turn:
                await self._link.wait_room()
                self._link.send(part)

    def stop(self) -> None:
        """Nobody reads any more. Idempotent."""
        self._scope.cancel()
