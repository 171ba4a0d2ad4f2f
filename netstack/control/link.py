"""One end of a control connection: greetings, messages, signs of life.

Takes: a stream that has been let in. Gives: messages; `ConnectionLost` when the other end is gone or silent.

A connection begins with one document from each end: [`netstack control`, version, build, name, role, facts]. Then
messages. Either end is heard at least every third of the heartbeat timeout; silence for all of it is a lost peer, which
is how the death of a host or a cut cable is noticed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, final

import trio

from ..documents import MAX_DOCUMENT_CONTAINERS
from ..errors import ConnectionLost, ErrorCode, RemoteProtocolError, RequestRefused
from ..shown import shown_text
from ..transport import ByteStream, transport_for
from ..version import __version__
from .build import own_build
from .codec import Message, Plain
from .frames import MAX_FRAME_BYTES, FrameStream, LoopShare, pack
from .messages import CODEC, GREETING, VERSION, Ping, Pong, Refused
from .routing import write_route

GREETING_BYTES: Final = 1 << 16
"""Longest document before the other end has said who it is."""

HEARTBEAT_TIMEOUT_S: Final = 10.0

TASKMANAGER: Final = "taskmanager"
JOBMANAGER: Final = "jobmanager"
CLIENT: Final = "client"
SUBSCRIBER: Final = "subscriber"

QUESTION_CONTAINERS: Final = 1 << 14
"""Lists and maps in a question that submits no job: some 10 ms of the loop."""

_HEAD_BYTES: Final = 24  # the kind of a message, its token, and what is asked
_LEAST_TIMEOUT_S: Final = 0.1  # a peer cannot make us send without end
_BUILD_CHARACTERS: Final = 64
_NAME_CHARACTERS: Final = 256


@final
@dataclass(frozen=True, slots=True)
class Greeting:
    """What an end says of itself.

    Attributes:
        version: of the control protocol.
        build: of the code (`build.own_build`), after the release: `0.4.0+1a2b3c4d5e6f`.
        name: for messages.
        role: `taskmanager`, `jobmanager`, `client` or `subscriber`.
        facts: a TaskManager's: slots, memory, host, session (see `TaskManager.facts`).
    """

    version: int
    build: str
    name: str
    role: str
    facts: Plain


class MessageLink(Protocol):
    """What those who talk over a control connection need of it, wherever it lives (`ControlLink`, `ThreadedLink`)."""

    peer: str
    """Who is at the other end, for messages."""

    def send(self, message: Message) -> None:
        """Sends a message; never waits."""

    async def wait_room(self) -> None:
        """Waits until little is unsent."""

    async def receive(self) -> Message:
        """Waits for the next message."""


@final
class ControlLink:
    """One end: `greet`, then `run` beside `receive`.

    Attributes:
        peer: who is at the other end, for messages; once it has greeted, with its name.
        place: where the other end is, `host:port`.
        heartbeat_timeout_s: silence for so long is a lost peer.
        is_client_only: whether the other end has proven the clients' secret, and not that of the cluster.
    """

    def __init__(self, stream: ByteStream, *, heartbeat_timeout_s: float, share: LoopShare | None = None) -> None:
        """Args: as above; `share` bounds what the other end may have us do, if it is given."""
        self._frames = FrameStream(stream, limit_bytes=GREETING_BYTES, share=share)
        self.peer = self.place = stream.peer
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.is_client_only = False
        self.pongs: dict[int, _Awaited] = {}
        self.heard_s = -math.inf
        """When the other end said something last, on trio's clock; signs of life included."""
        self._tokens = itertools.count(1)
        self.close = self._frames.close
        self.send_frame = self._frames.send_frame
        self.wait_room = self._frames.wait_room

    @property
    def received_bytes(self) -> int:
        """All that has come."""
        return self._frames.received_bytes

    async def greet(self, build: str, name: str, role: str, facts: Plain) -> Greeting:
        """Exchanges greetings, whatever the other end's version and build are; comparing is `check_release`'s.

        Raises:
            ConnectionLost: it is gone.
            RemoteProtocolError: it is no end of a control connection.
        """
        self._frames.send([GREETING, VERSION, build, name, role, facts])
        with contextlib.suppress(ConnectionLost):  # it may have said why before it went
            await self._frames.flush()
        greeting = await self._frames.receive()
        if len(greeting) < 3 or greeting[0] != GREETING or type(greeting[1]) is not int:
            raise RemoteProtocolError(
                ErrorCode.NOT_NETSTACK, f"{self.peer} does not speak the control protocol of netstack"
            )
        if greeting[1] != VERSION:  # whatever else its greeting says
            theirs = shown_text(greeting[2], _BUILD_CHARACTERS) if type(greeting[2]) is str else ""
            return Greeting(greeting[1], theirs, "", "", {})
        if len(greeting) != 6:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting of {len(greeting)} parts"
            )
        _, version, theirs, their_name, their_role, their_facts = greeting
        if not (type(theirs) is type(their_name) is type(their_role) is str and type(their_facts) is dict):
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting of other types")
        self._frames.limit_bytes = MAX_FRAME_BYTES
        their_name = shown_text(their_name, _NAME_CHARACTERS)
        self.peer = self._frames.peer = f"{their_name} at {self.peer}"
        theirs = shown_text(theirs, _BUILD_CHARACTERS)
        told_s = their_facts.get("heartbeat_timeout_s")
        if isinstance(told_s, int | float) and told_s > 0:  # it wants to hear from us as often as that
            self.heartbeat_timeout_s = min(self.heartbeat_timeout_s, max(float(told_s), _LEAST_TIMEOUT_S))
        return Greeting(version, theirs, their_name, shown_text(their_role, _BUILD_CHARACTERS), their_facts)

    def expect_questions(self) -> None:
        """The other end only asks: of its frames none but a job has many parts."""
        self._frames.most_containers = _containers_of_question

    def send(self, message: Message) -> None:
        """Hands over a message; never waits. Does nothing when the other end is gone, which `receive` tells.

        Raises:
            ConfigError: it holds what is not plain data, or is too large.
        """
        self._frames.send(CODEC.encode(message))

    async def refuse(self, text: str) -> None:
        """Says why the connection is of no use; the caller closes it."""
        self.send(Refused(text))
        with contextlib.suppress(ConnectionLost, trio.ClosedResourceError):
            await self._frames.flush()

    async def receive(self) -> Message:
        """The next message that is no sign of life.

        Raises:
            ConnectionLost: the other end is gone, or was silent for the heartbeat timeout.
            RemoteProtocolError: it sent what is no message.

        Cancellation: nothing is lost; ask again.
        """
        while True:
            heard_bytes = self._frames.received_bytes
            with trio.move_on_after(self.heartbeat_timeout_s) as silence:
                message = CODEC.decode(await self._frames.receive())
            if silence.cancelled_caught:
                if self._frames.received_bytes > heard_bytes:  # part of a long message
                    continue
                raise ConnectionLost(
                    f"{self.peer} said nothing for {self.heartbeat_timeout_s:g} s: its host is down or cut off"
                )
            self.heard_s = trio.current_time()
            if isinstance(message, Ping):
                self.send(Pong(message.token, time.monotonic_ns()))
            elif isinstance(message, Pong):
                awaited = self.pongs.pop(message.token, None)
                if awaited is not None:
                    awaited.arrived(message.clock_ns)
            else:
                return message

    async def ping(self) -> tuple[int, int, int]:
        """Asks for the other end's clock; somebody has to be receiving.

        Returns:
            (our CLOCK_MONOTONIC before, theirs, ours after), in ns.

        Raises:
            ConnectionLost: the other end is gone.

        Cancellation: the answer is ignored when it comes.
        """
        awaited = _Awaited()
        token = next(self._tokens)
        self.pongs[token] = awaited
        sent_ns = time.monotonic_ns()
        self.send(Ping(token))
        try:
            await awaited.event.wait()
        finally:
            self.pongs.pop(token, None)
        if not awaited.arrived_ns:
            raise ConnectionLost(f"{self.peer} is gone")
        return sent_ns, awaited.clock_ns, awaited.arrived_ns

    def give_up(self) -> None:
        """Ends all waits for pongs: nothing will be received any more."""
        for awaited in self.pongs.values():
            awaited.event.set()

    async def run(self) -> None:
        """Writes what is sent and shows signs of life, until cancelled; then the connection is closed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._frames.run)
                while True:
                    await trio.sleep(self.heartbeat_timeout_s / 3)
                    self.send(Ping(0))
        finally:
            self.close()


def _containers_of_question(body: bytes) -> int:
    head = body[:_HEAD_BYTES]
    return MAX_DOCUMENT_CONTAINERS if b"\xa3Ask" in head and b"\xa6submit" in head else QUESTION_CONTAINERS


def full_build(build: str) -> str:
    """What a greeting says: the release, and what tells one state of its code from another."""
    return f"{__version__}+{build}"


def check_release(greeting: Greeting, build: str, peer: str) -> None:
    """Whether two ends work together.

    Args:
        greeting: of the other end.
        build: ours, as our greeting says it.
        peer: the other end, for the text.

    Raises:
        RequestRefused: they are of different releases.
    """
    if (greeting.version, greeting.build) != (VERSION, build):
        raise RequestRefused(
            f"{peer} runs netstack {greeting.build} with control protocol {greeting.version}, and this is"
            f" {build} with {VERSION}: install one release on every host, and restart what runs there"
        )


async def dial(
    url: str,
    *,
    role: str,
    name: str,
    facts: Plain,
    prove: Callable[[ByteStream], Awaitable[object]] | None = None,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    connect_timeout_s: float = 10.0,
) -> tuple[ControlLink, Greeting]:
    """Connects to a control port, and greets.

    Args:
        url: where; without a scheme it is `tcp://`. Of several with commas in between the first that answers.
        role: ours.
        name: ours, for people.
        facts: of ours.
        prove: proves the shared secret on the stream; None has none.
        heartbeat_timeout_s: a peer that is silent for so long is lost; less if the peer is less patient.
        connect_timeout_s: dialling, proof and greetings together, of each.

    Returns:
        The link, and what the other end says of itself. The caller runs and closes it.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or the other end has none.
        RequestRefused: it is another release.
        RemoteProtocolError: it is no control port, or one that wants a secret.

    Cancellation: the stream is closed.
    """
    connect = partial(
        _dial_one,
        role=role,
        name=name,
        facts=facts,
        prove=prove,
        heartbeat_timeout_s=heartbeat_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    *others, last = url.split(",")
    for each in others:
        with contextlib.suppress(ConnectionLost, OSError):
            return await connect(each)
    return await connect(last)


async def _dial_one(
    url: str,
    *,
    role: str,
    name: str,
    facts: Plain,
    prove: Callable[[ByteStream], Awaitable[object]] | None,
    heartbeat_timeout_s: float,
    connect_timeout_s: float,
) -> tuple[ControlLink, Greeting]:
    url = url if "://" in url else f"tcp://{url}"
    place = url.partition("://")[2]
    stream: ByteStream | None = None
    try:
        with trio.fail_after(connect_timeout_s):
            stream = await transport_for(url).connect(url)
            if prove is not None:
                await prove(stream)
            await write_route(stream, None)
            link = ControlLink(stream, heartbeat_timeout_s=heartbeat_timeout_s)
            build = full_build(own_build())
            greeting = await link.greet(build, name, role, facts)
            check_release(greeting, build, place)
    except BaseException as error:
        if stream is not None:
            stream.close()
        if isinstance(error, trio.TooSlowError):
            raise ConnectionLost(f"{place} did not answer within {connect_timeout_s:g} s") from None
        raise
    return link, greeting


def packed(message: Message) -> bytes:
    """A message as a frame, for `send_frame`.

    Raises:
        ConfigError: as `ControlLink.send`.
    """
    return pack(CODEC.encode(message))


@final
class _Awaited:
    """A pong that somebody waits for."""

    __slots__ = ("arrived_ns", "clock_ns", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.clock_ns = 0
        self.arrived_ns = 0

    def arrived(self, clock_ns: int) -> None:
        self.arrived_ns = time.monotonic_ns()
        self.clock_ns = clock_ns
        self.event.set()
