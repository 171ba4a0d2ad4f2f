"""Questions over a control link, from the side that asks: any number under way at a time.

Takes: a link that has been greeted. Gives: answers, to whoever asked.
"""

from __future__ import annotations

import itertools
from typing import TypeVar, final

import trio

from ..errors import ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from .codec import Plain
from .link import MessageLink
from .messages import Answer, Ask, AskRefused, Refused

_Value = TypeVar("_Value")


@final
class Questions:
    """Asks; somebody has to run `receive_all` meanwhile.

    Args:
        link: to the service.
    """

    def __init__(self, link: MessageLink) -> None:
        self._link = link
        self._tokens = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._failure: NetstackError | None = None

    async def ask(self, what: str, document: Plain) -> Plain:
        """Asks, and waits for the answer.

        Raises:
            RequestRefused: it cannot be; the text says why.
            ConnectionLost: the service is gone; whether it has heard the question is not known.

        Cancellation: the answer is ignored when it comes.
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

    def want(self, answer: Plain, name: str, kind: type[_Value]) -> _Value:
        """A part of an answer.

        Raises:
            RemoteProtocolError: it is not there, or of another kind.
        """
        value = answer.get(name)
        if not isinstance(value, kind):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{self._link.peer} answered without {name}, or with another kind of it"
            )
        return value

    def _lost_error(self) -> NetstackError:
        return self._failure or ConnectionLost(f"{self._link.peer} is gone")

    async def receive_all(self) -> None:
        """Takes answers until the connection is lost; questions that wait then, or are asked later, raise."""
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
    """A question that somebody waits for."""

    __slots__ = ("answered", "document", "error")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.document: Plain | None = None
        self.error: NetstackError | None = None
