"""`tls+X://...`: TLS 1.3 over another transport, with certificates on both ends: `tls+tcp://10.0.0.1:6121`.

Takes: URLs. Gives: streams and listeners over those of the underlying transport.

Each end presents a certificate and checks the peer's against its `ca.pem`; a client also checks that the certificate is
valid for the dialled name or address. The environment variable `NETSTACK_TLS` or the URL names the folder of the three
files: `tls+tcp://host:6121?folder=/etc/netstack/tls`. Further parameters:

    names=off   accept certificates for any name, such as one that all TaskManagers of a Flink cluster share
    tls=1.2     also accept TLS 1.2, for such peers

Rules:
- The handshake runs in the background, so a silent peer does not block other accepts, and a client may send at once.
  Certificate errors are `ConnectionLost`, at both ends.
- Encrypted data must be sent in order. If the underlying stream does not accept all of it at once, at most
  `ENCRYPT_BYTES` remain, which a system task of trio sends. The stream accepts no more data until that is done.
- The end of the stream is that of the underlying transport: as without TLS, a goodbye in the protocol tells an orderly
  end from a cut.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import trio

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.tls.tls_files import PREFIX, CertificateFolder, Credentials, names_of, split_tls
from netstack.base.transport import (
    ByteStream,
    Listener,
    OneWaiter,
    Piece,
    Transport,
    byte_view,
    check_room,
    transport_for,
    url_parts,
)

ENCRYPT_BYTES: Final = 256 * 1024
"""Encrypted at a time: about what a socket accepts at once."""

READ_BYTES: Final = 256 * 1024
LINGER_S: Final = 5.0
"""How long a closed stream continues to send accepted data."""

_RECORD_BYTES: Final = 16 * 1024
_MAX_ANSWER_BYTES: Final = 64 * 1024
"""The most unsent answers to key updates of a peer; more means that the peer does not read."""


@final
class TlsStream(ByteStream):
    """A stream in TLS."""

    def __init__(
        self, inner: ByteStream, context: ssl.SSLContext, *, server: bool, name: str, own: Credentials
    ) -> None:
        """Args: the underlying stream, owned; the TLS context; which end it is; the dialled name; our certificates."""
        self.peer = f"{PREFIX}{inner.peer}"
        self._inner = inner
        self._is_server = server
        self._own = own.digest
        self._checks_names = own.client.check_hostname
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name or None)
        self._read: Any = self._tls.read
        self._is_open = False
        self._early = bytearray()  # encrypted after the handshake
        self._unsent = memoryview(b"")
        self._wants_end = False
        self._plain = b""  # decrypted by a wait
        self._has_ended = False
        self._closed = False
        self._failure: ConnectionLost | None = None
        self._landing = memoryview(bytearray(READ_BYTES))
        self._progress = trio.lowlevel.ParkingLot()
        self._reader = OneWaiter("read from", self.peer)
        self._writer = OneWaiter("write to", self.peer)
        self._waits: dict[OneWaiter, trio.CancelScope] = {}  # of tasks that wait for the underlying stream
        self._deadline = trio.CancelScope()  # of the background task
        self._is_busy = True  # a background task sends, or performs the handshake
        trio.lowlevel.spawn_system_task(self._in_background, self._shake_hands)

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Encrypts and sends as much as the stream accepts."""
        self._check_open()
        if self._wants_end:
            raise ConnectionLost(f"the connection to {self.peer} broke: this direction was ended")
        if not self._is_open:
            return self._keep(pieces)
        if not self._push():
            return 0
        taken = 0
        try:
            for piece in pieces:
                view = byte_view(piece)[: ENCRYPT_BYTES - taken]
                for start in range(0, len(view), _RECORD_BYTES):
                    taken += self._tls.write(view[start : start + _RECORD_BYTES])
                if taken == ENCRYPT_BYTES:
                    break
        except ssl.SSLError as error:
            raise self._broken(error) from error
        self._push()
        return taken

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Receives and decrypts."""
        self._check_open()
        received = 0
        for window in map(byte_view, windows):
            while window:
                if self._plain:
                    count = min(len(window), len(self._plain))
                    window[:count] = self._plain[:count]
                    self._plain = self._plain[count:]
                else:
                    count = self._read_into(window)
                if not count:
                    break
                received += count
                window = window[count:]
            if window:
                break
        if received:
            return received
        if self._plain or self._has_ended:
            check_room(windows)
        return 0 if self._has_ended else None

    async def wait_writable(self) -> None:
        """Waits until there is room to send."""
        with self._writer:
            await trio.lowlevel.checkpoint()
            self._check_waiting()
            if not self._is_open and len(self._early) < ENCRYPT_BYTES:
                return
            while self._failure is None:
                if not self._is_busy:
                    await self._wait(self._writer, self._inner.wait_writable)
                    if not self._is_busy:
                        return
                await self._progress.park()
                self._check_waiting()

    async def wait_readable(self) -> None:
        """Waits until data has arrived."""
        self._check_waiting()
        with self._reader:
            while not self._plain and not self._has_ended and self._failure is None:
                if not self._is_open:
                    await self._progress.park()
                    self._check_waiting()
                    continue
                buffer = memoryview(bytearray(_RECORD_BYTES))
                try:
                    count = self._read_into(buffer)
                except ConnectionLost as error:
                    self._failure = error
                else:
                    if count:
                        self._plain = bytes(buffer[:count])
                    elif not self._has_ended:
                        await self._wait(self._reader, self._inner.wait_readable)
            await trio.lowlevel.checkpoint()
            self._check_waiting()

    def send_eof(self) -> None:
        """Half-closes the underlying stream, after the encrypted data."""
        self._wants_end = True
        if not self._is_busy:
            self._inner.send_eof()

    def close(self) -> None:
        """Closes at once; accepted data is still sent within `LINGER_S`, as by a socket."""
        if self._closed:
            return
        self._closed = True
        if not self._is_busy or not (self._early or self._unsent) or self._failure is not None:
            self._inner.close()
        for scope in self._waits.values():
            scope.cancel()
        self._deadline.deadline = trio.current_time() + LINGER_S
        self._progress.unpark_all()

    def tcp_facts(self) -> dict[str, str | int]:
        """Those of the underlying stream, and the cipher."""
        cipher = self._tls.cipher() if self._is_open else None
        return {**self._inner.tcp_facts(), **({} if cipher is None else {"tls": f"{cipher[1]} {cipher[0]}"})}

    def round_trip_s(self) -> float:
        """That of the underlying stream."""
        return self._inner.round_trip_s()

    def endpoints(self) -> tuple[str, str]:
        """Those of the underlying stream."""
        return self._inner.endpoints()

    def certificate_names(self) -> tuple[str, ...] | None:
        """Those of the peer's certificate; None before the end of the handshake, and with `names=off`."""
        certificate = self._tls.getpeercert() if self._is_open and self._checks_names else None
        return None if certificate is None else names_of(certificate)

    def channel_binding(self) -> bytes:
        """A digest of both certificates, the server's first; empty before the end of the handshake."""
        other = self._tls.getpeercert(binary_form=True) if self._is_open else None
        if other is None:
            return b""
        theirs = hashlib.sha256(other).digest()
        return self._own + theirs if self._is_server else theirs + self._own

    # Inside.

    async def _in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs one of the two background tasks; the next `try_` call raises its error."""
        try:
            with self._deadline:
                await work()
        except ConnectionLost as error:
            self._failure = error
        except trio.ClosedResourceError:
            pass
        except Exception as error:  # a system task that raises would end the whole program
            self._failure = ConnectionLost(f"TLS to {self.peer} failed: {type(error).__name__}: {error}")
        finally:
            self._is_busy = False
            self._progress.unpark_all()
            if self._closed:  # also if trio ends while it lingers
                self._inner.close()
        if self._wants_end and not self._closed:
            self._inner.send_eof()

    async def _shake_hands(self) -> None:
        while not self._is_open:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not self._pull():
                    await self._inner.wait_readable()
            except (ssl.SSLError, ssl.CertificateError) as error:
                self._send_some()  # the TLS alert with the reason, if there is room
                raise self._broken(error) from error
            else:
                for start in range(0, len(self._early), _RECORD_BYTES):
                    self._tls.write(self._early[start : start + _RECORD_BYTES])
                self._early.clear()
                self._is_open = True
                self._progress.unpark_all()
        await self._flush()

    async def _flush(self) -> None:
        while not self._send_some():
            if self._writer in self._waits:
                # one task may wait: a caller, who began before there was a rest, gives way
                self._waits[self._writer].cancel()
                await self._progress.park()
            else:
                await self._inner.wait_writable()

    def _keep(self, pieces: Sequence[Piece]) -> int:
        had = len(self._early)
        for piece in pieces:
            self._early += byte_view(piece)[: ENCRYPT_BYTES - len(self._early)]
        return len(self._early) - had

    def _read_into(self, window: memoryview) -> int:
        """Decrypts arrived data; 0 if there is none, or at the end."""
        if self._has_ended or not self._is_open:
            return 0
        while True:
            try:
                count = int(self._read(len(window), window))
            except ssl.SSLWantReadError:
                if not self._pull() or self._has_ended:
                    self._answer()
                    return 0
                continue
            except ssl.SSLZeroReturnError:  # other peers end with TLS's close_notify
                count = 0
            except ssl.SSLError as error:
                raise self._broken(error) from error
            if not count:
                self._has_ended = True
            return count

    def _answer(self) -> None:
        if self._out.pending and self._out.pending > _MAX_ANSWER_BYTES:
            raise ConnectionLost(f"{self.peer} requests key updates but does not read the answers")
        if self._out.pending:
            self._push()

    def _pull(self) -> bool:
        """Reads from the underlying stream. Returns whether there was anything, including the end."""
        try:
            count = self._inner.try_receive_into((self._landing,))
        except ConnectionLost as error:
            raise self._named(error) from error
        if count is None:
            return False
        if count:
            self._in.write(self._landing[:count])
            return True
        self._has_ended = True  # not passed to the TLS session, which would then refuse to send
        if not self._is_open:
            raise ConnectionLost(
                f"{self.peer} ended the TLS handshake; it rejects our certificate, or does not use TLS"
            )
        return True

    def _push(self) -> bool:
        """Sends encrypted data; the rest is sent in the background. Returns whether everything was sent."""
        if self._is_busy:
            return False
        if self._send_some():
            return True
        self._is_busy = True
        self._deadline = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._in_background, self._flush)
        return False

    def _send_some(self) -> bool:
        while True:
            if not self._unsent:
                if not self._out.pending:
                    return True
                self._unsent = memoryview(self._out.read())
            try:
                sent = self._inner.try_send((self._unsent,))
            except ConnectionLost as error:
                raise self._named(error) from error
            if not sent:
                return False
            self._unsent = self._unsent[sent:]

    def _named(self, error: ConnectionLost) -> ConnectionLost:
        return ConnectionLost(str(error).replace(self._inner.peer, self.peer))

    async def _wait(self, waiter: OneWaiter, wait: Callable[[], Awaitable[None]]) -> None:
        """Waits for the underlying stream, which may outlive ours."""
        try:
            with trio.CancelScope() as self._waits[waiter]:
                await wait()
        finally:
            del self._waits[waiter]
            self._progress.unpark_all()
        self._check_waiting()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost(f"the connection to {self.peer} broke: it is closed")
        if self._failure is not None:
            raise ConnectionLost(str(self._failure)) from self._failure

    def _check_waiting(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")

    def _broken(self, error: ssl.SSLError | ssl.CertificateError) -> ConnectionLost:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConnectionLost(
                f"the certificate of {self.peer} was rejected: {error.verify_message}; it must be signed by one in"
                " our ca.pem, and be valid for the dialled name"
            )
        if "ALERT" in (error.reason or ""):
            return ConnectionLost(
                f"{self.peer} rejected our certificate or TLS version: {error.reason}; check its ca.pem"
            )
        return ConnectionLost(f"TLS to {self.peer} failed: {error.reason or error}; check that it uses TLS")


@final
class _TlsListener(Listener):
    def __init__(self, inner: Listener, query: str, folder: CertificateFolder) -> None:
        self.address = f"{PREFIX}{inner.address}{query and '?'}{query}"
        self._inner = inner
        self._folder = folder

    async def accept(self) -> ByteStream:
        while True:
            inner = await self._inner.accept()
            try:
                credentials = self._folder.credentials()
            except ConfigError:
                inner.close()
                raise
            return TlsStream(inner, credentials.server, server=True, name="", own=credentials)

    def close(self) -> None:
        self._inner.close()


@final
class TlsTransport(Transport):
    """TLS over another transport."""

    async def listen(self, url: str) -> Listener:
        """Binds with the underlying transport, after it has checked the certificates."""
        inner_url, query, folder = split_tls(url)
        folder.credentials()
        try:
            return _TlsListener(await transport_for(inner_url).listen(inner_url), query, folder)
        except OSError as error:
            raise OSError(error.errno, f"{url}: {error.strerror or error}") from error

    async def connect(self, url: str) -> ByteStream:
        """Dials with the underlying transport, and starts the handshake."""
        inner_url, _, folder = split_tls(url)
        credentials = folder.credentials()
        parts = url_parts(inner_url)
        name = parts.hostname if parts.port and parts.hostname else "localhost"
        try:
            inner = await transport_for(inner_url).connect(inner_url)
        except ConnectionLost as error:
            raise ConnectionLost(f"{url}: {error}") from error
        try:
            return TlsStream(inner, credentials.client, server=False, name=name, own=credentials)
        except BaseException:
            inner.close()
            raise
