"""Packages that clients send with their jobs, in parts.

Takes: parts of zipped packages. Gives: whole ones, checked by their SHA-256, in the store.

Rules: what is on its way is bounded in number and bytes. Where there is too much, the host with the most gives way, and
of its packages the one that began first; so who sends without end pushes out its own. A package is on its way over one
connection, and goes with it. Packages that no job has named go after `UNUSED_S`, or sooner where there are too many.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, final

from ..config import MIB
from ..errors import ConfigError
from ..runtime.threads import InThread
from .store import JobStore

MAX_PACKAGE_BYTES: Final = 64 * MIB
MAX_UPLOADS: Final = 16
"""Of all clients together."""

UNUSED_S: Final = 3600.0
MAX_UNUSED_BYTES: Final = 1024 * MIB


@final
class Uploads:
    """What is on its way, of all clients.

    Args:
        store: where whole packages go.
        in_thread: runs what blocks.
        used: the packages that jobs have named.
    """

    def __init__(self, store: JobStore, in_thread: InThread, used: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._in_thread = in_thread
        self._used = used
        self._parts: dict[Upload, None] = {}  # in the order in which their packages began

    async def stored(self, whole: bytes) -> None:
        """A package is whole.

        Raises:
            JobStoreError: it cannot be stored.
        """
        await self._in_thread(partial(self._store.put_code, whole))
        await self.prune()

    async def prune(self) -> None:
        """Removes packages that no job has named, and that nobody will any more."""
        used = frozenset(self._used())
        await self._in_thread(partial(self._store.prune_code, used, UNUSED_S, MAX_UNUSED_BYTES))

    async def sha256(self, data: bytes) -> str:
        """In hex."""
        return await self._in_thread(partial(_sha256, data))

    def began(self, upload: Upload) -> None:
        """One more is on its way."""
        self._parts.pop(upload, None)
        while len(self._parts) >= MAX_UPLOADS:
            counts = Counter(each.host for each in self._parts)
            counts[upload.host] += 1
            host = max(counts, key=lambda host: counts[host])
            next(each for each in self._parts if each.host == host).give_way()
        self._parts[upload] = None

    def ended(self, upload: Upload) -> None:
        """It is whole, or has gone. Idempotent."""
        self._parts.pop(upload, None)


@final
class Upload:
    """The package that is on its way over one connection.

    Args:
        uploads: all of them.
        host: of the client.
    """

    def __init__(self, uploads: Uploads, host: str) -> None:
        self.host = host
        self._uploads = uploads
        self._sha256 = ""
        self._part = bytearray()

    async def add(self, sha256: str, offset: int, total: int, data: bytes) -> int:
        """Takes a part; with the last one the package is stored.

        Args:
            sha256: of the whole package.
            offset: of this part; parts come in order, and the first one begins anew.
            total: length of the whole in bytes.
            data: the part.

        Returns:
            How many bytes are there.

        Raises:
            ConfigError: too long, out of order, or not what its SHA-256 says.
            JobStoreError: it cannot be stored.
        """
        if not 0 < total <= MAX_PACKAGE_BYTES:
            raise ConfigError(f"a package of {total} bytes; {MAX_PACKAGE_BYTES} is the most")
        if not offset:
            self._sha256, self._part = sha256, bytearray()
            self._uploads.began(self)
        if self._sha256 != sha256 or offset != len(self._part) or offset + len(data) > total or not data:
            raise ConfigError(
                "parts of a package came out of order, or too many packages are on their way from your host; send it"
                " again from its beginning"
            )
        self._part += data
        if len(self._part) < total:
            return len(self._part)
        whole = bytes(self._part)
        self.give_way()
        if await self._uploads.sha256(whole) != sha256:
            raise ConfigError("a package is not what its SHA-256 says; send it again")
        await self._uploads.stored(whole)
        return len(whole)

    def give_way(self) -> None:
        """Forgets what has come; the connection has ended, or others need the room. Idempotent."""
        self._sha256, self._part = "", bytearray()
        self._uploads.ended(self)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
