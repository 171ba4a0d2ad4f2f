"""One end of a control connection: greetings, messages, heartbeats.

Takes: an authenticated stream. Gives: messages; `ConnectionLost` when the peer disconnects or is silent.

Each end begins with one document: [`netstack control`, version, build, name, role, facts]. Messages follow. Each end
sends at least once per third of the heartbeat timeout. A peer that is silent for the whole timeout is lost; this
detects dead hosts and cut cables.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

import trio

from ...base.errors import ConnectionLost, ErrorCode, RemoteProtocolError, RequestRefused
from ...base.text.bounded_msgpack import MAX_DOCUMENT_CONTAINERS
from ...base.text.safe_text import safe_text
from ...base.transport import ByteStream, full_url, transport_for
from ...base.version import __version__
from .build import own_build
from .codec import Message, Plain
from .frames import MAX_FRAME_BYTES, FrameStream, LoopShare, pack
from .messages import CODEC, GREETING, VERSION, Ping, Pong, Refused
from .routing import write_route

GREETING_BYTES: Final = 1 << 16
"""Longest document accepted before the greeting is complete."""

HEARTBEAT_TIMEOUT_S: Final = 10.0

TASKMANAGER: Final = "taskmanager"
JOBMANAGER: Final = "jobmanager"
CLIENT: Final = "client"
SUBSCRIBER: Final = "subscriber"

QUESTION_CONTAINERS: Final = 1 << 14
"""Maximum number of lists and maps in a request other than `submit`: decoding takes about 10 ms."""

_HEAD_BYTES: Final = 24  # the kind of a message, its token, and the name of the request
_LEAST_TIMEOUT_S: Final = 0.1  # so that a peer cannot demand a flood of heartbeats
_BUILD_CHARACTERS: Final = 64
_NAME_CHARACTERS: Final = 256


@final
@dataclass(frozen=True, slots=True)
class Greeting:
    """The first document from each end.

    Attributes:
        build: release and source fingerprint (`build.own_build`): `0.4.0+1a2b3c4d5e6f`.
        name: name of the process for error texts.
        role: `taskmanager`, `jobmanager`, `client` or `subscriber`.
        facts: for a TaskManager its slots, memory, host and session (`TaskManager.facts`).
    """

    version: int
    build: str
    name: str
    role: str
    facts: Plain


class MessageLink(Protocol):
    """The interface that `ControlLink` and `ThreadedLink` share."""

    peer: str
    """Name of the other end for error texts."""

    def send(self, message: Message) -> None:
        """Sends a message; never waits."""

    async def wait_room(self) -> None:
        """Waits until few bytes are unsent."""

    async def receive(self) -> Message:
        """Waits for the next message."""


@final
class ControlLink:
    """One end of a control connection: call `greet`, then `run` in one task and `receive` in another.

    Attributes:
        peer: name of the other end for error texts; includes its own name after the greeting.
        place: address of the other end, `host:port`.
        heartbeat_timeout_s: a peer that is silent for this long is lost.
        is_client_only: whether the peer proved the clients' secret instead of the cluster's.
    """

    def __init__(self, stream: ByteStream, *, heartbeat_timeout_s: float, share: LoopShare | None = None) -> None:
        """`share`, if given, bounds the event-loop time that the peer's messages use."""
        self._frames = FrameStream(stream, limit_bytes=GREETING_BYTES, share=share)
        self.peer = self.place = stream.peer
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.is_client_only = False
        self.pongs: dict[int, _Awaited] = {}
        self.heard_s = -math.inf
        """Time of the last message from the peer on trio's clock, heartbeats included."""
        self._tokens = itertools.count(1)
        self._certificate_names = stream.certificate_names
        self.close = self._frames.close
        self.send_frame = self._frames.send_frame
        self.wait_room = self._frames.wait_room

    @property
    def received_bytes(self) -> int:
        """Bytes received so far."""
        return self._frames.received_bytes

    @property
    def certificate_names(self) -> tuple[str, ...] | None:
        """The names for which the peer's certificate is valid; None without TLS, and where names are not checked."""
        return self._certificate_names()

    @property
    def message_bytes(self) -> int:
        """Length of the last received message."""
        return self._frames.document_bytes

    async def greet(self, build: str, name: str, role: str, facts: Plain) -> Greeting:
        """Exchanges greetings: `send_greeting`, then `receive_greeting`, as who dials does."""
        await self.send_greeting(build, name, role, facts)
        return await self.receive_greeting()

    async def send_greeting(self, build: str, name: str, role: str, facts: Plain) -> None:
        """Sends the greeting of this end."""
        self._frames.send([GREETING, VERSION, build, name, role, facts])
        with contextlib.suppress(ConnectionLost):  # the peer may have sent a reason before it closed
            await self._frames.flush()

    async def receive_greeting(self) -> Greeting:
        """Waits for the peer's greeting; accepts any version and build, which `check_release` compares.

        Raises:
            ConnectionLost: the peer closed the connection.
            RemoteProtocolError: the peer does not speak the control protocol.
        """
        greeting = await self._frames.receive()
        if len(greeting) < 3 or greeting[0] != GREETING or type(greeting[1]) is not int:
            raise RemoteProtocolError(
                ErrorCode.NOT_NETSTACK,
                f"{self.peer} does not speak netstack's control protocol; check the address and port",
            )
        if greeting[1] != VERSION:  # later fields may differ between versions
            theirs = safe_text(greeting[2], _BUILD_CHARACTERS) if type(greeting[2]) is str else ""
            return Greeting(greeting[1], theirs, "", "", {})
        if len(greeting) != 6:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting with {len(greeting)} fields instead of 6"
            )
        _, version, theirs, their_name, their_role, their_facts = greeting
        if not (type(theirs) is type(their_name) is type(their_role) is str and type(their_facts) is dict):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting with fields of wrong types"
            )
        self._frames.limit_bytes = MAX_FRAME_BYTES
        their_name = safe_text(their_name, _NAME_CHARACTERS)
        self.peer = self._frames.peer = f"{their_name} at {self.peer}"
        theirs = safe_text(theirs, _BUILD_CHARACTERS)
        their_timeout_s = their_facts.get("heartbeat_timeout_s")
        if isinstance(their_timeout_s, int | float) and their_timeout_s > 0:  # we must send as often as the peer needs
            self.heartbeat_timeout_s = min(self.heartbeat_timeout_s, max(float(their_timeout_s), _LEAST_TIMEOUT_S))
        return Greeting(version, theirs, their_name, safe_text(their_role, _BUILD_CHARACTERS), their_facts)

    def expect_questions(self) -> None:
        """Limits the size of the peer's documents, since a client sends only requests, and only jobs are large."""
        self._frames.most_containers = _containers_of_question

    def send(self, message: Message) -> None:
        """Queues a message; never waits. Does nothing when the peer is lost; `receive` raises then.

        Raises:
            ConfigError: the message is not plain data, or is too large.
        """
        self._frames.send(CODEC.encode(message))

    async def refuse(self, text: str) -> None:
        """Sends the reason why this end rejects the connection; the caller closes it."""
        self.send(Refused(text))
        with contextlib.suppress(ConnectionLost, trio.ClosedResourceError):
            await self._frames.flush()

    async def receive(self) -> Message:
        """Waits for the next message other than a heartbeat.

        Raises:
            ConnectionLost: the peer closed the connection, or was silent for the heartbeat timeout.
            RemoteProtocolError: the peer sent a malformed message.

        Cancellation: loses nothing; call again.
        """
        while True:
            heard_bytes = self._frames.received_bytes
            with trio.move_on_after(self.heartbeat_timeout_s) as silence:
                message = CODEC.decode(await self._frames.receive())
            if silence.cancelled_caught:
                if self._frames.received_bytes > heard_bytes:  # part of a long message
                    continue
                raise ConnectionLost(
                    f"{self.peer} was silent for {self.heartbeat_timeout_s:g} s:"
                    " its host is down, or the network is cut"
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
        """Requests the peer's clock; another task must call `receive` meanwhile.

        Returns:
            (our CLOCK_MONOTONIC before, the peer's, ours after), in ns.

        Raises:
            ConnectionLost: the connection is lost.

        Cancellation: a late answer is ignored.
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
            raise ConnectionLost(f"the connection to {self.peer} is lost")
        return sent_ns, awaited.clock_ns, awaited.arrived_ns

    def fail_pings(self) -> None:
        """Makes all pending `ping` calls raise, because nothing more will be received."""
        for awaited in self.pongs.values():
            awaited.event.set()

    async def run(self) -> None:
        """Writes messages and heartbeats until cancelled; then closes the connection."""
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
    """Returns the build as a greeting carries it: release, then source fingerprint."""
    return f"{__version__}+{build}"


def check_release(greeting: Greeting, build: str, peer: str) -> None:
    """Checks that both ends run the same release.

    Raises:
        RequestRefused: the releases differ.
    """
    if (greeting.version, greeting.build) != (VERSION, build):
        raise RequestRefused(
            f"{peer} runs netstack {greeting.build} with control protocol {greeting.version}; this process runs"
            f" {build} with {VERSION}: install one release on every host and restart netstack there"
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
    """Connects to a control port and exchanges greetings.

    Args:
        url: address; `tcp://` without a scheme. Comma-separated addresses are tried in order.
        role: role of this process.
        name: name of this process for people.
        facts: facts of this process for the greeting.
        prove: proves the shared secret on the stream; None: no secret.
        heartbeat_timeout_s: a peer that is silent for this long is lost; the peer's own timeout may lower it.
        connect_timeout_s: limit for connect, proof and greetings together, for each address.

    Returns:
        The link and the peer's greeting. The caller runs and closes the link.

    Raises:
        ConnectionLost: no address answers.
        AuthenticationFailed: the secrets differ, or the peer has none.
        RequestRefused: the peer runs another release.
        RemoteProtocolError: the address is not a control port, or it requires a secret.

    Cancellation: closes the stream.
    """

    async def connect(address: str) -> tuple[ControlLink, Greeting]:
        url = full_url(address)
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

    failures: list[ConnectionLost | OSError] = []
    for each in url.split(","):
        try:
            return await connect(each)
        except (ConnectionLost, OSError) as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise ConnectionLost("; ".join(map(str, failures))) from failures[-1]


def packed(message: Message) -> bytes:
    """Returns a message as a frame for `send_frame`.

    Raises:
        ConfigError: the message is not plain data, or is too large.
    """
    return pack(CODEC.encode(message))


@final
class _Awaited:
    __slots__ = ("arrived_ns", "clock_ns", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.clock_ns = 0
        self.arrived_ns = 0

    def arrived(self, clock_ns: int) -> None:
        self.arrived_ns = time.monotonic_ns()
        self.clock_ns = clock_ns
        self.event.set()
