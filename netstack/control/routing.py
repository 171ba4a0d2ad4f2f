"""What a connection is for, said in its first twenty bytes: control, or the data of a network environment.

Takes: streams that have been let in. Gives: control streams to the service, data streams to the listener of their
environment.

A route: 4 bytes of magic, `NSDC` for control or `NSDR` for data; then 16 bytes: of a data stream an id in ASCII, that
of a job which has an environment of its own or `SHARED`; of a control stream zeros. It follows the proof of the shared
secret, if there is one.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, final

import trio

from ..errors import ConfigError, ConnectionLost, ErrorCode, RemoteProtocolError
from ..shown import shown
from ..transport import ByteStream, Listener

CONTROL: Final = b"NSDC"
DATA: Final = b"NSDR"
ROUTE_BYTES: Final = 20

SHARED: Final = "0" * 16
"""Names the environment that the jobs of a TaskManager share."""

_ID_LENGTH: Final = 16
_WAITING_STREAMS: Final = 1024


def check_job_id(job_id: str) -> str:
    """The id itself.

    Raises:
        ConfigError: it is not 16 hex digits, or all of them are 0.
    """
    if len(job_id) != _ID_LENGTH or not set(job_id) <= set(string.hexdigits) or job_id == SHARED:
        raise ConfigError(f"job id {shown(job_id, 40)}: give 16 hex digits that are not all 0")
    return job_id


async def write_route(stream: ByteStream, environment: str | None) -> None:
    """Says what a dialled stream is for.

    Args:
        stream: connected, and let in.
        environment: whose data it carries, the id of a job or `SHARED`; None is control.

    Raises:
        ConnectionLost: the peer is gone.

    Cancellation: the stream is of no use afterwards.
    """
    route = CONTROL + bytes(_ID_LENGTH) if environment is None else DATA + environment.encode("ascii")
    left = memoryview(route)
    while left:
        await stream.wait_writable()
        left = left[stream.try_send((left,)) :]


async def read_route(stream: ByteStream) -> str | None:
    """What an accepted stream is for: the id of an environment; None for control. Reads not one byte more.

    Raises:
        ConnectionLost: the peer is gone.
        RemoteProtocolError: it is something else, such as an embedded environment, which has no control.

    Cancellation: the stream is of no use afterwards.
    """
    route = bytearray(ROUTE_BYTES)
    left = memoryview(route)
    while left:
        count = stream.try_receive_into((left,))
        if count is None:
            await stream.wait_readable()
        elif count == 0:
            raise ConnectionLost(f"{stream.peer} went before it said what it wants")
        else:
            left = left[count:]
    magic, rest = bytes(route[:4]), bytes(route[4:])
    if magic == CONTROL:
        return None
    if magic == DATA and rest.isalnum():
        return rest.decode("ascii")
    raise RemoteProtocolError(
        ErrorCode.NOT_NETSTACK,
        f"{stream.peer} began with {magic!r}: that is no netstack command or service; or it has a secret"
        " (--secret-file) and this process has none",
    )


@final
class RoutedListener(Listener):
    """Gives a network environment the data streams that the service accepted for it.

    Attributes:
        address: how others reach the service.
    """

    def __init__(self, address: str, on_dropped: Callable[[ByteStream], None]) -> None:
        """A listener that listens nowhere.

        Args:
            address: see above.
            on_dropped: told of each stream that is closed here because nobody accepted it.
        """
        self.address = address
        self._on_dropped = on_dropped
        self._streams, self._accepted = trio.open_memory_channel[ByteStream](_WAITING_STREAMS)

    def put(self, stream: ByteStream) -> None:
        """Hands over a stream; it is closed here when the environment is closing."""
        try:
            self._streams.send_nowait(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.WouldBlock):
            self._drop(stream)

    async def accept(self) -> ByteStream:
        """Waits for the next stream, as `Listener.accept` does."""
        try:
            return await self._accepted.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError("the environment is closing") from None

    def close(self) -> None:
        """Closes what was not accepted too."""
        self._streams.close()
        while True:
            try:
                self._drop(self._accepted.receive_nowait())
            except (trio.EndOfChannel, trio.ClosedResourceError):
                break
        self._accepted.close()

    def _drop(self, stream: ByteStream) -> None:
        stream.close()
        self._on_dropped(stream)
