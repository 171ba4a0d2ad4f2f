"""Answers the questions of one TaskManager for blobs, one after the other, as it takes the answers.

Takes: questions. Gives: parts of blobs over its link.

Rules: a blob is read when there is room for the answer, so a TaskManager that asks and does not read has us hold one
blob and what is on its way. What cannot be read is told, and harms nobody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ..control.link import ControlLink
from ..control.messages import BlobPart, FetchBlob, blob_parts
from ..errors import ErrorCode, RemoteProtocolError
from ..shown import shown_error

MAX_FETCHES: Final = 1024
"""Questions that wait: of each blob a TaskManager asks for one part at a time."""


@final
class BlobAnswers:
    """The answers to one TaskManager: `run` it, until `stop`.

    Args:
        link: to it.
        blob: gives the bytes of a key.
    """

    def __init__(self, link: ControlLink, blob: Callable[[str], Awaitable[bytes]]) -> None:
        self._link = link
        self._blob = blob
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
            async for fetch in self._receive:
                await self._link.wait_room()
                try:
                    part = blob_parts(fetch.key, await self._blob(fetch.key), fetch.offset)
                except Exception as error:  # whatever it asked for, others go on
                    part = BlobPart(fetch.key, 0, -1, shown_error(error).encode())
                self._link.send(part)

    def stop(self) -> None:
        """Nobody reads any more. Idempotent."""
        self._scope.cancel()
