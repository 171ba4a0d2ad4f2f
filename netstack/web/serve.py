"""Serves the page of a JobManager over HTTP, on hypercorn, inside trio.

Takes: a JobManager, an address. Gives: `open_web`, which serves while its block runs.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

import trio

from ..errors import ConfigError
from ..jobmanager.service import JobManager
from ..runtime.authentication import Secret

LOGGER: Final = logging.getLogger("netstack.web")

_MISSING: Final = "--web needs hypercorn and starlette: pip install 'hypercorn[trio]>=0.17' 'starlette>=0.40'"

try:
    from hypercorn.config import Config
    from hypercorn.trio import serve

    from .app import Web
except ImportError as error:
    raise ConfigError(_MISSING) from error


@asynccontextmanager
async def open_web(
    manager: JobManager,
    address: str,
    *,
    secret: Secret | None = None,
    may_change: bool = False,
    facts: dict[str, Any] | None = None,
) -> AsyncIterator[str]:
    """Serves while the block runs.

    Args:
        manager: whose jobs are shown.
        address: `host:port`; port 0 picks a free one.
        secret: whose `web_token` callers must show; None asks for none, and is allowed on loopback only.
        may_change: whether jobs may be cancelled and savepoints taken.
        facts: more for the page, in each snapshot.

    Yields:
        The URL of the page.

    Raises:
        ConfigError: the address is none, or strangers could read it.
        OSError: it cannot be bound.
    """
    parts = urlsplit(f"//{address}")
    if not parts.hostname or parts.port is None:
        raise ConfigError(f"--web {address!r} needs a host and a port, such as 127.0.0.1:8081")
    if secret is None and not _is_loopback(parts.hostname):
        raise ConfigError(f"--web {address} would show jobs to strangers; give --secret-file, or a loopback address")
    config = Config()
    config.bind = [f"[{parts.hostname}]:{parts.port}" if ":" in parts.hostname else f"{parts.hostname}:{parts.port}"]
    config.accesslog = None
    config.errorlog = LOGGER
    config.graceful_timeout = 0.5
    web = Web(manager, token=None if secret is None else secret.web_token, may_change=may_change, facts=facts)
    stopping = trio.Event()
    async with web.watching(), trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, cast(Any, web.app), config, shutdown_trigger=stopping.wait))
        try:
            yield bound[0]
        finally:
            stopping.set()
            nursery.cancel_scope.cancel()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
