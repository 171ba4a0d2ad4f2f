"""What a transport implements, and how one is found by URL scheme.

Takes: URLs. Gives: `ByteStream`s and `Listener`s to `runtime`.

A stream is driven by trying: `try_send` and `try_receive_into` never wait, `wait_writable` and `wait_readable` do. The
caller decides what to send at the moment the stream has room, so nothing piles up in an outbox and a priority event can
still overtake (trio's `wait_send_all_might_not_block` exists for the same reason). netstack's own schemes are
those of the folder beside it (`parts`), so they are there without an installation and whatever else is called
`transports`; others are found through the entry-point group `netstack.transports`. A compound scheme such as
`impaired+tcp` belongs to the transport before the plus, which finds the one underneath by what comes after it.

Errors: transports translate `OSError` once, here at the edge: `ConnectionLost` for a stream that broke, `OSError`
subclasses only from `listen` and `connect`, with the address in the text.
"""

from __future__ import annotations

import abc
import functools
import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import trio

from .errors import ConfigError
from .shown import shown

Piece: TypeAlias = "bytes | bytearray | memoryview"

_OWN: Final = {
    "tcp": ("netstack.transports.tcp", "TcpTransport"),
    "unix": ("netstack.transports.unix", "UnixTransport"),
    "memory": ("netstack.transports.memory", "MemoryTransport"),
    "shm": ("netstack.transports.shm", "ShmTransport"),
    # A transport over another one: impaired+tcp, impaired+unix, impaired+memory, impaired+yours.
    "impaired": ("netstack.transports.impaired", "ImpairedTransport"),
    # And TLS over another one: tls+tcp, tls+unix, impaired+tls+tcp.
    "tls": ("netstack.transports.tls", "TlsTransport"),
}
"""Module and class of each scheme that netstack brings."""


class ByteStream(abc.ABC):
    """A connected, reliable, ordered stream of bytes in both directions."""

    peer: str
    """Who is at the other end, for messages."""

    @abc.abstractmethod
    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Hands over as many bytes of `pieces` as there is room for, in order.

        Returns:
            The number of bytes taken; 0 when the stream is full. The pieces may be changed afterwards.

        Raises:
            ConnectionLost: the peer is gone.
        """

    @abc.abstractmethod
    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Fills `windows` in order with what has arrived.

        Returns:
            The number of bytes stored; 0 at the end of the stream; None when nothing is there yet.

        Raises:
            ConnectionLost: the stream broke.
        """

    @abc.abstractmethod
    async def wait_writable(self) -> None:
        """Waits until `try_send` may take at least one byte. Cancellation: nothing changed."""

    @abc.abstractmethod
    async def wait_readable(self) -> None:
        """Waits until `try_receive_into` would not return None. Cancellation: nothing changed."""

    @abc.abstractmethod
    def send_eof(self) -> None:
        """Ends this direction; the peer reads its end of stream. Harmless when already closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes at once, without waiting; idempotent. Tasks inside `wait_*` get `trio.ClosedResourceError`."""

    @property
    def is_suspended(self) -> bool:
        """Whether nothing can be sent or received until there is another line underneath. Never, for most streams."""
        return False

    def break_off(self) -> bool:
        """The peer is silent. Returns whether the stream has given up its line and may go on over another one."""
        return False

    async def keep_sending(self) -> None:
        """After `send_eof`: sends again what was lost with a line, if the stream outlives that. Does not return."""
        await trio.sleep_forever()

    def tcp_facts(self) -> dict[str, str | int]:
        """Facts about the connection for reports: congestion control, buffer sizes. Empty where there are none."""
        return {}

    def endpoints(self) -> tuple[str, str]:
        """Our own end and the peer's, as the network knows them (`10.0.0.1:6121`); empty where it knows none.

        What one end calls its peer's is what the other calls its own, unless something between them translates.
        """
        return "", ""

    def descriptor(self) -> int | None:
        """The descriptor that is readable exactly when `try_receive_into` has something to give; None without one.

        It belongs to the stream.
        """
        return None

    def has_come(self) -> bool | None:
        """Whether `try_receive_into` has something to give, or would raise; None where only a system call tells that.

        Of a stream that knows, or has a `descriptor`, a wait may begin with a few looks at it instead of a wake-up.
        """
        return None

    def channel_binding(self) -> bytes:
        """What both ends of an encrypted stream know and nobody between them can cause; empty without encryption."""
        return b""


class Listener(abc.ABC):
    """Accepts streams at an address."""

    address: str
    """The URL to dial, with the port that was really bound."""

    @abc.abstractmethod
    async def accept(self) -> ByteStream:
        """Waits for the next stream. Cancellation: nothing is lost."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops accepting; idempotent."""


class Transport(abc.ABC):
    """One URL scheme."""

    @abc.abstractmethod
    async def listen(self, url: str) -> Listener:
        """Binds to `url`.

        Raises:
            OSError: the address cannot be bound (in use, not of this host, no permission); the text names it.
            ConfigError: the URL is not one of this scheme.
        """

    @abc.abstractmethod
    async def connect(self, url: str) -> ByteStream:
        """Dials `url`. Raises `ConnectionLost` naming the address when nobody answers."""


def transport_for(url: str) -> Transport:
    """The transport of a URL's scheme.

    Raises:
        ConfigError: the URL has no scheme, or one that neither netstack nor an installed distribution has.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"address {url!r} has no scheme; write it like tcp://127.0.0.1:6121")
    first = scheme.partition("+")[0]
    return _PROVIDED.get(first) or _load(first)


@contextmanager
def provided(scheme: str, transport: Transport) -> Iterator[None]:
    """Within the block the addresses of a scheme are this transport's, in the whole process; nothing is installed.

    Raises:
        ConfigError: netstack or another block has the scheme.
    """
    if scheme in _OWN or scheme in _PROVIDED:
        raise ConfigError(f"scheme {scheme!r} is taken; choose another one")
    _PROVIDED[scheme] = transport
    try:
        yield
    finally:
        del _PROVIDED[scheme]


_PROVIDED: Final[dict[str, Transport]] = {}
"""Transports of this process alone."""


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
            found = entry.load()()
            assert isinstance(found, Transport)
            return found
    names = ", ".join(sorted({*_OWN, *(entry.name for entry in known)}))
    raise ConfigError(f"no transport for scheme {scheme!r}; known: {names}")


def url_parts(url: str) -> SplitResult:
    """An address taken apart, with a port that is one.

    Raises:
        ConfigError: the address cannot be read, or its port is none; the text says why.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"address {shown(url)} cannot be read: {error}") from error
    return parts


def told_address(url: str) -> str:
    """An address as others are told it: without parameters, which are its owner's, not of whoever dials it.

    An impaired line keeps them: they are the line's.

    Raises:
        ConfigError: the address cannot be read.
    """
    parts = url_parts(url)
    return url if "tls" not in parts.scheme.split("+") else url.partition("?")[0]


def is_private(url: str) -> bool:
    """Whether only this host reaches an address."""
    parts = url_parts(url)
    if parts.scheme.rpartition("+")[2] in ("unix", "memory", "shm") or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False  # a name: whoever answers for it decides where it leads
