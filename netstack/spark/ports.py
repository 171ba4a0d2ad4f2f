"""Opens a network environment on the first free port of a range, for hosts behind a firewall."""

from __future__ import annotations

import errno
from typing import Any

from .. import blocking
from ..base.config import NetworkConfig
from ..base.errors import ConfigError
from ..network.connection.authentication import Secret


def check_ports(ports: Any) -> None:
    """Checks a range of ports. Raises ConfigError if it is not None, or the first and the last port."""
    if ports is None:
        return
    is_pair = isinstance(ports, (tuple, list)) and len(ports) == 2 and all(isinstance(each, int) for each in ports)
    if not is_pair or not 0 < ports[0] <= ports[1] < 1 << 16:
        raise ConfigError(f"ports={ports!r}: give the first and the last port, the lower one first: (7100, 7110)")


def open_on_free_port(
    host: str, ports: tuple[int, int] | None, config: NetworkConfig, secret: Secret | None
) -> blocking.NetworkEnvironment:
    """Listens on a port of `ports` (first and last), or on any port. Raises OSError if no port of the range is free."""
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        try:
            return blocking.open_network(f"tcp://{host}:{port}", config, secret=secret)
        except OSError as error:
            if port < last:
                continue
            if first == last or error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                error.errno, f"no port from {first} to {last} is free at {host}; each task needs one: give more ports"
            ) from error
    raise AssertionError("the loop returns or raises")
