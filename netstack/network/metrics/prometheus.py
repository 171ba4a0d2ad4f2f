"""Serves the metrics of a TaskManager or JobManager to Prometheus over HTTP.

Takes: an address, and a function that takes a snapshot. Gives: `/metrics` in the text format, over TLS if the address
says so.

trio accepts; a thread answers each scrape (prometheus_client is synchronous): it gets a snapshot from trio's thread and
formats it itself. So a slow scraper costs the event loop one `statistics()`, and shutdown does not wait for it: threads
that are still busy then answer without values and end.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import ipaddress
import logging
import socket
import socketserver
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TextIO, TypeAlias, final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import trio

from ...base.contained import keep_serving
from ...base.errors import ConfigError
from ...base.tls.tls_files import PREFIX, CertificateFolder, split_tls
from ...base.transport import full_url, is_private
from ..connection.authentication import Secret
from .catalogue import CATALOGUE, Metric
from .samples import Sample, samples

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError(
        "metrics_address requires the package prometheus_client: run pip install 'prometheus_client>=0.20'"
    ) from error

LOGGER: Final = logging.getLogger("netstack")
REQUEST_TIMEOUT_S: Final = 5.0
"""How long a scraper may take to send its request or to read the answer; it occupies a thread meanwhile."""

MAX_SCRAPES: Final = 4
"""The most concurrent scrapes; each has a thread."""

PAUSE_S: Final = 0.1
"""The pause while no descriptor is left to accept a scrape."""

_Application: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Family = CounterMetricFamily | GaugeMetricFamily


@final
class MetricsServer:
    """Listens from `bind_metrics` to `close`; answers while `serve` runs."""

    def __init__(self, server: _Server, registry: CollectorRegistry, host: str, *, detailed: bool) -> None:
        """Called by `bind_metrics`."""
        self._server = server
        self._registry = registry
        self._detailed = detailed
        place = f"[{host}]:{server.server_port}" if ":" in host else f"{host}:{server.server_port}"
        self.address = f"https://{place}" if server.certificates else place
        """The address for Prometheus: `host:port`, or over TLS `https://host:port`."""

    async def serve(
        self,
        snapshot: Callable[[], object],
        catalogue: Sequence[Metric] = CATALOGUE,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Answers until cancelled; an error ends the scrape, or the server is started again.

        Args:
            snapshot: called in this thread, once per scrape.
            catalogue: the metrics to read from the snapshot.
            on_failure: called when the server is started again.
        """
        read = partial(samples, detailed=self._detailed, catalogue=catalogue)
        self._registry.register(_Collector(snapshot, read, trio.lowlevel.current_trio_token()))
        await keep_serving(self._accept, "the metrics' server", LOGGER, on_failure)

    async def _accept(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._server.socket)
            self._server.handle_request()
            if self._server.is_exhausted:
                self._server.is_exhausted = False
                await trio.sleep(PAUSE_S)

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._server.server_close()


async def bind_guarded(address: str, secret: Secret | None) -> MetricsServer:
    """Binds like `bind_metrics`, for a service: scrapers on other hosts must present a token.

    Raises:
        ConfigError: as `bind_metrics`; or other hosts can reach the address, and there is no secret.
        OSError: as `bind_metrics`.
    """
    if secret is None and not is_private(full_url(address)):
        raise ConfigError(
            f"metrics at {address} can be reached from other hosts, but there is no secret for a scraper's token:"
            " give --secret-file FILE, or serve metrics at 127.0.0.1"
        )
    return await bind_metrics(address, detailed=True, secret=secret)


async def bind_metrics(address: str, *, detailed: bool, secret: Secret | None = None) -> MetricsServer:
    """Starts to listen; requests are answered from `MetricsServer.serve` on.

    Args:
        address: `host:port`; port 0 chooses a free port. `tls+tcp://host:port?folder=PATH` uses TLS and requires client
            certificates, with the same files as data and control connections; changed files are reloaded.
        detailed: whether to serve detailed metrics too.
        secret: scrapers must present its `metrics_token`, unless only this host can reach the address. None requires no
            token.

    Raises:
        ConfigError: the address is not valid, or its certificates cannot be used.
        OSError: the address cannot be bound; the text names it.
    """
    if not isinstance(address, str):
        raise ConfigError(f"metrics_address={address!r}; give it as str, such as '127.0.0.1:9249'")
    place, certificates = address, None
    if address.startswith(f"{PREFIX}tcp://"):
        inner, _, certificates = split_tls(address)
        place = inner.removeprefix("tcp://")
        certificates.credentials()  # reports errors now, not at the first scrape
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"metrics_address {address!r}: {error}") from error
    host = parts.hostname
    if not host or port is None or parts.path:
        raise ConfigError(
            f"metrics_address {address!r} needs a host and a port, such as 127.0.0.1:9249, or tls+tcp://127.0.0.1:9249"
        )
    registry = CollectorRegistry()

    def listen() -> _Server:
        server = _Server((host, port), _Handler, certificates)
        app = make_wsgi_app(registry)
        if secret is not None and not _is_loopback(server):
            app = _for_holders_of(secret.metrics_token, app)
        server.set_app(app)
        return server

    try:
        server = await trio.to_thread.run_sync(listen)  # may resolve a host name
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        code = getattr(error, "errno", None) or errno.EADDRNOTAVAIL
        where = "another port, or 0 for a free one" if code == errno.EADDRINUSE else "an address of this host"
        raise OSError(code, f"cannot serve metrics at {address}: {reason}; choose {where}") from error
    return MetricsServer(server, registry, host, detailed=detailed)


@final
class _Collector(Collector):
    """Converts a snapshot to metric families, in the thread of a scrape."""

    def __init__(
        self, snapshot: Callable[[], object], read: Callable[[object], list[Sample]], token: trio.lowlevel.TrioToken
    ) -> None:
        self._snapshot = snapshot
        self._read = read
        self._token = token

    def collect(self) -> Iterator[Family]:
        try:
            statistics = trio.from_thread.run_sync(self._snapshot, trio_token=self._token)
        except trio.RunFinishedError:
            return
        families: dict[str, Family] = {}
        for metric, labels, value in self._read(statistics):
            if metric.name not in families:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[metric.name] = make(metric.name, metric.definition, labels=list(metric.scope.labels))
            families[metric.name].add_metric(list(labels.values()), value)
        yield from families.values()


def _is_loopback(server: _Server) -> bool:
    return ipaddress.ip_address(str(server.server_address[0])).is_loopback


def _for_holders_of(token: str, app: _Application) -> _Application:
    """Returns an application that requires the token."""
    expected = f"Bearer {token}".encode()

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        if hmac.compare_digest(given, expected):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
        return [b"send the metrics token of this cluster's secret as bearer token\n"]

    return checked


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a silent scraper must not keep the process alive
    allow_reuse_port = False  # two servers at one address would share the scrapes

    def __init__(
        self, address: tuple[str, int], handler: type[WSGIRequestHandler], certificates: CertificateFolder | None
    ) -> None:
        self.certificates = certificates
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.is_exhausted = False
        """Whether the last scrape could not be accepted, for instance because no descriptor was left."""
        self._scrapes: dict[Any, Any] = {}  # with the socket to shut down; oldest first; threads remove their own
        super().__init__(address, handler)
        self.socket.setblocking(False)  # a scraper may disconnect before it is accepted

    def get_request(self) -> Any:
        """Accepts a scrape. Raises OSError if there is none, or if it cannot be accepted."""
        try:
            return super().get_request()
        except OSError as error:
            self.is_exhausted = not isinstance(error, BlockingIOError)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._scrapes) >= MAX_SCRAPES:
            with contextlib.suppress(StopIteration, RuntimeError):  # it ended meanwhile
                socket_of = self._scrapes.pop(next(iter(self._scrapes)))
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(socket_of, socket.SHUT_RDWR)  # its reader and writer get an error
        self._scrapes[request] = request
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serves a scrape in its thread; over TLS after a handshake, within the request timeout."""
        if self.certificates is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_S)
        context = self.certificates.credentials().server
        with context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            if request in self._scrapes:  # it may have been removed already
                self._scrapes[request] = secured
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._scrapes.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOGGER.debug("a scrape from %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def get_stderr(self) -> TextIO:
        """Where wsgiref prints the traceback of a failed scrape: anybody may cause one, for instance by not reading."""
        return io.StringIO()
