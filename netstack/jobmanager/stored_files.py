"""Files of a JobManager's folder: each whole or not there, on the disk before a write returns.

Takes: documents, bytes. Gives: files, what is in them, and a write that is tried until it succeeds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from ..errors import NetstackError

FORMAT: Final = 1
"""Of the documents; another one is refused."""


class JobStoreError(NetstackError):
    """Something of the folder cannot be read or written; the message names the file and the reason."""


def read_document(path: Path) -> dict[str, Any] | None:
    """The document in a file; None where there is no file.

    Raises:
        JobStoreError: it cannot be read, or is of another format.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise JobStoreError(f"{path} cannot be read: {error}; the job is left out until it can") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise JobStoreError(f"{path} is of another format; this release reads format {FORMAT}")
    return document


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole, and its folder's entry, to the disk.

    Raises:
        JobStoreError: the disk does not take it; what was there before is intact.
    """
    part = path.with_name(f"{path.name}.part")
    try:
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
        raise JobStoreError(f"{path}: {error}; free or replace the disk") from error


FIRST_PAUSE_S: Final = 1.0


LONGEST_PAUSE_S: Final = 30.0
"""Between two tries of what a disk does not take, or give, now."""


async def until_stored(write: Callable[[], Awaitable[None]], waits: Callable[[str], None]) -> None:
    """Writes until that succeeds.

    Args:
        write: raises `NetstackError` when it cannot.
        waits: told why it is not stored yet; told "" when it is.

    Cancellation: a write that has begun ends; it may be stored or not.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            with trio.CancelScope(shield=True):
                await write()
        except NetstackError as error:
            waits(f"{error}; it is tried again in {pause_s:g} s")
        else:
            waits("")
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
