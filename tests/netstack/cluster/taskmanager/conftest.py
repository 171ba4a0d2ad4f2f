"""A package of invokables is importable, as one that is installed on every host would be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

INSTALLED = Path(__file__).parent / "installed"
sys.path.insert(0, str(INSTALLED))  # before the tests are imported


@pytest.fixture
def installed() -> Path:
    """The folder of `userjobs`, for another process's path."""
    return INSTALLED
