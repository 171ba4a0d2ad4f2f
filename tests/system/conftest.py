"""What tests with real sockets check after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from system.hostile_rig import descriptors


@pytest.fixture
def every_descriptor_back() -> Iterator[None]:
    """No file descriptor is left by the test; those that earlier tests left may be collected meanwhile."""
    before = descriptors()
    yield
    assert not descriptors() - before
