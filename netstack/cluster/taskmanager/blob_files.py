"""Cached blobs of a TaskManager in unnamed files.

Takes: bytes in order. Gives: any part of them.

Rules: the file never has a name, so no end of the process leaves it behind. It is closed with its last reader, so a
blob may be dropped at any time. Methods that access files run in threads.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from typing import final

from ...schedule.descriptors.blob_store import BlobError
from ...schedule.descriptors.descriptors import BlobKey


@final
class KeptBlob:
    """One blob: written sequentially, checked, then read in any order.

    Args:
        key: a kind, `-`, and the SHA-1 or SHA-256 of the content.
        directory: folder of its file; None: the system's temporary folder.

    Attributes:
        size_bytes: bytes written so far.
    """

    def __init__(self, key: BlobKey, directory: str | None = None) -> None:
        self.key = key
        self.size_bytes = 0
        self._directory = directory
        self._file: int | None = None  # a descriptor, closed by `_close` or with the last reference
        self._close: weakref.finalize[[int], KeptBlob] | None = None
        self._wanted = key.partition("-")[2].partition("-")[0]
        self._digest = self._new_digest()

    def _new_digest(self) -> hashlib._Hash:
        return hashlib.sha256() if len(self._wanted) == 64 else hashlib.sha1(usedforsecurity=False)

    def write(self, data: bytes) -> None:
        """Appends data. Raises BlobError if writing failed."""
        try:
            if self._file is None:
                with tempfile.TemporaryFile(prefix="netstack-blob-", dir=self._directory, buffering=0) as file:
                    self._file = os.dup(file.fileno())
                self._close = weakref.finalize(self, os.close, self._file)
            written = 0
            with memoryview(data) as whole:
                while written < len(data):
                    written += os.write(self._file, whole[written:])
        except OSError as error:
            folder = self._directory or tempfile.tempdir or "the temporary folder"
            raise BlobError(
                f"blob {self.key} cannot be written in {folder}: {error}; free space there, or set shuffle_directory"
            ) from error
        self._digest.update(data)
        self.size_bytes += len(data)

    def clear(self) -> None:
        """Discards the contents."""
        if self._close is not None:
            self._close()
        self._file, self.size_bytes, self._digest = None, 0, self._new_digest()

    def check(self) -> None:
        """Compares the contents with the digest in the key. Raises BlobError if the digests differ."""
        if self._digest.hexdigest() != self._wanted:
            raise BlobError(f"blob {self.key} is damaged: the digest of its {self.size_bytes} bytes does not match")

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Returns a part of the blob, by default all; empty beyond the end. Raises BlobError if reading failed."""
        stop = self.size_bytes if size is None else min(self.size_bytes, offset + size)
        parts = []
        while offset < stop and self._file is not None:
            try:
                part = os.pread(self._file, stop - offset, offset)
            except OSError as error:
                raise BlobError(f"blob {self.key} cannot be read: {error}") from error
            if not part:
                raise BlobError(f"blob {self.key} ends at {offset} of {self.size_bytes} bytes")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)
