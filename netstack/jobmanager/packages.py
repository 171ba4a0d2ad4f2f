"""Packages that clients send with their jobs, in parts.

Takes: parts of zipped packages. Gives: whole ones, checked by their SHA-256, in the store.

Rules: what is on its way is bounded in number and bytes; the oldest that nobody adds to gives way.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final, final

from ..config import MIB
from ..errors import ConfigError
from ..runtime.threads import InThread
from .store import JobStore

MAX_PACKAGE_BYTES: Final = 64 * MIB
MAX_UPLOADS: Final = 4


@final
class Uploads:
    """What is on its way, of all clients."""

    def __init__(self, store: JobStore, in_thread: InThread) -> None:
        self._store = store
        self._in_thread = in_thread
        self._parts: dict[str, bytearray] = {}

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
            while len(self._parts) >= MAX_UPLOADS:
                del self._parts[next(iter(self._parts))]
            self._parts[sha256] = bytearray()
        part = self._parts.get(sha256)
        if part is None or offset != len(part) or offset + len(data) > total:
            raise ConfigError("parts of a package came out of order; send it again from its beginning")
        part += data
        if len(part) < total:
            return len(part)
        del self._parts[sha256]
        whole = bytes(part)
        found = await self._in_thread(partial(_sha256, whole))
        if found != sha256:
            raise ConfigError("a package is not what its SHA-256 says; send it again")
        await self._in_thread(partial(self._store.put_code, whole))
        return len(whole)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
