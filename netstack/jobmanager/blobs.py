"""What jobs need beside their descriptors: packages that clients send with them, and where TaskManagers get blobs.

Takes: parts of zipped packages; what TaskManagers ask for, and what they say that they have. Gives: whole packages,
checked by their SHA-256, in the store; parts of blobs, or places to read them.

Rules:
- A short blob is sent at once. A long one goes to the first TaskManager from here; the others get it from those that
  have it, each of which serves two at a time. One that would wait longer than `PATIENCE_S` for that gets it from here
  too. So a package is read here about once, and no job depends on one TaskManager. A blob is read by ranges.
- What clients send is bounded in number and bytes. Where there is too much, the host with the most gives way, and of
  its packages the one that began first; so who sends without end pushes out its own. A package is on its way over one
  connection, and goes with it. Packages that no job has named go after `UNUSED_S`, or sooner where there are too many.
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

from ..config import MIB
from ..control.messages import SLICE_BYTES, BlobPart, blob_parts
from ..control.reports import BlobKept, FetchBlob
from ..errors import ConfigError
from ..runtime.threads import InThread
from ..schedule.descriptors.blob_store import CODE_KEY, BlobError, MemoryBlobStore
from ..schedule.descriptors.descriptors import BlobKey
from .store import JobStore
from .stored_files import JobStoreError

READERS_AT_ONCE: Final = 2
"""Of one TaskManager that has a blob: so that the number of those that have it doubles or more in each round."""

PATIENCE_S: Final = 10.0

_HERE: Final = ""
_reader_count: Final = itemgetter(1)


@final
@dataclass(slots=True)
class _Spread:
    """One long blob on its way.

    Attributes:
        readers: of each place that has it, how many read it there at the moment; by name of the TaskManager.
        reading: where each TaskManager that fetches it was sent.
        changed: set and replaced when another may go on.
    """

    readers: dict[str, int] = field(default_factory=lambda: {_HERE: 0})
    reading: dict[str, str] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)


@final
class BlobServer:
    """The blobs of a JobManager.

    Args:
        store: has the packages.
        blobs: has what schedulers have offloaded.
        in_thread: reads files.
        is_shared: whether TaskManagers get the path of a package, in case that they see it.

    Attributes:
        read_bytes: of packages, so far.
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
        """A part of a blob, or where to read all of it.

        Args:
            taskmanager: which TaskManager asks.
            ask: for what.
        """
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
            path = f"file://{self._store.code_path(digest)}"
            place = path if self._is_shared and path not in ask.failed else await self._place(taskmanager, ask)
        if place:
            return BlobPart(ask.key, 0, size, b"", place)
        data = await self._in_thread(partial(self._store.code_part, digest, ask.offset, SLICE_BYTES))
        self.read_bytes += len(data)
        return BlobPart(ask.key, ask.offset, size, data)

    async def _place(self, taskmanager: str, ask: FetchBlob) -> str:
        """Where a TaskManager is to read a long blob; empty is here."""
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

    def kept(self, taskmanager: str, address: str, said: BlobKept) -> None:
        """A TaskManager has a blob now, or has given it up.

        Args:
            taskmanager: its name.
            address: of its port for control.
            said: which.
        """
        self._reads_no_more(taskmanager, said.key)
        if said.key.startswith(CODE_KEY):
            self._spread.setdefault(said.key, _Spread())  # it was read in the folder
        spread = self._spread.get(said.key)
        if spread is None:
            return
        if said.is_kept:
            self._addresses[taskmanager] = address
            spread.readers.setdefault(taskmanager, 0)
        else:
            spread.readers.pop(taskmanager, None)
        self._wake(spread)

    def lost(self, taskmanager: str) -> None:
        """It is gone, with what it had."""
        self._addresses.pop(taskmanager, None)
        for key, spread in self._spread.items():
            self._reads_no_more(taskmanager, key)
            spread.readers.pop(taskmanager, None)
            self._wake(spread)

    def job_left(self, job_id: str) -> None:
        """Its blobs are not needed any more; packages may serve the next one."""
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
