"""Serves the page of a JobManager or of a recording over HTTP.

Takes: a JobManager or a history, an address. Gives: `open_web` and `open_replay`, which serve while their block runs.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from ...base.contained import keep_serving
from ...base.errors import ConfigError
from ...base.tls.tls_files import PREFIX, CertificateFolder, split_tls
from ...network.connection.authentication import Secret
from ...network.waiting.threads import background_tasks
from ..jobmanager.service import JobManager
from .history import History
from .page import page

LOGGER: Final = logging.getLogger("netstack.web")

_MISSING: Final = "--web needs h11 and starlette: pip install 'h11>=0.16' 'starlette>=0.40'"

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from .app import Web, page_response
    from .guard import Guard, LoginSessions
    from .http1 import HttpServer
except ImportError as error:
    raise ConfigError(_MISSING) from error


@asynccontextmanager
async def open_web(
    manager: JobManager,
    address: str,
    *,
    secret: Secret | None = None,
    client_secret: Secret | None = None,
    may_change: bool = False,
    facts: dict[str, Any] | None = None,
    names: Iterable[str] = (),
) -> AsyncIterator[str]:
    """Serves the page and the REST interface of a JobManager while the block runs.

    Args:
        manager: the JobManager.
        address: `host:port`; port 0 picks a free one. `tls+tcp://host:port?folder=PATH` serves over TLS with the
            certificate in the folder or in $NETSTACK_TLS; browsers need no certificate.
        secret: secret whose `web_token` requests must carry; None: no token, allowed on loopback addresses only.
        client_secret: secret whose tokens are accepted as well, for read access.
        may_change: whether requests may cancel jobs and take savepoints.
        facts: extra fields of each snapshot.
        names: accepted host names, in addition to those of this host and any IP address.

    Yields:
        The URL of the page.

    Raises:
        ConfigError: the address is malformed or cannot be bound, or is not loopback and has no secret.
    """
    place, certificates = address, None
    if address.startswith(PREFIX):
        inner, _, certificates = split_tls(address)
        certificates.credentials()  # raises for bad certificates before anything is bound
        place = inner.removeprefix("tcp://")
    host, _ = _place_of(place)
    if secret is None and not _is_loopback(host):
        raise ConfigError(
            f"--web {address} would show jobs to anyone on the network; give --secret-file, or a loopback address"
        )
    listener = await _listen(place)
    sessions = LoginSessions(
        [each for each in (secret, client_secret) if each is not None],
        is_secure=certificates is not None,
        port=listener.getsockname()[1],
    )
    web = Web(manager, sessions=sessions, may_change=may_change, facts=facts)
    on_failure = partial(manager.count_failure, "page")
    async with web.watching(), _served(Guard(web.app, names), listener, certificates, on_failure) as url:
        yield url


@asynccontextmanager
async def open_replay(history: History, address: str) -> AsyncIterator[str]:
    """Serves the page of a recording while the block runs.

    Args:
        history: the recording.
        address: loopback `host:port`; port 0 picks a free one.

    Yields:
        The URL of the page.

    Raises:
        ConfigError: the address is malformed, cannot be bound, or is not loopback.
    """
    if not _is_loopback(_place_of(address)[0]):
        raise ConfigError(f"--web {address} would show the recording to anyone on the network; give a loopback address")
    text = page(History.text(history.kept()))

    async def answer(request: Request) -> Response:
        return page_response(text)

    async with _served(Guard(Starlette(routes=[Route("/", answer)])), await _listen(address)) as url:
        yield url


async def _listen(address: str) -> socket.socket:
    """Returns a listening socket. Raises ConfigError if the address cannot be bound."""
    host, port = _place_of(address)
    listener = None
    try:
        family, kind, _, _, place = (await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"--web {address}: {error.strerror or error}; choose another port, or 0 for a free one"
        ) from error
    return listener


@asynccontextmanager
async def _served(
    app: Guard,
    listener: socket.socket,
    certificates: CertificateFolder | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> AsyncIterator[str]:
    with listener:
        server = HttpServer(app, listener, certificates)
        host, port = listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        async with background_tasks() as nursery:
            nursery.start_soon(keep_serving, server.serve, "the page's server", LOGGER, on_failure)
            yield f"{'http' if certificates is None else 'https'}://{place}"


def _place_of(address: str) -> tuple[str, int]:
    """Splits `host:port`. Raises `ConfigError` for a malformed address."""
    try:
        parts = urlsplit(f"//{address}")
        if parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    except ValueError:  # the port is not a number, or is too large
        pass
    raise ConfigError(f"--web {address!r} needs a host and a port, such as 127.0.0.1:8081")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
