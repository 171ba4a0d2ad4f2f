"""An HTTP/1.1 server for an ASGI application, with h11 in trio.

Takes: a listening socket, an application, certificates. Gives: each request to the application, one at a time of a
connection, and its response to the peer.

Rules: each connection has its own task. Whatever a peer sends, and whatever fails while it is served, ends that
connection only, with a log line at a limited rate. The server speaks HTTP/1.1 only: HTTP/2 and CONNECT are refused, and
requests to upgrade are answered without upgrading, as HTTP allows. Each wait for a peer has a limit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final, final
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

from ...base.causes import root_cause
from ...base.text.json_text import json_text
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_text
from ...base.tls.tls_files import CertificateFolder
from ...network.connection.fair_share import PeerShare

LOGGER: Final = logging.getLogger("netstack.web")

MAX_CONNECTIONS: Final = 256
"""Connections at a time; then the one that has waited longest for its peer is closed, or else the oldest one."""

HEAD_S: Final = 10.0
"""Limit for the TLS handshake, and for the next request of a connection."""

SEND_S: Final = 30.0
"""Limit for a peer to take the next part of a response."""

LINGER_S: Final = 1.0
"""How long a refused peer may go on sending, so that it can read the response before the connection is reset."""

PART_BYTES: Final = 64 * 1024
PAUSE_S: Final = 0.1
MAX_CHARGED_S: Final = 0.005
"""The most work that one request counts as in the queue of peers (`network.connection.fair_share`)."""


@final
class HttpServer:
    """Serves one application at one socket.

    Args:
        app: an ASGI application; it gets scopes of type `http` only.
        listener: listens already; the caller closes it.
        certificates: serves over TLS; changed files are used for new connections.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, certificates: CertificateFolder | None = None) -> None:
        self._app = app
        self._listener = listener
        self._certificates = certificates
        self._log = LimitedLog(LOGGER, trio.current_time)
        self._connections: dict[_Connection, trio.CancelScope] = {}  # the oldest first

    async def serve(self) -> None:
        """Accepts connections until cancelled. May be called again after a failure."""
        self._listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self._listener)
                try:
                    accepted, _ = self._listener.accept()
                except OSError as error:
                    if not isinstance(error, BlockingIOError | ConnectionAbortedError):
                        self._log.log(logging.WARNING, "accept", f"the page accepts no connection: {safe_error(error)}")
                        await trio.sleep(PAUSE_S)  # no descriptors are left, for instance
                    continue
                nursery.start_soon(self._handle, trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))

    async def _handle(self, transport: trio.SocketStream) -> None:
        """Serves one connection until its end; its errors end only this connection."""
        stream: trio.abc.Stream = transport
        peer = "a peer"
        try:
            peer = safe_text(str(transport.socket.getpeername()[0]))
            if self._certificates is not None:
                context = self._certificates.server_without_client()
                secured = trio.SSLStream(transport, context, server_side=True, https_compatible=True)
                stream = secured
            connection = _Connection(self._app, stream, transport, is_secure=self._certificates is not None)
            with self._counted(connection):
                if self._certificates is not None:
                    with trio.fail_after(HEAD_S):
                        await secured.do_handshake()
                await connection.run()
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            self._log_end(peer, root)
        finally:
            await trio.aclose_forcefully(transport)

    @contextlib.contextmanager
    def _counted(self, connection: _Connection) -> Iterator[None]:
        if len(self._connections) >= MAX_CONNECTIONS:
            slowest = min(self._connections, key=_waits_since)
            self._connections.pop(slowest).cancel()
        with trio.CancelScope() as scope:
            self._connections[connection] = scope
            try:
                yield
            finally:
                self._connections.pop(connection, None)

    def _log_end(self, peer: str, root: Exception) -> None:
        if isinstance(root, trio.BrokenResourceError | trio.ClosedResourceError | trio.TooSlowError | OSError):
            self._log.log(logging.DEBUG, "lost", f"the page's connection of {peer} ended: {safe_error(root)}")
        elif isinstance(root, h11.RemoteProtocolError):
            self._log.log(logging.INFO, "refused", f"{peer} sent no HTTP/1.1 to the page: {safe_error(root)}")
        else:
            self._log.log(logging.ERROR, "broke", f"the page's connection of {peer} failed: {safe_error(root)}")


@final
class _Connection:
    """One connection: requests one after the other.

    Attributes:
        waits_since_s: since when it has waited for its peer to send all of a request, or to take a part of a response.
    """

    def __init__(self, app: ASGIApp, stream: trio.abc.Stream, transport: trio.SocketStream, *, is_secure: bool) -> None:
        self._app = app
        self._stream = stream
        self._transport = transport
        self._scheme = "https" if is_secure else "http"
        self._http = h11.Connection(h11.SERVER)
        self._share = PeerShare()
        self.waits_since_s = trio.current_time()

    async def run(self) -> None:
        """Serves until the peer has left, or nothing more can be understood.

        Raises:
            h11.RemoteProtocolError: the peer sent something else than HTTP/1.1.
            trio.BrokenResourceError: the connection broke.
            trio.TooSlowError: the peer sent no request, or did not read, within the limits.
        """
        try:
            while True:
                self.waits_since_s = trio.current_time()
                with trio.fail_after(HEAD_S):
                    request = await self._next_event()
                if not isinstance(request, h11.Request):
                    return
                self.waits_since_s = math.inf
                await self._serve(request)
                self.waits_since_s = trio.current_time()
                if self._http.their_state is h11.SEND_BODY:
                    await self._linger()
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._refuse(error.error_status_hint, f"this server speaks HTTP/1.1: {error}")
                await self._linger()
            raise

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            began_s = self._share.clock()
            event = self._http.next_event()
            self._share.worked(began_s, 0)
            await self._share.wait_turn()  # a body may come in tens of thousands of chunks
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(bytes(await self._stream.receive_some(PART_BYTES)))

    async def _serve(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            await self._refuse(505, "this server speaks HTTP/1.1 only")
            return
        if request.method == b"CONNECT" or not request.target.startswith(b"/"):
            await self._refuse(400, "this server is no proxy: send a path")
            return
        began_s = self._share.clock()
        with trio.CancelScope() as scope:
            exchange = _Exchange(self, request, scope)
            await self._app(self._scope_of(request), exchange.receive, exchange.send)
        if self._http.our_state is h11.SEND_RESPONSE and not scope.cancelled_caught:
            await self._refuse(500, "the request was not answered")
        self._share.worked(max(began_s, self._share.clock() - MAX_CHARGED_S), 0)
        await self._share.wait_turn()

    def _scope_of(self, request: h11.Request) -> dict[str, object]:
        raw_path, _, query = request.target.partition(b"?")
        peer = self._transport.socket.getpeername()
        own = self._transport.socket.getsockname()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "scheme": self._scheme,
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
            "client": peer[:2],
            "server": own[:2],
            "extensions": {},
        }

    async def receive_body(self) -> Message:
        """Returns the next part of the body; waits for ever once it is complete."""
        if self._http.their_state is not h11.SEND_BODY:
            await trio.sleep_forever()  # cancelled with the request; a peer that left is noticed by the next send
        self.waits_since_s = min(self.waits_since_s, trio.current_time())  # since its first part
        event = await self._next_event()
        if self._http.their_state is not h11.SEND_BODY:
            self.waits_since_s = math.inf
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends the head of a response."""
        headers = [*headers, (b"date", formatdate(usegmt=True).encode())]
        await self._send(h11.Response(status_code=status, headers=headers))

    async def send_body(self, body: bytes, *, is_last: bool) -> None:
        """Sends a part of the body of a response."""
        for start in range(0, len(body), PART_BYTES):
            await self._send(h11.Data(data=body[start : start + PART_BYTES]))
        if is_last:
            await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            before_s, self.waits_since_s = self.waits_since_s, min(self.waits_since_s, trio.current_time())
            with trio.fail_after(SEND_S):
                await self._stream.send_all(data)
            self.waits_since_s = before_s

    async def _refuse(self, status: int, text: str) -> None:
        body = json_text({"errors": [safe_text(text)]}, compact=True).encode()
        length = str(len(body)).encode()
        kind = (b"content-type", b"application/json")
        await self.send_head(status, [kind, (b"content-length", length), (b"connection", b"close")])
        await self.send_body(body, is_last=True)

    async def _linger(self) -> None:
        """Discards what the peer still sends, for a moment."""
        with trio.move_on_after(LINGER_S):
            if self._stream is self._transport:
                await self._transport.send_eof()
            while await self._stream.receive_some(PART_BYTES):
                pass


def _waits_since(connection: _Connection) -> float:
    return connection.waits_since_s


@final
class _Exchange:
    """One request and its response, as an ASGI application sees them."""

    def __init__(self, connection: _Connection, request: h11.Request, scope: trio.CancelScope) -> None:
        self._connection = connection
        self._has_body = request.method != b"HEAD"
        self._scope = scope

    async def receive(self) -> Message:
        """Receives an ASGI message."""
        return await self._connection.receive_body()

    async def send(self, message: Message) -> None:
        """Sends an ASGI message. If the peer has left or does not read, the application is cancelled."""
        try:
            if message["type"] == "http.response.start":
                await self._connection.send_head(message["status"], message.get("headers", []))
            elif message["type"] == "http.response.body":
                body, is_last = message.get("body", b""), not message.get("more_body", False)
                if self._has_body:
                    await self._connection.send_body(body, is_last=is_last)
                    return
                await self._connection.send_body(b"", is_last=True)
                if not is_last:  # nobody would notice that the peer has left
                    self._scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
