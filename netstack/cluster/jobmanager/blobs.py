"""Blobs of jobs: packages that clients upload, and the distribution of packages and offloaded data to TaskManagers.

Takes: parts of zipped packages; requests and reports of TaskManagers. Gives: whole packages, checked by their SHA-256,
in the store; parts of blobs, or places to read them.

Rules:
- A short blob is sent at once. A long blob is sent to the first TaskManager; the others read it from TaskManagers that
  have it, each of which serves two readers at a time. A TaskManager that would wait longer than `PATIENCE_S` reads from
  the JobManager. So the JobManager reads a package about once, and no job depends on one TaskManager.
- The number and bytes of uploads are bounded. When the limit is reached, the oldest upload of the host with the most
  uploads is dropped, so a client that floods displaces only itself. An upload belongs to one connection and ends with
  it. Packages that no job uses are removed after `UNUSED_S`, or sooner when they take too much space.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Final, final

import trio

from ...base.config import MIB
from ...base.errors import ConfigError
from ...network.waiting.threads import InThread
from ...schedule.descriptors.blob_store import CODE_KEY, BlobError, MemoryBlobStore
from ...schedule.descriptors.descriptors import BlobKey
from ..control.messages import SLICE_BYTES, BlobPart, blob_parts
from ..control.reports import BlobKept, FetchBlob
from .store import JobStore
from .stored_files import JobStoreError

READERS_AT_ONCE: Final = 2
"""Concurrent readers of one TaskManager that has a blob; copies at least double in each round."""

PATIENCE_S: Final = 10.0

_HERE: Final = ""
_reader_count: Final = itemgetter(1)


@final
@dataclass(slots=True)
class _Spread:
    """The distribution of one long blob.

    Attributes:
        readers: number of current readers of each TaskManager that has the blob.
        reading: the place from which each TaskManager currently reads.
        changed: set and replaced when a waiting TaskManager may continue.
    """

    readers: dict[str, int] = field(default_factory=lambda: {_HERE: 0})
    reading: dict[str, str] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)


@final
class BlobServer:
    """Serves the blobs of a JobManager.

    Args:
        blobs: stores the data that schedulers offloaded.
        in_thread: runs file access.
        is_shared: whether TaskManagers receive the path of a package, because they may share the file system.

    Attributes:
        read_bytes: bytes of packages read so far.
    """

    def __init__(self, store: JobStore, blobs: MemoryBlobStore, in_thread: InThread, *, is_shared: bool) -> None:
        self.read_bytes = 0
        self._store = store
        self._blobs = blobs
        self._in_thread = in_thread
        self._is_shared = is_shared
        self._addresses: dict[str, str] = {}
        self._spread: dict[str, _Spread] = {}

    async def answer(self, taskmanager: str, ask: FetchBlob) -> BlobPart:
        """Returns a part of a blob, or the place from which to read all of it."""
        try:
            if ask.key.startswith(CODE_KEY):
                return await self._package(taskmanager, ask)
            job_id = ask.key.rsplit("-", 2)[-2] if ask.key.count("-") >= 2 else ""
            data = self._blobs.get(job_id, BlobKey(ask.key))
            place = await self._place(taskmanager, ask) if len(data) > SLICE_BYTES else _HERE
        except (BlobError, JobStoreError) as error:
            return BlobPart(ask.key, ask.offset, -1, str(error).encode())
        return BlobPart(ask.key, ask.offset, len(data), b"", place) if place else blob_parts(ask.key, data, ask.offset)

    async def _package(self, taskmanager: str, ask: FetchBlob) -> BlobPart:
        digest = ask.key.removeprefix(CODE_KEY)
        size = await self._in_thread(partial(self._store.code_bytes, digest))
        place = _HERE
        if size > SLICE_BYTES and not ask.offset:
            self._spread.setdefault(ask.key, _Spread())  # it may be read in the folder, which only `kept` tells
            path = f"file://{self._store.code_path(digest)}"
            place = path if self._is_shared and path not in ask.failed else await self._place(taskmanager, ask)
        if place:
            return BlobPart(ask.key, 0, size, b"", place)
        data = await self._in_thread(partial(self._store.code_part, digest, ask.offset, SLICE_BYTES))
        self.read_bytes += len(data)
        return BlobPart(ask.key, ask.offset, size, data)

    async def _place(self, taskmanager: str, ask: FetchBlob) -> str:
        """Returns the place from which a TaskManager reads a long blob; empty: the JobManager."""
        if ask.offset:
            return _HERE
        self._reads_no_more(taskmanager, ask.key)
        spread = self._spread.setdefault(ask.key, _Spread())
        chosen = _HERE
        with trio.move_on_after(PATIENCE_S) as patience:
            while True:
                having = {
                    name: count
                    for name, count in spread.readers.items()
                    if name != taskmanager and self._addresses.get(name) not in (None, *ask.failed)
                }
                chosen, count = min((having or {_HERE: spread.readers[_HERE]}).items(), key=_reader_count)
                if count < (READERS_AT_ONCE if having else 1):
                    break
                await spread.changed.wait()
        if patience.cancelled_caught:
            chosen = _HERE
        spread.readers[chosen] += 1
        spread.reading[taskmanager] = chosen
        return self._addresses.get(chosen, _HERE)

    def kept(self, taskmanager: str, address: str, message: BlobKept) -> None:
        """Records that a TaskManager has a blob, or failed to fetch it."""
        self._reads_no_more(taskmanager, message.key)
        spread = self._spread.get(message.key)
        if spread is None:  # nobody was sent to it: a key that a peer has made up is not stored
            return
        if message.is_kept:
            self._addresses[taskmanager] = address
            spread.readers.setdefault(taskmanager, 0)
        else:
            spread.readers.pop(taskmanager, None)
        self._wake(spread)

    def lost(self, taskmanager: str) -> None:
        """Removes a lost TaskManager and its copies."""
        self._addresses.pop(taskmanager, None)
        for key, spread in self._spread.items():
            self._reads_no_more(taskmanager, key)
            spread.readers.pop(taskmanager, None)
            self._wake(spread)

    def job_left(self, job_id: str) -> None:
        """Deletes the blobs of an ended job; packages stay for later jobs."""
        for key in self._blobs.keys(job_id):
            self._blobs.delete(job_id, key)
            self._spread.pop(key, None)

    def _reads_no_more(self, taskmanager: str, key: str) -> None:
        spread = self._spread.get(key)
        if spread is None:
            return
        place = spread.reading.pop(taskmanager, None)
        if place is not None and place in spread.readers:
            spread.readers[place] -= 1
            self._wake(spread)

    def _wake(self, spread: _Spread) -> None:
        spread.changed.set()
        spread.changed = trio.Event()


MAX_PACKAGE_BYTES: Final = 64 * MIB
MAX_UPLOADS: Final = 16
"""Concurrent uploads of all clients together."""

UNUSED_S: Final = 3600.0
MAX_UNUSED_BYTES: Final = 1024 * MIB


@final
class Uploads:
    """The uploads of all clients.

    Args:
        used: returns the packages that jobs use.
    """

    def __init__(self, store: JobStore, in_thread: InThread, used: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._in_thread = in_thread
        self._used = used
        self._parts: dict[Upload, None] = {}  # oldest first

    async def stored(self, whole: bytes) -> None:
        """Stores a complete package. Raises JobStoreError if it cannot be stored."""
        await self._in_thread(partial(self._store.put_code, whole))
        await self.prune()

    async def prune(self) -> None:
        """Removes packages that no job uses."""
        used = frozenset(self._used())
        await self._in_thread(partial(self._store.prune_code, used, UNUSED_S, MAX_UNUSED_BYTES))

    async def sha256(self, data: bytes) -> str:
        """Returns the SHA-256 of data in hex."""
        return await self._in_thread(partial(_sha256, data))

    def began(self, upload: Upload) -> None:
        """Adds an upload; drops others while there are too many."""
        self._parts.pop(upload, None)
        while len(self._parts) >= MAX_UPLOADS:
            counts = Counter(each.host for each in self._parts)
            counts[upload.host] += 1
            host = max(counts, key=lambda host: counts[host])
            next(each for each in self._parts if each.host == host).give_way()
        self._parts[upload] = None

    def ended(self, upload: Upload) -> None:
        """Removes an upload. Idempotent."""
        self._parts.pop(upload, None)


@final
class Upload:
    """The upload of one connection."""

    def __init__(self, uploads: Uploads, host: str) -> None:
        self.host = host
        self._uploads = uploads
        self._sha256 = ""
        self._part = bytearray()

    async def add(self, sha256: str, offset: int, total: int, data: bytes) -> int:
        """Adds a part; stores the package after its last part.

        Args:
            sha256: SHA-256 of the whole package.
            offset: offset of this part; parts arrive in order, and offset 0 starts a new package.
            total: length of the package in bytes.
            data: the part.

        Returns:
            The number of bytes received.

        Raises:
            ConfigError: the package is too long, a part is out of order, or the SHA-256 does not match.
            JobStoreError: it cannot be stored.
        """
        if not 0 < total <= MAX_PACKAGE_BYTES:
            raise ConfigError(
                f"the package has {total} bytes; the limit is {MAX_PACKAGE_BYTES}:"
                " ship fewer files, or install it on the hosts"
            )
        if not offset:
            self._sha256, self._part = sha256, bytearray()
            self._uploads.began(self)
        if self._sha256 != sha256 or offset != len(self._part) or offset + len(data) > total or not data:
            raise ConfigError(
                "parts of a package arrived out of order, or too many uploads are in progress from your host; submit"
                " the job again"
            )
        self._part += data
        if len(self._part) < total:
            return len(self._part)
        whole = bytes(self._part)
        self.give_way()
        if await self._uploads.sha256(whole) != sha256:
            raise ConfigError("a package does not match its SHA-256; submit the job again")
        await self._uploads.stored(whole)
        return len(whole)

    def give_way(self) -> None:
        """Drops the received parts, because the connection ended or other uploads need the space. Idempotent."""
        self._sha256, self._part = "", bytearray()
        self._uploads.ended(self)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
