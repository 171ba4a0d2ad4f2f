"""The control stream between a master and a worker in another process.

Takes: messages of `control`. Gives: documents on a byte stream (`control.frames`), and messages back.

A document: the message's kind, its fields in order. A connection begins with one from each end: [`netstack control`,
version, name]. One that is no message ends the connection.

The end of the stream is how the death of a process is noticed; that of a host which falls silent without ending its
connections is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, cast, final

from ..control.frames import FrameStream
from ..errors import ErrorCode, RemoteProtocolError
from ..transport import ByteStream
from .control import Message, Subtasks
from .spec import Job
from .task_checkpoints import SubtaskReport

VERSION: Final = 1

_GREETING: Final = "netstack control"


@final
class StreamLink:
    """One end of a stream: `greet`, then messages; `run` writes them until it is cancelled or the stream ends."""

    def __init__(self, stream: ByteStream) -> None:
        self._frames = FrameStream(stream)
        self.peer = stream.peer
        self.run = self._frames.run
        self.close = self._frames.close

    async def greet(self, name: str) -> str:
        """Says who we are; returns who the other end is.

        Raises:
            ConnectionLost: it is gone.
            RemoteProtocolError: it is not netstack, or of another version.
        """
        self._frames.send([_GREETING, VERSION, name])
        await self._frames.flush()
        said = await self._frames.receive()
        if len(said) != 3 or said[0] != _GREETING or not isinstance(said[2], str):
            raise RemoteProtocolError(ErrorCode.NOT_NETSTACK, f"{self.peer} does not speak netstack's control protocol")
        if said[1] != VERSION:
            raise RemoteProtocolError(
                ErrorCode.VERSION_MISMATCH,
                f"{self.peer} speaks version {said[1]} of the control protocol, this is {VERSION}: use one release",
            )
        self.peer = self._frames.peer = f"{said[2]} at {self.peer}"
        return said[2]

    def send(self, message: Message) -> None:
        """See `ControlLink.send`."""
        self._frames.send(encode(message))

    async def receive(self) -> Message:
        """See `ControlLink.receive`."""
        return decode(await self._frames.receive())


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
