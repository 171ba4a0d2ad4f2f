"""One Spark session for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.spark.settings import SparkSettings

SETTINGS = SparkSettings(master="local[2]", app_name="netstack-tests")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of local mode with two slots; its own output goes to a file."""
    import dataclasses

    from bench.spark.session import open_session

    log: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(dataclasses.replace(SETTINGS, log_file=str(log))) as session:
        yield session
