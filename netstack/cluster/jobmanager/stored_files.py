"""Atomic, synchronised, checksummed files of a JobManager's folder, readable by its user only.

Takes: documents, bytes. Gives: files, their contents, and writes that are retried until they succeed.

    {"crc32": "1a2b3c4d", "format": 2, ...}

Rules: the CRC-32 covers every byte after it, and the bytes before it are fixed, so any flipped bit is noticed.
Documents of format 1 (0.4.0) have no checksum; they are read, and written in format 2 when they change. Each document
is checked against its schema.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from ...base.crc import crc32
from ...base.errors import NetstackError
from ...base.text.json_text import json_text
from ...base.text.safe_text import safe_error, type_text

FORMAT: Final = 2
"""Format version of the documents."""

WITHOUT_CHECKSUM: Final = 1
"""The format of 0.4.0, which is still read."""

_HEAD: Final = b'{"crc32": "%08x", '
_HEAD_BYTES: Final = len(_HEAD % 0)

Schema = Mapping[str, type | tuple[type, ...]]
"""Types of a document's fields; a name that ends in `?` may be missing."""

_NUMBER: Final = (int, float)

LIFE: Final[Schema] = {"life": int}
COMMITTING: Final[Schema] = {"life?": int}
KNOWN: Final[Schema] = {"life": int, "jobs": list}
JOB: Final[Schema] = {
    "job_id": str,
    "document": dict,
    "submitted_at": _NUMBER,
    "restore": (int, type(None)),
    "code": dict,
    "builds": dict,
    "not_restored?": list,
    "owner?": str,
    "first_checkpoint?": int,
    "life?": int,
}
END: Final[Schema] = {
    "state": str,
    "reason": str,
    "ended_at": _NUMBER,
    "results": dict,
    "packed_results?": str,
    "restarts?": int,
    "checkpoints_completed?": int,
    "checkpoints_failed?": int,
    "last_checkpoint?": (dict, type(None)),
    "failures?": list,
    "failures_left_out?": int,
    "life?": int,
}
DATASET: Final[Schema] = {
    "dataset_id": str,
    "job_id": str,
    "job_name": str,
    "created_at": _NUMBER,
    "format": str,
    "partitions": list,
    "owner?": str,
    "life?": int,
}


class JobStoreError(NetstackError):
    """A file of the folder cannot be read or written; the text names the file and the reason."""


def read_document(path: Path, schema: Schema, *, version: str = "format") -> dict[str, Any] | None:
    """Reads the document in a file; None if there is no file.

    Args:
        path: of the file.
        schema: its fields.
        version: the field with the format version.

    Raises:
        JobStoreError: the file cannot be read, is damaged, has another format, or does not fit the schema.
    """
    try:
        data = _read_bytes(path)
        document = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise JobStoreError(
            f"{path} cannot be read: {safe_error(error)}; repair or remove it and restart the JobManager"
        ) from error
    number = document.get(version) if isinstance(document, dict) else None
    is_old = type(number) is int and number == WITHOUT_CHECKSUM and "crc32" not in document
    if not is_old and data[:_HEAD_BYTES] != _HEAD % crc32(data[_HEAD_BYTES:]):
        raise JobStoreError(
            f"{path} is damaged: its checksum is wrong; restore it, or remove it and restart the JobManager"
        )
    if not is_old and number != FORMAT:
        raise JobStoreError(f"{path} has another format; this release reads format {FORMAT}")
    document.pop("crc32", None)
    _check(path, document, schema)
    return document  # type: ignore[no-any-return]


def encoded(document: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a document with its checksum."""
    rest = _json(document, _PARTED_LEVELS).encode()[1:]
    return _HEAD % crc32(rest) + rest


_PARTED_LEVELS: Final = 5
"""Levels that are encoded in parts, down to an operator's parameters: `json` lets no other thread run meanwhile."""


def _json(value: Any, levels: int) -> str:
    """What `json.dumps` returns with sorted keys."""
    if levels and type(value) is dict and all(type(key) is str for key in value):
        parts = (f"{json.dumps(key)}: {_json(value[key], levels - 1)}" for key in sorted(value))
        return f"{{{', '.join(parts)}}}"
    if levels and type(value) is list:
        return f"[{', '.join([_json(each, levels - 1) for each in value])}]"
    return json.dumps(value, sort_keys=True)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a document of at least one field like `write_bytes`."""
    write_bytes(path, encoded(document))


def packed_end(end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the end of a job; results that JSON cannot represent are packed as well."""
    results = end.get("results")
    shown_results = json.loads(json_text(results))
    if shown_results == results:
        return end
    return {**end, "results": shown_results, "packed_results": base64.b64encode(msgpack.packb(results)).decode()}


def unpacked_end(end: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the end of a job with its results as they were. Raises JobStoreError if they cannot be read."""
    if end is not None and "packed_results" in end:
        try:
            end["results"] = msgpack.unpackb(base64.b64decode(end.pop("packed_results")), strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise JobStoreError(f"the results of a job cannot be read: {error!r}") from error
    return end


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically and synchronises it and its folder.

    Raises:
        JobStoreError: writing failed; the previous file is intact.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        make_private(path.parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # of an interrupted write; it may have other permissions
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
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


def make_private(folder: Path) -> None:
    """Creates a folder, and those above it, for this user only; existing ones stay as they are. Raises OSError."""
    if not os.path.isdir(folder):
        make_private(folder.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _read_bytes(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        return file.read()


def _check(path: Path, document: Mapping[str, Any], schema: Schema) -> None:
    for key, kinds in schema.items():
        name = key.removesuffix("?")
        if name not in document:
            if name == key:
                raise JobStoreError(f"{path} has no field {name!r}; restore it from a backup, or remove it")
            continue
        value = document[name]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise JobStoreError(
                f"{path}: the field {name!r} is {type_text(value)}; restore the file from a backup, or remove it"
            )
