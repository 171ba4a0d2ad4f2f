"""Blobs from elsewhere than the JobManager: a folder that this host sees too, or another TaskManager.

Takes: a place as the JobManager names it. Gives: the bytes, which whoever asked checks by the key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, final

import trio

from ..control.link import CLIENT, ControlLink, dial
from ..control.messages import SLICE_BYTES, BlobPart
from ..errors import ConnectionLost
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.causes import root_cause
from ..runtime.threads import in_thread
from ..schedule.descriptors.blob_store import BlobError
from .blob_files import KeptBlob
from .blobs import MAX_BLOB_BYTES, BlobFetcher

FILE: Final = "file://"


@final
class BlobPlaces:
    """Reads where a JobManager says.

    Args:
        name: of this TaskManager, for people.
        secret: shared with the other TaskManagers; None if there is none.
        timeout_s: for dialling, and for each part.
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
            BlobError: it is not there.
            NetstackError: nobody is there, or who is there lets nobody in.
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
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would hold the thread until somebody writes


def _copy(path: str, blob: KeptBlob) -> None:
    """In a thread."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BlobError(f"{path} is no file")
            while data := file.read(SLICE_BYTES):
                blob.write(data)
                if blob.size_bytes > MAX_BLOB_BYTES:
                    raise BlobError(f"{path} has more than {MAX_BLOB_BYTES} bytes")
    except OSError as error:
        raise BlobError(f"{path} cannot be read here: {error}") from error
