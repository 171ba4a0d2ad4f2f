"""Atomic, synchronised files of a JobManager's folder.

Takes: documents, bytes. Gives: files, their contents, and writes that are retried until they succeed.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from ..errors import NetstackError

FORMAT: Final = 1
"""Format version of the documents; others are rejected."""


class JobStoreError(NetstackError):
    """A file of the folder cannot be read or written; the text names the file and the reason."""


def read_document(path: Path) -> dict[str, Any] | None:
    """Reads the document in a file; None if there is no file.

    Raises:
        JobStoreError: the file cannot be read, or has another format.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise JobStoreError(
            f"{path} cannot be read: {error}; repair or remove it and restart the JobManager"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise JobStoreError(f"{path} has another format; this release reads format {FORMAT}")
    return document


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically and synchronises it and its folder.

    Raises:
        JobStoreError: writing failed; the previous file is intact.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        if not os.path.isdir(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise JobStoreError(f"{path} cannot be written: {error}; free or replace the disk") from error
