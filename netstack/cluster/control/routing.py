"""Routes: the first twenty bytes of a connection, which select control or the data of a network environment.

Takes: authenticated streams. Gives: control streams to the service, data streams to the listener of their environment.

A route is 4 bytes of magic (`NSDC` for control, `NSDR` for data) and 16 bytes: zeros for control; for data the ASCII id
of a job that has its own environment, or `SHARED`. It follows the proof of the shared secret, if there is one.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, final

import trio

from ...base.errors import ConfigError, ConnectionLost, ErrorCode, RemoteProtocolError
from ...base.text.safe_text import safe_repr
from ...base.transport import ByteStream, Listener

CONTROL: Final = b"NSDC"
DATA: Final = b"NSDR"
ROUTE_BYTES: Final = 20

SHARED: Final = "0" * 16
"""Id of the environment that the jobs of a TaskManager share."""

_ID_LENGTH: Final = 16
_WAITING_STREAMS: Final = 1024


def check_job_id(job_id: str) -> str:
    """Returns the job id after a check of its format.

    Raises:
        ConfigError: it is not 16 hex digits, or all of them are 0.
    """
    if len(job_id) != _ID_LENGTH or not set(job_id) <= set(string.hexdigits) or job_id == SHARED:
        raise ConfigError(f"job id {safe_repr(job_id, 40)}: must be 16 hex digits, not all 0; see netstack jobs")
    return job_id


async def write_route(stream: ByteStream, environment: str | None) -> None:
    """Sends the route of a dialled stream.

    Args:
        stream: connected and authenticated.
        environment: id of the environment whose data it carries, a job id or `SHARED`; None: control.

    Raises:
        ConnectionLost: the peer closed the connection.

    Cancellation: the stream is unusable afterwards.
    """
    route = CONTROL + bytes(_ID_LENGTH) if environment is None else DATA + environment.encode("ascii")
    left = memoryview(route)
    while left:
        await stream.wait_writable()
        left = left[stream.try_send((left,)) :]


async def read_route(stream: ByteStream) -> str | None:
    """Reads the route of an accepted stream, and no byte more: the id of an environment, or None for control.

    Raises:
        ConnectionLost: the peer closed the connection.
        RemoteProtocolError: the peer does not send a route, for example because it is an embedded environment.

    Cancellation: the stream is unusable afterwards.
    """
    route = bytearray(ROUTE_BYTES)
    left = memoryview(route)
    while left:
        count = stream.try_receive_into((left,))
        if count is None:
            await stream.wait_readable()
        elif count == 0:
            raise ConnectionLost(f"{stream.peer} closed the connection before it sent its route")
        else:
            left = left[count:]
    magic, rest = bytes(route[:4]), bytes(route[4:])
    if magic == CONTROL:
        return None
    if magic == DATA and rest.isalnum():
        return rest.decode("ascii")
    raise RemoteProtocolError(
        ErrorCode.NOT_NETSTACK,
        f"{stream.peer} began with {magic!r}: it is not a netstack process, or it uses a secret"
        " (--secret-file) and this process has none",
    )


@final
class RoutedListener(Listener):
    """Hands the data streams that the service accepts to the network environment that they belong to.

    Args:
        address: address at which other processes reach the service.
        on_dropped: called for each stream that is closed because the environment did not accept it.
    """

    def __init__(self, address: str, on_dropped: Callable[[ByteStream], None]) -> None:
        self.address = address
        self._on_dropped = on_dropped
        self._streams, self._accepted = trio.open_memory_channel[ByteStream](_WAITING_STREAMS)

    def put(self, stream: ByteStream) -> None:
        """Queues a stream for the environment; closes the stream if the environment is closing."""
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
        """Closes the listener and all streams that were not accepted."""
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
