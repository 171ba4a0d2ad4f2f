"""Flink's error responses without Java: reads parts of a serialised exception, and writes exceptions as constant bytes.

Takes: the body of an ErrorResponse, or a code and a text. Gives: scope, class and code; or a body.

Nothing is deserialised. Only the head of the object stream is read (the class name has a fixed place), and the last 17
bytes of the body. The written stream is constant except for the message: a PartitionNotFoundException for a missing
partition, an IOException otherwise. Flink's consumer checks only the class. Ours recognises that very stream and reads
the message, which has a fixed place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ...base.errors import ErrorCode
from .flink_layout import ID_BYTES, malformed

MAX_CLASS_NAME_BYTES: Final = 300
MAX_MESSAGE_BYTES: Final = 1000

_STREAM: Final = bytes.fromhex("aced000573")
_NAME_AT: Final = len(_STREAM) + 1
_SHORT: Final = struct.Struct(">H")
_IS_SCOPED: Final = 1
_IS_FATAL: Final = 0

_NOT_FOUND: Final = "org.apache.flink.runtime.io.network.partition.PartitionNotFoundException"
_CODES: Final = {
    _NOT_FOUND: ErrorCode.PARTITION_NOT_FOUND,
    "org.apache.flink.runtime.io.network.partition.ProducerFailedException": ErrorCode.PRODUCER_FAILED,
    "org.apache.flink.runtime.execution.CancelTaskException": ErrorCode.PRODUCER_FAILED,
}


def _class(name: str, serial: str, rest: str = "02 0000 78") -> bytes:
    return b"\x72" + _text(name.encode()) + bytes.fromhex(serial) + bytes.fromhex(rest)


def _text(data: bytes) -> bytes:
    return _SHORT.pack(len(data)) + data


_IO_EXCEPTION: Final = (
    _class("java.io.IOException", "6c8073646525f0ab")
    + _class("java.lang.Exception", "d0fd1f3e1a3b1cc4")
    + _class("java.lang.Throwable", "d5c635273977b8cb", "03 0001")
    + b"L"
    + _text(b"detailMessage")
    + b"\x74"
    + _text(b"Ljava/lang/String;")
    + b"\x78\x70\x74"
)
_PARTITION_NOT_FOUND: Final = (
    _class(_NOT_FOUND, "00" * 8)
    + _class("org.apache.flink.runtime.io.network.partition.PartitionException", "00" * 8)
    + _IO_EXCEPTION
)


def write_error(code: ErrorCode, text: str, channel_id: bytes | None) -> bytes:
    """Encodes the body of an ErrorResponse.

    Args:
        code: selects the exception.
        text: for people; characters other than ASCII become question marks.
        channel_id: the failed channel; None: the whole connection.
    """
    if code is ErrorCode.PARTITION_NOT_FOUND and channel_id is not None:
        error = _STREAM + _PARTITION_NOT_FOUND + _text(b"")
    else:
        # Java's UTF is not quite UTF-8: ASCII without NUL is the same in both.
        message = f"{code.name}: {text}".replace("\0", "?").encode("ascii", "replace")[:MAX_MESSAGE_BYTES]
        error = _STREAM + _IO_EXCEPTION + _text(message)
    scope = bytes((_IS_FATAL,)) if channel_id is None else bytes((_IS_SCOPED,)) + channel_id
    return error + b"\x78" + scope


def read_error(body: bytes, number_of: Callable[[bytes], int | None]) -> tuple[int | None, ErrorCode, str]:
    """Reads the body of an ErrorResponse.

    Args:
        body: the body of the frame.
        number_of: returns the number of a channel id; None if it is unknown.

    Returns:
        The failed channel, or None for the whole connection; a code; the exception's class, with the message if
        it is one of ours.

    Raises:
        RemoteProtocolError: it concerns neither a channel that was opened nor the connection.
    """
    name = _class_name(body)
    code = _CODES.get(name, ErrorCode.INTERNAL)
    known, _, message = _own_message(body).partition(": ")
    if known in ErrorCode.__members__:
        code = ErrorCode[known]
        name = f"{name} ({message})"
    if len(body) > ID_BYTES and body[-ID_BYTES - 1] == _IS_SCOPED:
        number = number_of(body[-ID_BYTES:])
        if number is not None:
            return number, code, name
    if body and body[-1] == _IS_FATAL:
        return None, code, name
    raise malformed(
        f"an ErrorResponse of {len(body)} bytes with a {name} concerns neither a channel that was opened nor the"
        f" connection; its last bytes are {body[-ID_BYTES - 1 :].hex()}"
    )


def _own_message(body: bytes) -> str:
    """The message of an IOException that `write_error` wrote; empty for others."""
    head = _STREAM + _IO_EXCEPTION
    start = len(head) + _SHORT.size
    if len(body) < start or not body.startswith(head):
        return ""
    (size,) = _SHORT.unpack_from(body, len(head))
    text = body[start : start + min(size, MAX_MESSAGE_BYTES)].decode("ascii", "replace")
    return text if text.isprintable() else ""


def _class_name(body: bytes) -> str:
    """The class of a serialised exception, or a substitute."""
    start = _NAME_AT + _SHORT.size
    if len(body) < start or not body.startswith(_STREAM):
        return "error without a class"
    (size,) = _SHORT.unpack_from(body, _NAME_AT)
    raw = body[start : start + min(size, MAX_CLASS_NAME_BYTES)]
    name = raw.decode("ascii", "replace")
    return name if name.isprintable() and name else "error without a class"
