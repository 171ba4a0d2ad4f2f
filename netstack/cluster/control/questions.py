"""The client side of requests over a control link; any number may be pending.

Takes: a link after its greeting. Gives: the answer to each request.
"""

from __future__ import annotations

import itertools
from typing import TypeVar, final

import trio

from ...base.errors import ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from .codec import Plain
from .link import MessageLink
from .messages import Answer, Ask, AskRefused, Refused

_Value = TypeVar("_Value")


@final
class Questions:
    """Sends requests and matches the answers; another task must run `receive_all`."""

    def __init__(self, link: MessageLink) -> None:
        self._link = link
        self._tokens = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._failure: NetstackError | None = None

    async def ask(self, what: str, document: Plain) -> Plain:
        """Sends a request and waits for the answer.

        Raises:
            RequestRefused: the service rejected the request; the text is its reason.
            ConnectionLost: the connection is lost; the service may or may not have received the request.

        Cancellation: a late answer is ignored.
        """
        if self._failure is not None:
            raise self._failure
        asked = _Asked()
        token = next(self._tokens)
        self._asked[token] = asked
        try:
            self._link.send(Ask(token, what, document))
            await asked.answered.wait()
        finally:
            self._asked.pop(token, None)
        if asked.document is None:
            raise asked.error or self._lost_error()
        return asked.document

    def field(self, answer: Plain, name: str, kind: type[_Value]) -> _Value:
        """Returns a field of an answer. Raises RemoteProtocolError if the field is missing or has another type."""
        value = answer.get(name)
        if not isinstance(value, kind):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"the answer of {self._link.peer} has no {name} of type {kind.__name__}"
            )
        return value

    def _lost_error(self) -> NetstackError:
        return self._failure or ConnectionLost(f"the connection to {self._link.peer} is lost")

    async def receive_all(self) -> None:
        """Receives answers until the connection is lost; then all pending and later requests raise."""
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, Refused):
                    raise RequestRefused(message.text)
                if not isinstance(message, Answer | AskRefused):
                    raise RemoteProtocolError(
                        ErrorCode.UNEXPECTED_FRAME, f"{self._link.peer} sent {type(message).__name__} to a client"
                    )
                asked = self._asked.get(message.token)
                if asked is None:
                    continue
                if isinstance(message, AskRefused):
                    asked.error = RequestRefused(message.text)
                else:
                    asked.document = message.document
                asked.answered.set()
        except NetstackError as error:
            self._failure = error
            for asked in self._asked.values():
                asked.answered.set()


@final
class _Asked:
    __slots__ = ("answered", "document", "error")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.document: Plain | None = None
        self.error: NetstackError | None = None
