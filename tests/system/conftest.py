"""What tests with real sockets check after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from system.hostile_rig import descriptors


@pytest.fixture
def every_descriptor_back() -> Iterator[None]:
    """There are as many file descriptors after the test as before."""
    before = descriptors()
    yield
    assert descriptors() == before
