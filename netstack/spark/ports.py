"""Opens a network environment on the first free port of a range, for hosts behind a firewall."""

from __future__ import annotations

from .. import blocking
from ..config import NetworkConfig
from ..runtime.authentication import Secret


def open_on_free_port(
    host: str, ports: tuple[int, int] | None, config: NetworkConfig, secret: Secret | None
) -> blocking.NetworkEnvironment:
    """Listens on a port of `ports` (first and last), or on any port. Raises OSError if no port of the range is free."""
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        try:
            return blocking.open_network(f"tcp://{host}:{port}", config, secret=secret)
        except OSError:
            if port == last:
                raise
    raise AssertionError("the loop returns or raises")
