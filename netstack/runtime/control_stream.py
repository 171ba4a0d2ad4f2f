"""The control stream between a master and a worker in another process.

Takes: messages of `control`. Gives: frames on a byte stream, and messages back.

A frame: length of the rest, u32, big-endian; then a msgpack list: the message's kind, its fields in order. A connection
begins with one frame from each end: [`netstack control`, version, name]. Nothing is pickled; a document that is no
message, or a length above `MAX_FRAME_BYTES`, ends the connection.

The end of the stream is how the death of a process is noticed; that of a host which falls silent without ending its
connections is not.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, Final, cast, final

import msgpack
import trio

from ..errors import ConfigError, ConnectionLost, ErrorCode, RemoteProtocolError
from ..transport import ByteStream
from .control import Message, Subtasks
from .job_spec import Job
from .task_checkpoints import SubtaskReport

VERSION: Final = 1
MAX_FRAME_BYTES: Final = 4 << 20
"""Jobs are the largest messages; a malicious length must not make us take memory."""

_GREETING: Final = "netstack control"
_LENGTH: Final = struct.Struct(">I")


@final
class StreamLink:
    """One end of a stream: `greet`, then messages; `run` writes them until it is cancelled or the stream ends."""

    def __init__(self, stream: ByteStream) -> None:
        self.peer = stream.peer
        self._stream = stream
        self._outbox = bytearray()
        self._more = trio.Event()
        self._landing = memoryview(bytearray(1 << 16))
        self._received = bytearray()
        self._error: ConnectionLost | RemoteProtocolError | None = None

    async def greet(self, name: str) -> str:
        """Says who we are; returns who the other end is.

        Raises:
            ConnectionLost: it is gone.
            RemoteProtocolError: it is not netstack, or of another version.
        """
        self._outbox += _frame([_GREETING, VERSION, name])
        while self._outbox:
            await self._write()
        said = await self._next()
        if len(said) != 3 or said[0] != _GREETING or not isinstance(said[2], str):
            raise RemoteProtocolError(ErrorCode.NOT_NETSTACK, f"{self.peer} does not speak netstack's control protocol")
        if said[1] != VERSION:
            raise RemoteProtocolError(
                ErrorCode.VERSION_MISMATCH,
                f"{self.peer} speaks version {said[1]} of the control protocol, this is {VERSION}: use one release",
            )
        self.peer = f"{said[2]} at {self.peer}"
        return said[2]

    async def run(self) -> None:
        """Writes what is sent. Ends when the stream does."""
        try:
            while True:
                while self._outbox:
                    await self._write()
                self._more = trio.Event()
                await self._more.wait()
        except (ConnectionLost, trio.ClosedResourceError):
            return  # whoever receives is told

    def send(self, message: Message) -> None:
        """See `ControlLink.send`."""
        self._outbox += _frame(encode(message))
        self._more.set()

    async def receive(self) -> Message:
        """See `ControlLink.receive`."""
        return decode(await self._next())

    def close(self) -> None:
        """See `ControlLink.close`."""
        self._stream.close()

    async def _write(self) -> None:
        await self._stream.wait_writable()
        sent = self._stream.try_send((bytes(self._outbox),))
        del self._outbox[:sent]

    async def _next(self) -> list[Any]:
        while True:
            if len(self._received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if length > MAX_FRAME_BYTES:
                    raise RemoteProtocolError(
                        ErrorCode.FRAME_TOO_LARGE,
                        f"{self.peer} sent a control frame of {length} bytes; {MAX_FRAME_BYTES} is the most",
                    )
                end = _LENGTH.size + length
                if len(self._received) >= end:
                    document = _document(bytes(self._received[_LENGTH.size : end]))
                    del self._received[:end]
                    return document
            await self._read()

    async def _read(self) -> None:
        while (count := self._stream.try_receive_into((self._landing,))) is None:
            try:
                await self._stream.wait_readable()
            except trio.ClosedResourceError as error:
                raise ConnectionLost(f"the control stream to {self.peer} was closed here") from error
        if not count:
            raise ConnectionLost(f"{self.peer} ended its control stream: its process is gone, or was told to end")
        self._received += self._landing[:count]


def encode(message: Message) -> list[Any]:
    """A message as a document: its kind, then its fields.

    Raises:
        ConfigError: a job that cannot be sent to another process.
    """
    return [type(message).__name__, *(_plain(getattr(message, field.name)) for field in dataclasses.fields(message))]


def decode(document: list[Any]) -> Message:
    """The message in a document.

    Raises:
        RemoteProtocolError: it is none.
    """
    kind = _KINDS.get(document[0]) if document and isinstance(document[0], str) else None
    if kind is None:
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"a control frame of kind {document[:1]!r:.60}")
    try:
        return cast(Message, kind(*_read_fields(kind, document[1:])))
    except (TypeError, ValueError, KeyError) as error:  # ConfigError is a ValueError
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{document[0]}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Job):
        return value.document()
    if isinstance(value, SubtaskReport):
        return dataclasses.astuple(value)
    return None if isinstance(value, BaseException) else value


def _frame(document: list[Any]) -> bytes:
    try:
        body: bytes = msgpack.packb(document)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{document[0]} cannot be sent to another process: {error}; give plain data") from error
    if len(body) > MAX_FRAME_BYTES:
        raise ConfigError(
            f"{document[0]} has {len(body)} bytes; {MAX_FRAME_BYTES} is the most: give large data by name"
        )
    return _LENGTH.pack(len(body)) + body


def _document(body: bytes) -> list[Any]:
    try:
        document = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"a control frame is not msgpack: {error}") from error
    if not isinstance(document, list):
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "a control frame is not a list")
    return document


def _is(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r:.60} is no {kind.__name__}")
        return value

    return read


def _read_subtasks(value: Any) -> Subtasks:
    return tuple((_is(str)(task), _is(int)(subtask)) for task, subtask in _is(list)(value))


def _read_report(value: Any) -> SubtaskReport:
    return SubtaskReport(*_read_fields(SubtaskReport, value))


def _read_fields(kind: type[Any], values: Any) -> list[Any]:
    """The fields of a message, checked."""
    return [
        _READERS[str(field.type)](value)
        for field, value in zip(dataclasses.fields(kind), _is(list)(values), strict=True)
    ]


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _is(int),
    "str": _is(str),
    "bytes": _is(bytes),
    "bool": _is(bool),
    "Job": lambda value: Job.from_document(_is(dict)(value)),
    "Subtasks": _read_subtasks,
    "tuple[str, ...]": lambda value: tuple(map(_is(str), _is(list)(value))),
    "SubtaskReport": _read_report,
    "float": _is(float),
    "BaseException | None": lambda value: None,
}

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in Message.__args__}
