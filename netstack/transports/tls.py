"""`tls+X://...`: TLS 1.3 over another transport, with certificates on both ends: `tls+tcp://10.0.0.1:6121`.

Takes: URLs. Gives: streams and listeners over those of the transport underneath.

Each end shows a certificate and checks the other's against its `ca.pem`; who dials also checks that the certificate
is for the name or address that was dialled. The three files are in the folder that the environment variable
`NETSTACK_TLS` names, or the URL: `tls+tcp://host:6121?folder=/etc/netstack/tls`. More parameters:

    names=off   certificates are good for any name, as those that all TaskManagers of a Flink share
    tls=1.2     also the version before, for such peers

Rules:
- The handshake is done in the background, so a silent stranger keeps nobody from being accepted, and who dials may
  send at once. Certificates that do not fit are `ConnectionLost`, on both ends.
- What is encrypted has to be sent, and nobody else would do it: so what the stream underneath does not take at once, at
  most `ENCRYPT_BYTES`, is sent by a task of trio's own that lives as long as there is something. Nothing more is taken
  until it is done.
- The end of the stream is that of the transport underneath: whether it was cut is for a goodbye to tell, as without
  TLS.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import trio

from netstack.errors import ConfigError, ConnectionLost
from netstack.tls_files import PREFIX, CertificateFolder, split_tls
from netstack.transport import ByteStream, Listener, Piece, Transport, transport_for, url_parts

ENCRYPT_BYTES: Final = 256 * 1024
"""Encrypted at a time: what a socket takes at once, about."""

READ_BYTES: Final = 256 * 1024
LINGER_S: Final = 5.0
"""How long a stream that was closed goes on to send what it has taken."""

_RECORD_BYTES: Final = 16 * 1024
_MAX_ANSWER_BYTES: Final = 64 * 1024
"""Of what a peer makes us say by itself (new keys): more unsent is a peer that never reads."""


@final
class TlsStream(ByteStream):
    """A stream in TLS."""

    def __init__(self, inner: ByteStream, context: ssl.SSLContext, *, server: bool, name: str, own: bytes) -> None:
        """Args: the stream underneath, owned; what to use; which end; the name that was dialled; our own digest."""
        self.peer = f"{PREFIX}{inner.peer}"
        self._inner = inner
        self._is_server = server
        self._own = own
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name or None)
        self._read: Any = self._tls.read
        self._is_open = False
        self._early = bytearray()  # to be encrypted when the handshake is done
        self._unsent = memoryview(b"")
        self._wants_end = False
        self._plain = b""  # decrypted while somebody waited
        self._has_ended = False
        self._closed = False
        self._failure: ConnectionLost | None = None
        self._landing = memoryview(bytearray(READ_BYTES))
        self._progress = trio.lowlevel.ParkingLot()
        self._waits: set[trio.CancelScope] = set()
        self._deadline = trio.CancelScope()  # of the task of ours
        self._is_busy = True  # a task of ours sends, or shakes hands
        trio.lowlevel.spawn_system_task(self._in_background, self._shake_hands)

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Sends what the stream takes now."""
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
                view = memoryview(piece).cast("B")[: ENCRYPT_BYTES - taken]
                for start in range(0, len(view), _RECORD_BYTES):
                    taken += self._tls.write(view[start : start + _RECORD_BYTES])
                if taken == ENCRYPT_BYTES:
                    break
        except ssl.SSLError as error:
            raise self._broken(error) from error
        self._push()
        return taken

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Stores what has come."""
        self._check_open()
        received = 0
        for window in windows:
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
        return 0 if self._has_ended else None

    async def wait_writable(self) -> None:
        """Waits until there is room to send."""
        await trio.lowlevel.checkpoint()
        self._check_waiting()
        if not self._is_open and len(self._early) < ENCRYPT_BYTES:
            return
        while self._is_busy and self._failure is None:
            await self._progress.park()
            self._check_waiting()
        if self._failure is None:
            await self._wait(self._inner.wait_writable)

    async def wait_readable(self) -> None:
        """Waits until something has come."""
        self._check_waiting()
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
                    await self._wait(self._inner.wait_readable)
        await trio.lowlevel.checkpoint()
        self._check_waiting()

    def send_eof(self) -> None:
        """Half-closes the stream underneath, behind what is encrypted."""
        self._wants_end = True
        if not self._is_busy:
            self._inner.send_eof()

    def close(self) -> None:
        """Closes at once; what was taken is still sent, within `LINGER_S`, as a socket would."""
        if self._closed:
            return
        self._closed = True
        if not self._is_busy or not (self._early or self._unsent) or self._failure is not None:
            self._inner.close()
        for scope in self._waits:
            scope.cancel()
        self._deadline.deadline = trio.current_time() + LINGER_S
        self._progress.unpark_all()

    def tcp_facts(self) -> dict[str, str | int]:
        """Those of the stream underneath, and the cipher."""
        cipher = self._tls.cipher() if self._is_open else None
        return {**self._inner.tcp_facts(), **({} if cipher is None else {"tls": f"{cipher[1]} {cipher[0]}"})}

    def endpoints(self) -> tuple[str, str]:
        """Those of the stream underneath."""
        return self._inner.endpoints()

    def channel_binding(self) -> bytes:
        """A digest of both certificates, the one of who was dialled first; nothing before the handshake is done."""
        other = self._tls.getpeercert(binary_form=True) if self._is_open else None
        if other is None:
            return b""
        theirs = hashlib.sha256(other).digest()
        return self._own + theirs if self._is_server else theirs + self._own

    # Inside.

    async def _in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """One of the two tasks of ours; the next try raises what breaks there."""
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
            if self._closed:  # also when the run ends while it lingers
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
                self._send_some()  # the alert that says why, if there is room
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
            await self._inner.wait_writable()

    def _keep(self, pieces: Sequence[Piece]) -> int:
        """Before the handshake is done."""
        had = len(self._early)
        for piece in pieces:
            self._early += memoryview(piece).cast("B")[: ENCRYPT_BYTES - len(self._early)]
        return len(self._early) - had

    def _read_into(self, window: memoryview) -> int:
        """Decrypts what there is; 0 when there is nothing, or nothing more."""
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
            except ssl.SSLZeroReturnError:  # others say goodbye in TLS's own way
                count = 0
            except ssl.SSLError as error:
                raise self._broken(error) from error
            if not count:
                self._has_ended = True
            return count

    def _answer(self) -> None:
        """Sends what the peer made us say by itself, if there is room."""
        if self._out.pending and self._out.pending > _MAX_ANSWER_BYTES:
            raise ConnectionLost(f"{self.peer} asks for new keys faster than it reads them")
        if self._out.pending:
            self._push()

    def _pull(self) -> bool:
        """Takes what has arrived underneath. Returns whether there was anything, the end included."""
        try:
            count = self._inner.try_receive_into((self._landing,))
        except ConnectionLost as error:
            raise self._named(error) from error
        if count is None:
            return False
        if count:
            self._in.write(self._landing[:count])
            return True
        self._has_ended = True  # not told to the session, which would not send any more either
        if not self._is_open:
            raise ConnectionLost(
                f"{self.peer} ended the stream during the TLS handshake; does it take our certificate, and speak TLS?"
            )
        return True

    def _push(self) -> bool:
        """Sends what is encrypted, as far as there is room; the rest in the background. Returns whether all is sent."""
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

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Waits for the stream underneath, which may live on when we are closed."""
        scope = trio.CancelScope()
        self._waits.add(scope)
        try:
            with scope:
                await wait()
        finally:
            self._waits.discard(scope)
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
                f"the certificate of {self.peer} is refused: {error.verify_message}; it has to be signed by one in our"
                " ca.pem, and to be for the name that is dialled"
            )
        if "ALERT" in (error.reason or ""):
            return ConnectionLost(
                f"{self.peer} refuses our certificate, or our TLS: {error.reason}; is it signed by one in its ca.pem?"
            )
        return ConnectionLost(f"TLS to {self.peer} failed: {error.reason or error}; does it speak TLS?")


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
            return TlsStream(inner, credentials.server, server=True, name="", own=credentials.digest)

    def close(self) -> None:
        self._inner.close()


@final
class TlsTransport(Transport):
    """TLS over another transport."""

    async def listen(self, url: str) -> Listener:
        """Binds as the transport underneath does; the certificates are looked at first."""
        inner_url, query, folder = split_tls(url)
        folder.credentials()
        try:
            return _TlsListener(await transport_for(inner_url).listen(inner_url), query, folder)
        except OSError as error:
            raise OSError(error.errno, f"{url}: {error.strerror or error}") from error

    async def connect(self, url: str) -> ByteStream:
        """Dials as the transport underneath does, and begins to shake hands."""
        inner_url, _, folder = split_tls(url)
        credentials = folder.credentials()
        parts = url_parts(inner_url)
        name = parts.hostname if parts.port and parts.hostname else "localhost"
        try:
            inner = await transport_for(inner_url).connect(inner_url)
        except ConnectionLost as error:
            raise ConnectionLost(f"{url}: {error}") from error
        try:
            return TlsStream(inner, credentials.client, server=False, name=name, own=credentials.digest)
        except BaseException:
            inner.close()
            raise
