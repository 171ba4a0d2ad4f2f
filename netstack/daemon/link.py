"""One end of a control connection with a daemon: greetings, messages, signs of life.

Takes: a stream that has been let in. Gives: messages; `ConnectionLost` when the other end is gone or silent.

A connection begins with one document from each end: [`netstack taskmanager`, version, build, name, facts]. Then
messages. Either end is heard at least every third of the heartbeat timeout; silence for all of it is a lost peer, which
is how the death of a host or a cut cable is noticed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass
from typing import Final, final

import trio

from ..control.frames import MAX_FRAME_BYTES, FrameStream
from ..errors import ConnectionLost, ErrorCode, RemoteProtocolError
from ..transport import ByteStream
from .messages import GREETING, VERSION, Message, Ping, Plain, Pong, Refused, decode, encode

GREETING_BYTES: Final = 1 << 16
"""Longest document before the other end has said who it is."""

_BUILD_CHARACTERS: Final = 64
_NAME_CHARACTERS: Final = 256


@final
@dataclass(frozen=True, slots=True)
class Greeting:
    """What an end says of itself.

    Attributes:
        version: of the control protocol.
        build: of the code (`build.own_build`), after the release: `0.3.0+1a2b3c4d5e6f`.
        name: for messages.
        facts: a daemon's: slots, memory, host.
    """

    version: int
    build: str
    name: str
    facts: Plain


@final
class DaemonLink:
    """One end: `greet`, then `run` beside `receive`."""

    def __init__(self, stream: ByteStream, *, heartbeat_timeout_s: float) -> None:
        self._frames = FrameStream(stream, limit_bytes=GREETING_BYTES)
        self.peer = stream.peer
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.pongs: dict[int, _Awaited] = {}
        self._tokens = itertools.count(1)
        self.close = self._frames.close

    async def greet(self, build: str, name: str, facts: Plain) -> Greeting:
        """Exchanges greetings, whatever the other end's version and build are; comparing is the caller's.

        Raises:
            ConnectionLost: it is gone.
            RemoteProtocolError: it is no end of a daemon's connection.
        """
        self._frames.send([GREETING, VERSION, build, name, facts])
        with contextlib.suppress(ConnectionLost):  # it may have said why before it went
            await self._frames.flush()
        said = await self._frames.receive()
        if len(said) < 3 or said[0] != GREETING or type(said[1]) is not int:
            raise RemoteProtocolError(
                ErrorCode.NOT_NETSTACK, f"{self.peer} does not speak the protocol of netstack taskmanager"
            )
        if said[1] != VERSION:  # whatever else its greeting says
            return Greeting(said[1], str(said[2])[:_BUILD_CHARACTERS], "", {})
        if len(said) != 5:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting of {len(said)} parts")
        _, version, theirs, their_name, their_facts = said
        if not (type(theirs) is str and type(their_name) is str and type(their_facts) is dict):
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{self.peer} sent a greeting of other types")
        self._frames.limit_bytes = MAX_FRAME_BYTES
        self.peer = self._frames.peer = f"{their_name[:_NAME_CHARACTERS]} at {self.peer}"
        return Greeting(version, theirs[:_BUILD_CHARACTERS], their_name, their_facts)

    def send(self, message: Message) -> None:
        """Hands over a message; never waits. Does nothing when the other end is gone, which `receive` tells.

        Raises:
            ConfigError: it holds what is not plain data, or is too large.
        """
        self._frames.send(encode(message))

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
                message = decode(await self._frames.receive())
            if silence.cancelled_caught:
                if self._frames.received_bytes > heard_bytes:  # part of a long message
                    continue
                raise ConnectionLost(
                    f"{self.peer} said nothing for {self.heartbeat_timeout_s:g} s: its host is down or cut off"
                )
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
        """Nothing will be received any more: whoever waits for a pong learns of it."""
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
