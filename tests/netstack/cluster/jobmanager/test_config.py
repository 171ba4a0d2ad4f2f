"""Settings of a JobManager that cannot be, or would let everybody in."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.network.connection.authentication import Secret


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:6120", "tcp://10.0.0.1:6120", "tcp://[::]:6120", "tls+tcp://h:6120"])
def test_a_port_that_others_reach_wants_a_secret(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"from other hosts, .*no secret"):
        JobManagerConfig(listen=listen)
    JobManagerConfig(listen=listen, secret=Secret.generate())


@pytest.mark.parametrize(
    "wrong", [{"slot_timeout_s": 0.0}, {"heartbeat_timeout_s": -1.0}, {"max_asks": 0}, {"max_connections": -1}]
)
def test_numbers_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        JobManagerConfig(**wrong)
