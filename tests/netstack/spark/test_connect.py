"""Spark Connect: a client without a JVM uses netstack on a server that runs in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from connect_server import ConnectServer, needs_connect

pytestmark = [pytest.mark.java, pytest.mark.long, pytest.mark.xdist_group("connect"), needs_connect]


def test_exchanges_run_on_a_server_without_netstack(connect_server: ConnectServer, tmp_path: Path) -> None:
    assert "only showing top 3 rows" in connect_server.run_client("exchanges", tmp_path)


def test_the_data_source_reads_and_writes(connect_server: ConnectServer, tmp_path: Path) -> None:
    """Spark does not send a session's archives to the planner of a streaming query, so the server needs netstack."""
    assert "only showing top 20 rows" in connect_server.run_client("batches", tmp_path)
    connect_server.install_netstack()
    (tmp_path / "streams").mkdir()
    connect_server.run_client("streams", tmp_path / "streams")
