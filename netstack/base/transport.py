"""The interface of transports, and their registry by URL scheme.

Takes: URLs. Gives: `ByteStream`s and `Listener`s to `network`.

The caller drives a stream by trying: `try_send` and `try_receive_into` never wait; `wait_writable` and `wait_readable`
do. So the caller chooses what to send at the moment the stream has room: nothing accumulates in an outbox, and a
priority event can still overtake data (trio's `wait_send_all_might_not_block` exists for the same reason). netstack's
own transports are registered by module name, so they work without an installation and beside any other package called
`transports`. Others are found through the entry-point group `netstack.transports`. A compound scheme such as
`impaired+tcp` selects the transport before the plus, which uses the transport after it.

Errors: transports translate `OSError` at this boundary: `ConnectionLost` for a broken stream; `listen` and `connect`
raise `OSError` subclasses with the address in the text.
"""

from __future__ import annotations

import abc
import functools
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeAlias, final
from urllib.parse import SplitResult, urlsplit

import trio

from .errors import ConfigError, ConnectionLost
from .text.safe_text import safe_error, safe_repr, safe_text, type_text

Piece: TypeAlias = "bytes | bytearray | memoryview"

_OWN: Final = {
    "tcp": ("netstack_transports.tcp", "TcpTransport"),
    "unix": ("netstack_transports.unix", "UnixTransport"),
    "memory": ("netstack_transports.memory", "MemoryTransport"),
    "shm": ("netstack_transports.shm", "ShmTransport"),
    # Over another transport: impaired+tcp, impaired+unix, impaired+memory, impaired+yours.
    "impaired": ("netstack_transports.impaired", "ImpairedTransport"),
    # Over another transport: tls+tcp, tls+unix, impaired+tls+tcp.
    "tls": ("netstack_transports.tls", "TlsTransport"),
}
"""Module and class of netstack's own transports, by scheme."""


class ByteStream(abc.ABC):
    """A connected, reliable, ordered stream of bytes in both directions.

    One task may wait for each direction: a second task in `wait_readable`, or in `wait_writable`, gets
    `trio.BusyResourceError`, and the first one continues to wait. Pieces and windows are contiguous memory of any
    native items; all counts are bytes. `netstack.TrioStream` makes a `trio.abc.Stream` of a stream.
    """

    peer: str
    """The name of the peer, for messages."""

    @abc.abstractmethod
    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Sends as many bytes of `pieces` as the stream has room for, in order.

        Returns:
            The number of bytes taken; 0 if the stream is full. The caller may reuse the memory of taken bytes.

        Raises:
            ConnectionLost: the stream broke.
        """

    @abc.abstractmethod
    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Fills `windows` in order with received bytes.

        Returns:
            The number of bytes stored; 0 at the end of the stream; None if no data has arrived.

        Raises:
            ConnectionLost: the stream broke.
            ValueError: data or the end has come, and no window has room for a byte: 0 would look like the end.
        """

    @abc.abstractmethod
    async def wait_writable(self) -> None:
        """Waits until `try_send` may take at least one byte. Cancellation: no effect on the stream.

        Raises:
            trio.BusyResourceError: another task waits here.
            trio.ClosedResourceError: this end was closed.
        """

    @abc.abstractmethod
    async def wait_readable(self) -> None:
        """Waits until `try_receive_into` would not return None. Cancellation: no effect on the stream.

        Raises:
            trio.BusyResourceError: another task waits here.
            trio.ClosedResourceError: this end was closed.
        """

    @abc.abstractmethod
    def send_eof(self) -> None:
        """Ends the sending direction: the peer reads the end of the stream. No effect on a closed stream."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes at once, without waiting; idempotent. Tasks in `wait_*` get `trio.ClosedResourceError`."""

    @property
    def is_suspended(self) -> bool:
        """Whether a resumable stream currently has no connection underneath. Always False for other streams."""
        return False

    def break_off(self) -> bool:
        """Called when the peer is silent: drops the connection underneath, if the stream is resumable.

        Returns:
            Whether it did, so that the stream may resume over a new connection.
        """
        return False

    async def keep_sending(self) -> None:
        """Resends lost data after `send_eof`, if the stream is resumable. Does not return."""
        await trio.sleep_forever()

    def tcp_facts(self) -> dict[str, str | int]:
        """Facts about the connection for reports, such as congestion control and buffer sizes; may be empty."""
        return {}

    def limit_buffers(self, *, received_bytes: int, unsent_bytes: int) -> None:
        """Asks the kernel to hold about so many received and unread bytes, and so many that it could not send yet."""
        return

    def round_trip_s(self) -> float:
        """The shortest round trip of the connection so far, in seconds, without queues; 0 where it is not known."""
        return 0.0

    def endpoints(self) -> tuple[str, str]:
        """Our own address and the peer's in the network (`10.0.0.1:6121`); empty strings if unknown.

        Unless the network translates addresses, the peer's `endpoints` are the same pair in reverse.
        """
        return "", ""

    def certificate_names(self) -> tuple[str, ...] | None:
        """The names and IP addresses for which the peer's certificate is valid; None where names are not checked."""
        return None

    def descriptor(self) -> int | None:
        """The file descriptor that is readable exactly when `try_receive_into` would not return None; None without one.

        The stream owns the descriptor.
        """
        return None

    def has_come(self) -> bool | None:
        """Whether `try_receive_into` would return data or raise; None if only a system call can tell.

        If this, or `descriptor`, is not None, a wait may poll for a moment before it parks.
        """
        return None

    def channel_binding(self) -> bytes:
        """A value that only the two ends of an encrypted stream share; empty without encryption."""
        return b""


@final
class OneWaiter:
    """Held by the task that waits for one direction of a stream; refuses a second one."""

    __slots__ = ("_is_held", "_text")

    def __init__(self, direction: str, peer: str) -> None:
        """Args: what the task waits to do, such as `read from`; the peer."""
        self._is_held = False
        self._text = f"another task already waits to {direction} {peer}; one task may wait for each direction"

    def __enter__(self) -> None:
        """Begins to wait. Raises trio.BusyResourceError if another task waits."""
        if self._is_held:
            raise trio.BusyResourceError(self._text)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


def byte_view(memory: Piece) -> memoryview:
    """The same memory as bytes, whatever its items are."""
    view = memoryview(memory)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def check_room(windows: Sequence[memoryview]) -> None:
    """Raises ValueError if no window has room for a byte; to be called before 0 is returned."""
    if not any(window.nbytes for window in windows):
        raise ValueError(
            f"nothing can be received into {len(windows)} windows without room; give one of at least 1 byte"
        )


class Listener(abc.ABC):
    """Accepts streams at an address."""

    address: str
    """The URL to dial, with the actual port."""

    @abc.abstractmethod
    async def accept(self) -> ByteStream:
        """Waits for the next stream. Cancellation: no stream is lost."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops accepting; idempotent."""


class Transport(abc.ABC):
    """The transport of one URL scheme."""

    @abc.abstractmethod
    async def listen(self, url: str) -> Listener:
        """Binds to `url`.

        Raises:
            OSError: the address cannot be bound (in use, not of this host, no permission); the text names it.
            ConfigError: the URL is not valid for this scheme.
        """

    @abc.abstractmethod
    async def connect(self, url: str) -> ByteStream:
        """Dials `url`. Raises `ConnectionLost` with the address if nobody answers."""

    def unsupported(self) -> str:
        """Why this process cannot use the transport; empty if it can."""
        return ""

    def stream_of(self, sock: socket.socket, peer: str) -> ByteStream:
        """A stream over a connected socket, such as one end of a pair; the stream owns the socket.

        Raises:
            ConfigError: the streams of this transport are more than a socket.
        """
        sock.close()
        raise ConfigError(f"{type(self).__name__} has no stream for the socket of {peer}; use unix://")


def transport_for(url: str) -> Transport:
    """Returns the transport for a URL.

    Raises:
        ConfigError: the URL is not text, has no scheme, or neither netstack nor an installed distribution provides it.
    """
    if not isinstance(url, str):
        raise ConfigError(f"address {url!r} of type {type(url).__name__}; give it as str, like tcp://127.0.0.1:6121")
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"address {url!r} has no scheme; write it like tcp://127.0.0.1:6121")
    first = scheme.partition("+")[0]
    return _PROVIDED.get(first) or _load(first)


@contextmanager
def provided(scheme: str, transport: Transport) -> Iterator[None]:
    """Registers a transport for a scheme in this process, within the block.

    Raises:
        ConfigError: the scheme belongs to netstack or to another block.
    """
    if scheme in _OWN or scheme in _PROVIDED:
        raise ConfigError(f"scheme {scheme!r} is taken; choose another one")
    _PROVIDED[scheme] = transport
    try:
        yield
    finally:
        del _PROVIDED[scheme]


_PROVIDED: Final[dict[str, Transport]] = {}
"""The transports registered by `provided`."""


@functools.cache
def _load(scheme: str) -> Transport:
    if scheme in _OWN:
        module, name = _OWN[scheme]
        own = getattr(import_module(module), name)()
        assert isinstance(own, Transport)
        return own
    known = entry_points(group="netstack.transports")
    for entry in known:
        if entry.name == scheme:
            return _loaded(entry)
    names = ", ".join(sorted({*_OWN, *(safe_text(entry.name, 40) for entry in known)}))
    raise ConfigError(f"no transport for scheme {safe_repr(scheme, 80)}; known: {names}")


def _loaded(entry: EntryPoint) -> Transport:
    """Creates the transport of an installed distribution. Raises ConfigError whatever its code does."""
    what = f"the transport of scheme {safe_repr(entry.name, 80)}, entry point {safe_repr(entry.value, 80)}"
    try:
        transport: object = entry.load()()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing may run any code, also sys.exit()
        raise ConfigError(f"{what}, cannot be loaded: {safe_error(error)}") from error
    if not isinstance(transport, Transport):
        raise ConfigError(f"{what}, is {type_text(transport)} instead of a Transport")
    return transport


def full_url(address: str) -> str:
    """An address with its scheme; `10.0.0.1:6120` means TCP."""
    return address if "://" in address else f"tcp://{address}"


def url_parts(url: str) -> SplitResult:
    """Parses an address and checks its port.

    Raises:
        ConfigError: the address or its port is not valid; the text says why.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"address {safe_repr(url)} cannot be read: {error}") from error
    return parts


def told_address(url: str) -> str:
    """Returns the address that peers should dial: without TLS parameters, which concern only this process.

    Parameters of an impaired line are kept, because both ends need them.

    Raises:
        ConfigError: the address is not valid.
    """
    parts = url_parts(url)
    return url if "tls" not in parts.scheme.split("+") else url.partition("?")[0]


def is_private(url: str) -> bool:
    """Whether an address is reachable from this host only."""
    parts = url_parts(url)
    if parts.scheme.rpartition("+")[2] in ("unix", "memory", "shm") or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False  # a host name: DNS decides where it leads


RECEIVE_BYTES: Final = 64 * 1024
"""The most that `receive_some` returns unless the caller says otherwise, as for trio's own sockets."""


@final
class TrioStream(trio.abc.HalfCloseableStream):
    """Keeps trio's contract: checked by `trio.testing.check_half_closeable_stream` on every transport."""

    def __init__(self, stream: ByteStream) -> None:
        """Args: a connected stream, owned from now on, such as `await transport_for(url).connect(url)`."""
        self.transport_stream = stream
        """What it is made of, for `endpoints`, `tcp_facts` and the like."""
        self._sender = OneWaiter("send to", stream.peer)
        self._receiver = OneWaiter("receive from", stream.peer)
        self._has_ended = False
        self._is_closed = False

    async def send_all(self, data: Piece) -> None:
        """Sends all of `data`. Cancellation: an unknown part of it was sent.

        Raises:
            trio.BusyResourceError: another task sends.
            trio.BrokenResourceError: the stream broke.
            trio.ClosedResourceError: `aclose` or `send_eof` was called.
        """
        with self._sender:
            await trio.lowlevel.checkpoint()
            rest = byte_view(data)
            while True:
                self._check_open()
                if self._has_ended:
                    raise trio.ClosedResourceError(
                        f"the direction to {self.transport_stream.peer} was ended by send_eof"
                    )
                if not rest:
                    return
                try:
                    rest = rest[self.transport_stream.try_send((rest,)) :]
                except ConnectionLost as error:
                    raise trio.BrokenResourceError(str(error)) from error
                if rest:
                    await self.transport_stream.wait_writable()

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until there is room. Raises as `send_all` does, except that a broken stream may count as room."""
        with self._sender:
            await self.transport_stream.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        """Waits for data, and returns at most `max_bytes` of it; nothing at the end. Cancellation: nothing is lost.

        Raises:
            trio.BusyResourceError: another task receives.
            trio.BrokenResourceError: the stream broke.
            trio.ClosedResourceError: `aclose` was called.
        """
        if max_bytes is None:
            max_bytes = RECEIVE_BYTES
        elif not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is {max_bytes!r} of type {type(max_bytes).__name__}; give an int")
        elif max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; give at least 1")
        with self._receiver:
            await trio.lowlevel.checkpoint()
            data = bytearray(max_bytes)
            while True:
                self._check_open()
                try:
                    count = self.transport_stream.try_receive_into((memoryview(data),))
                except ConnectionLost as error:
                    raise trio.BrokenResourceError(str(error)) from error
                if count is not None:
                    del data[count:]
                    return data
                await self.transport_stream.wait_readable()

    async def send_eof(self) -> None:
        """Ends our direction; the peer can still send. Idempotent. Raises as `send_all` does."""
        with self._sender:
            await trio.lowlevel.checkpoint()
            self._check_open()
            self._has_ended = True
            self.transport_stream.send_eof()

    async def aclose(self) -> None:
        """Closes at once, also if cancelled; idempotent."""
        self._is_closed = True
        self.transport_stream.close()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(f"the stream to {self.transport_stream.peer} was closed")
