"""Error responses of Flink, without Java: what can be read of a serialised exception, and constant bytes that are one.

Takes: the body of an ErrorResponse, or a code and a text. Gives: scope, class and code; or a body.

Nothing is deserialised. Of the object stream only the head is looked at (the class name has a fixed place), of the rest
of the body only its last 17 bytes. What is written is the same stream each time, but for the message: a
PartitionNotFoundException where a partition is missing, an IOException otherwise. Flink's consumer looks at the class
only; ours knows that very stream again, and reads the message, which is in a fixed place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ..errors import ErrorCode
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
    """One class of the chain: its name, its serial version, flags and fields."""
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
    """The body of an ErrorResponse.

    Args:
        code: which exception it is.
        text: for people; ASCII, what else is in it becomes question marks.
        channel_id: of the channel it concerns; None: the whole connection.
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
    """What an ErrorResponse says.

    Args:
        body: of the frame.
        number_of: the number of a channel with this id, None if there is none.

    Returns:
        The channel it concerns, or None for all of the connection; a code; the exception's class, and the message if it
        is one of ours.

    Raises:
        RemoteProtocolError: it concerns neither a channel that was ever opened nor the connection.
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
        f"an ErrorResponse of {len(body)} bytes with a {name} that concerns neither a channel of ours nor the"
        f" connection; its last bytes are {body[-ID_BYTES - 1 :].hex()}"
    )


def _own_message(body: bytes) -> str:
    """The message of an IOException as `write_error` makes it."""
    head = _STREAM + _IO_EXCEPTION
    start = len(head) + _SHORT.size
    if len(body) < start or not body.startswith(head):
        return ""
    (size,) = _SHORT.unpack_from(body, len(head))
    text = body[start : start + min(size, MAX_MESSAGE_BYTES)].decode("ascii", "replace")
    return text if text.isprintable() else ""


def _class_name(body: bytes) -> str:
    """The class of a serialised exception, or what stands in its place."""
    start = _NAME_AT + _SHORT.size
    if len(body) < start or not body.startswith(_STREAM):
        return "error without a class"
    (size,) = _SHORT.unpack_from(body, _NAME_AT)
    raw = body[start : start + min(size, MAX_CLASS_NAME_BYTES)]
    name = raw.decode("ascii", "replace")
    return name if name.isprintable() and name else "error without a class"
