"""A port for control connections: handles proof, route, greeting and release check, then calls the service.

Takes: accepted streams. Gives: greeted links to `talk`; data streams to `take_data`.

Rules: a peer can end at most its own connection. Unauthenticated peers can cause a few log lines a second, each bounded
and on one line.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar, final

import trio

from ...base.causes import cause_text, root_cause
from ...base.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    NetstackError,
    RemoteProtocolError,
    RequestRefused,
)
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_repr, safe_text
from ...base.transport import ByteStream, Listener
from ...network.connection.admission import Admission
from ...network.connection.fair_share import PeerShare
from .build import own_build
from .codec import Plain
from .link import CLIENT, ControlLink, Greeting, MessageLink, check_release, full_build
from .messages import Answer, Ask, AskRefused, Refused
from .routing import read_route

ERROR_CHARACTERS: Final = 800
"""The limit of logged errors of one connection, which may quote the peer."""

CLIENT_ROLES: Final = frozenset({CLIENT})
"""The roles allowed to a peer that proves the clients' secret; a peer that proves the cluster's secret may have any."""

Answers = Mapping[str, Callable[[Plain], Awaitable[Plain]]]
"""The handler of each question: receives its document, returns the answer's."""


@final
class ControlPort:
    """Accepts control connections.

    Args:
        admission: checks the streams; may be shared with data connections.
        role: of the service, for greetings.
        facts: returns the service's facts, for each greeting.
        talk: serves a link after the greetings and the release check, until it returns or raises; the peer receives a
            `RequestRefused`.
        ready: waits until the facts for a peer of a role are final; None: they always are.
        name: of the service, for people; empty means the host name.
        handshake_timeout_s: limit for the proof, and for the steps from there to the greeting.
        heartbeat_timeout_s: a peer silent for this long is considered lost.
    """

    def __init__(
        self,
        admission: Admission,
        logger: logging.Logger,
        role: str,
        facts: Callable[[], Plain],
        talk: Callable[[ControlLink, Greeting], Awaitable[None]],
        *,
        ready: Callable[[str], Awaitable[None]] | None = None,
        name: str = "",
        handshake_timeout_s: float,
        heartbeat_timeout_s: float,
    ) -> None:
        self._admission = admission
        self._role = role
        self._facts = facts
        self._talk = talk
        self._ready = ready
        self._name = name or socket.gethostname()
        self._handshake_timeout_s = handshake_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._build = full_build(own_build())  # computed now, because files may be replaced while the old code runs
        self._log = LimitedLog(logger, trio.current_time)

    async def serve(self, listener: Listener, take_data: Callable[[str, ByteStream], bool] | None = None) -> None:
        """Accepts until cancelled.

        Args:
            listener: of the port; the caller closes it.
            take_data: called with the id of an environment and a data stream; returns whether it accepts the stream,
                and then calls `Admission.left` at its end. None closes data streams.
        """
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._handle, await listener.accept(), take_data)

    async def _handle(self, stream: ByteStream, take_data: Callable[[str, ByteStream], bool] | None) -> None:
        """Serves one connection, from its proof to its end; its errors end only this connection."""
        try:
            is_anybody = await self._admission.admit(stream)
        except AuthenticationFailed as error:
            self._log.log(logging.WARNING, "refused", f"{safe_text(stream.peer)} was refused: {safe_error(error)}")
            return
        is_handed_over = False
        try:
            with trio.fail_after(self._handshake_timeout_s):
                environment = await read_route(stream)
            if environment is None:
                await self._serve(stream, CLIENT_ROLES if not is_anybody else None)
            elif take_data is not None and is_anybody:
                is_handed_over = take_data(environment, stream)
            else:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{stream.peer} sent data, but this port of a {self._role} accepts only control connections",
                )
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            self._log_end(stream, root)
        finally:
            if not is_handed_over:
                stream.close()
                self._admission.left(stream)

    def _log_end(self, stream: ByteStream, root: Exception) -> None:
        peer = safe_text(stream.peer)
        if isinstance(root, trio.TooSlowError):
            seconds = self._handshake_timeout_s
            self._log.log(logging.WARNING, "slow", f"{peer} sent no route or greeting within {seconds:g} s")
        elif isinstance(root, NetstackError):
            self._log.log(logging.WARNING, "ended", safe_text(str(root), ERROR_CHARACTERS))
        else:
            self._log.log(logging.ERROR, "broke", f"the connection of {peer} failed because of a bug here", error=root)

    async def _serve(self, stream: ByteStream, roles: frozenset[str] | None) -> None:
        """Serves a control connection; `roles` are the roles its peer may have (None: any)."""
        link = ControlLink(stream, heartbeat_timeout_s=self._heartbeat_timeout_s, share=PeerShare())
        link.is_client_only = roles is not None
        with trio.fail_after(self._handshake_timeout_s):
            greeting = await link.receive_greeting()
        if self._ready is not None:
            await self._ready(greeting.role)
        await link.send_greeting(self._build, self._name, self._role, self._facts())
        try:
            check_release(greeting, self._build, link.peer)
            if roles is not None and greeting.role not in roles:
                raise RequestRefused(
                    f"{link.peer} greets as {greeting.role} and has proven the clients' secret; give it the secret of"
                    " the cluster"
                )
        except RequestRefused as refusal:
            await self._refuse(link, refusal)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            try:
                await self._talk(link, greeting)
            except RequestRefused as refusal:
                await self._refuse(link, refusal)
            except ConnectionLost as error:  # clients disconnect after their answer
                self._log.log(logging.DEBUG, "lost", safe_text(str(error), ERROR_CHARACTERS))
            nursery.cancel_scope.cancel()

    async def _refuse(self, link: ControlLink, refusal: RequestRefused) -> None:
        self._log.log(logging.WARNING, "release", safe_text(str(refusal), ERROR_CHARACTERS))
        await link.refuse(str(refusal))


async def answer_questions(link: ControlLink, answers: Answers, log: LimitedLog, *, who: str, max_asks: int) -> None:
    """Answers a client's questions concurrently until it disconnects; open questions are then dropped.

    An invalid question is refused with a message, and the connection continues.

    Args:
        link: to the client; the caller runs it.
        answers: the handlers, by the question's name.
        log: logs our own bugs; all links of a service share it, since a client may connect without end.
        who: names the service in messages: `this JobManager`.
        max_asks: the most concurrent questions; further ones stay unread.

    Raises:
        ConnectionLost: the client has disconnected.
        RemoteProtocolError: it sent something other than a question.

    Cancellation: the answers are cancelled too.
    """
    link.expect_questions()
    room = trio.Semaphore(max_asks)

    async def answer(ask: Ask) -> None:
        try:
            answer = answers.get(ask.what)
            if answer is None:
                raise ConfigError(
                    f"{who} does not know the question {safe_repr(ask.what)}; the client may be of another release"
                )
            message: Answer | AskRefused = Answer(ask.token, await answer(ask.document))
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            if not isinstance(root, NetstackError):
                what = f"answering the question {safe_repr(ask.what)} of {safe_text(link.peer)} failed"
                log.log(logging.ERROR, "answer", what, error=root)
            message = AskRefused(ask.token, str(root) if isinstance(root, NetstackError) else cause_text(root))
        finally:
            room.release()
        try:
            link.send(message)
        except ConfigError as error:  # larger than a frame
            link.send(AskRefused(ask.token, f"the answer cannot be sent: {error}"))

    lost: NetstackError
    async with trio.open_nursery() as nursery:
        try:
            while True:
                message = await link.receive()
                if not isinstance(message, Ask):
                    raise RemoteProtocolError(
                        ErrorCode.UNEXPECTED_FRAME,
                        f"{link.peer} sent {type(message).__name__} instead of a question",
                    )
                await room.acquire()
                nursery.start_soon(answer, message)
        except NetstackError as error:
            lost = error
            nursery.cancel_scope.cancel()
    raise lost


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
