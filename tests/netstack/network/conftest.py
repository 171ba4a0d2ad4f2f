"""What tests of whole TaskManagers begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from network import network_environments

from netstack import NetworkConfig, NetworkEnvironment, open_network


@pytest.fixture
def config(request: pytest.FixtureRequest) -> NetworkConfig:
    """The `CONFIG` of the test's module, if it has one."""
    actual: NetworkConfig = getattr(request.module, "CONFIG", network_environments.CONFIG)
    return actual


@pytest.fixture
async def producer(config: NetworkConfig) -> AsyncIterator[NetworkEnvironment]:
    async with open_network(network_environments.url(), config) as manager:
        yield manager


@pytest.fixture
async def consumer(config: NetworkConfig, producer: NetworkEnvironment) -> AsyncIterator[NetworkEnvironment]:
    """Closed before the producer."""
    async with open_network(network_environments.url(), config) as manager:
        yield manager
