"""Blobs over a control link: asked for part by part, checked when they are whole.

Takes: keys, and the parts that come. Gives: bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, final

import trio

from ..control.messages import BlobPart, FetchBlob, Message
from ..errors import ConnectionLost
from ..schedule.descriptors.blob_store import BlobError
from ..schedule.descriptors.descriptors import BlobKey
from ..shown import shown

MAX_BLOB_BYTES: Final = 1 << 28
"""More than any list of descriptors or package has: a peer must not make us take memory."""


@final
class _Pending:
    """A blob that is on its way."""

    __slots__ = ("changed", "data", "error", "total")

    def __init__(self) -> None:
        self.changed = trio.Event()
        self.data = bytearray()
        self.total = 0
        self.error = ""


@final
class BlobFetcher:
    """The blobs of one link.

    Args:
        send: to the other end, which keeps the blobs.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._pending: dict[str, _Pending] = {}
        self._lost = ""

    async def fetch(self, key: BlobKey) -> bytes:
        """A blob; nobody else may be fetching it over this link.

        Raises:
            BlobError: there is none, or it is damaged.
            ConnectionLost: the link is gone.

        Cancellation: what comes is dropped.
        """
        pending = self._pending[key] = _Pending()
        try:
            while True:
                if self._lost:
                    raise ConnectionLost(self._lost)
                before = len(pending.data)
                self._send(FetchBlob(key, before))
                await pending.changed.wait()
                pending.changed = trio.Event()
                if self._lost:
                    raise ConnectionLost(self._lost)
                if pending.error:
                    raise BlobError(f"blob {key}: {pending.error}")
                if len(pending.data) >= pending.total:
                    break
                if len(pending.data) == before:
                    raise BlobError(f"blob {key}: a part of it has no bytes")
        finally:
            del self._pending[key]
        data = bytes(pending.data)
        _check(key, data)
        return data

    def part(self, part: BlobPart) -> None:
        """Something has come; what nobody waits for is dropped."""
        pending = self._pending.get(part.key)
        if pending is None or part.offset != len(pending.data):
            return
        if part.total < 0:
            pending.error = shown(part.data.decode("utf-8", "replace")) or "it is not there"
        elif part.total > MAX_BLOB_BYTES or len(pending.data) + len(part.data) > part.total:
            pending.error = f"it has {part.total} bytes, and {MAX_BLOB_BYTES} is the most"
        else:
            pending.total = part.total
            pending.data += part.data
        pending.changed.set()

    def lost(self, why: str) -> None:
        """The link is gone."""
        self._lost = why
        for pending in self._pending.values():
            pending.changed.set()


def _check(key: BlobKey, data: bytes) -> None:
    """A key is a kind, `-`, and the SHA-1 or SHA-256 of what it names."""
    wanted = key.partition("-")[2].partition("-")[0]
    digest = hashlib.sha256(data) if len(wanted) == 64 else hashlib.sha1(data, usedforsecurity=False)
    if digest.hexdigest() != wanted:
        raise BlobError(f"blob {key} is damaged: its {len(data)} bytes have another digest")
