"""Fetches blobs over a control link, or from the place that the other end names.

Takes: keys and received parts; places from the JobManager: a path in a shared folder, or another TaskManager. Gives:
complete, checked blobs.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ...base.causes import root_cause
from ...base.errors import ConnectionLost, NetstackError
from ...base.text.safe_text import safe_error, safe_repr
from ...network.connection.authentication import Secret, prove_dialler
from ...network.waiting.threads import in_thread
from ...schedule.descriptors.blob_store import BlobError
from ..control.blob_answers import MAX_PLACES
from ..control.codec import Message
from ..control.link import CLIENT, ControlLink, dial
from ..control.messages import SLICE_BYTES, BlobPart
from ..control.reports import BlobKept, FetchBlob
from .blob_reader import KeptBlob

LOGGER: Final = logging.getLogger("netstack.taskmanager")

MAX_BLOB_BYTES: Final = 1 << 28
"""Limit of a blob, larger than any list of descriptors or package; bounds what a peer can make us store."""

ReadPlace: TypeAlias = Callable[[str, KeptBlob], Awaitable[None]]
"""Fills an empty blob from a named place; raises `NetstackError`."""


@final
class _Pending:
    __slots__ = ("changed", "offset", "part")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.changed = trio.Event()
        self.part: BlobPart | None = None


@final
class BlobFetcher:
    """Fetches blobs over one link.

    Args:
        send: sends messages to the other end.
        read_place: reads a blob from a place that the other end names; None: places are rejected.
    """

    def __init__(self, send: Callable[[Message], None], read_place: ReadPlace | None = None) -> None:
        self._send = send
        self._read_place = read_place
        self._pending: dict[str, _Pending] = {}
        self._lost = ""

    async def fetch(self, blob: KeptBlob) -> None:
        """Fills an empty blob; only one task at a time may fetch it over this link.

        Raises:
            BlobError: the blob does not exist or is damaged.
            ConnectionLost: the link is lost.

        Cancellation: later parts are dropped.
        """
        failed: tuple[str, ...] = ()
        is_kept = was_sent_elsewhere = False
        try:
            while place := await self._ask(blob, failed):
                was_sent_elsewhere = True
                if self._read_place is None:
                    raise BlobError(f"blob {blob.key}: reading it from {safe_repr(place)} is not allowed here")
                try:
                    await self._read_place(place, blob)
                    blob.check()
                    break
                except NetstackError as error:
                    LOGGER.info("%s at %s: %s", blob.key, safe_repr(place), safe_error(error))
                    failed = (*failed, place)
                    blob.clear()
            blob.check()
            is_kept = True
        finally:
            if was_sent_elsewhere or blob.size_bytes >= SLICE_BYTES:
                self._send(BlobKept(blob.key, is_kept))

    async def _ask(self, blob: KeptBlob, failed: tuple[str, ...]) -> str:
        """Requests all parts; returns a place if the other end names one, else empty."""
        while True:
            if self._lost:
                raise ConnectionLost(self._lost)
            before = blob.size_bytes
            pending = self._pending[blob.key] = _Pending(before)
            try:
                self._send(FetchBlob(blob.key, before, failed[-MAX_PLACES:]))
                await pending.changed.wait()
            finally:
                del self._pending[blob.key]
            part = pending.part
            if part is None:
                raise ConnectionLost(self._lost)
            if part.total < 0:
                raise BlobError(
                    f"blob {blob.key}: {safe_repr(part.data.decode('utf-8', 'replace')) or 'it does not exist'}"
                )
            if part.total > MAX_BLOB_BYTES or before + len(part.data) > part.total:
                raise BlobError(f"blob {blob.key} has {part.total} bytes; the limit is {MAX_BLOB_BYTES}")
            if part.place and part.place not in failed and not before:
                return part.place
            await in_thread(partial(blob.write, part.data))
            if blob.size_bytes >= part.total:
                return ""
            if not part.data:
                raise BlobError(f"blob {blob.key}: the other end sent an empty part")

    def part(self, part: BlobPart) -> None:
        """Handles a received part; drops an unrequested one."""
        pending = self._pending.get(part.key)
        if pending is not None and pending.offset == part.offset:
            pending.part = part
            pending.changed.set()

    def lost(self, why: str) -> None:
        """Fails all requests, because the link is lost."""
        self._lost = why
        for pending in self._pending.values():
            pending.changed.set()


FILE: Final = "file://"


@final
class BlobPlaces:
    """Reads blobs from the places that a JobManager names.

    Args:
        secret: secret shared with the other TaskManagers, or None.
        timeout_s: limit for connecting, and for each part.
    """

    def __init__(self, name: str, secret: Secret | None, timeout_s: float) -> None:
        self._name = name
        self._prove: Callable[..., Awaitable[object]] | None = None
        if secret is not None:
            self._prove = partial(prove_dialler, secret=secret)
        self._timeout_s = timeout_s

    async def read(self, place: str, blob: KeptBlob) -> None:
        """Fills an empty blob.

        Raises:
            BlobError: the blob cannot be read there.
            NetstackError: the TaskManager does not answer, or rejects the connection.
        """
        if place.startswith(FILE):
            await in_thread(partial(_copy, place.removeprefix(FILE), blob))
            return
        link, _ = await dial(
            place,
            role=CLIENT,
            name=self._name,
            facts={},
            prove=self._prove,
            heartbeat_timeout_s=self._timeout_s,
            connect_timeout_s=self._timeout_s,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                fetcher = BlobFetcher(link.send)
                nursery.start_soon(_receive, link, fetcher)
                await fetcher.fetch(blob)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            root = root_cause(group)
            if isinstance(root, Exception):
                raise root from group
            raise


async def _receive(link: ControlLink, fetcher: BlobFetcher) -> None:
    try:
        while True:
            message = await link.receive()
            if isinstance(message, BlobPart):
                fetcher.part(message)
    except ConnectionLost as error:
        fetcher.lost(str(error))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would block the thread until it has a writer


def _copy(path: str, blob: KeptBlob) -> None:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BlobError(f"{path} is not a file")
            while data := file.read(SLICE_BYTES):
                blob.write(data)
                if blob.size_bytes > MAX_BLOB_BYTES:
                    raise BlobError(f"{path} is longer than the limit of {MAX_BLOB_BYTES} bytes")
    except OSError as error:
        raise BlobError(f"{path} cannot be read here: {error}") from error
