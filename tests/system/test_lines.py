"""A shaped line between two hosts: what plain TCP reaches over it, and that default buffers fill it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from netstack.testing.namespaces import Hosts
from netstack.testing.shaped_line import STREAM_SHARE, Shape
from netstack_bench.lines.command import LineCell, real_line
from netstack_bench.spec import RunSpec

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.xdist_group("hosts")]

SHAPE = Shape(round_trip_s=0.04, rate_bytes_per_s=12_500_000)
STREAM = """
import socket, sys, time
if len(sys.argv) > 1:
    stream = socket.create_connection((sys.argv[1], 5555))
    began = time.monotonic()
    stream.sendall(b"x")
    stream.recv(1)
    print(time.monotonic() - began, flush=True)
    try:
        while True:
            stream.sendall(bytes(1 << 18))
    except OSError:
        sys.exit()
server = socket.create_server(("", 5555))
print("up", flush=True)
stream, _ = server.accept()
stream.sendall(stream.recv(1))
count, began = 0, time.monotonic()
while (now := time.monotonic()) < began + 5:
    received = len(stream.recv(1 << 20))
    count += received if now > began + 2 else 0
print(count / 3, flush=True)
"""


@pytest.fixture(name="hosts")
def two_hosts() -> Iterator[Hosts]:
    with Hosts(2, lines={1: SHAPE}) as hosts:
        for host in (1, 2):
            hosts.run(host, ["sh", "-c", "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control"])
        yield hosts


def test_tcp_reaches_the_rate_and_sees_the_round_trip(hosts: Hosts) -> None:
    server = hosts.start(2, [sys.executable, "-c", STREAM], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    client = hosts.start(1, [sys.executable, "-c", STREAM, hosts.address(2)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert 0.04 <= float(client.stdout.readline()) < 0.06
    reached = float(server.stdout.readline())
    assert 0.9 < reached / (12_500_000 * STREAM_SHARE) < 1.03


def test_what_is_cut_and_healed_passes_again(hosts: Hosts) -> None:
    answers = [sys.executable, "-m", "http.server", "--bind", hosts.address(2), "8000"]
    hosts.start(2, answers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    asks = f"import urllib.request as u; print(u.urlopen('http://{hosts.address(2)}:8000', timeout=1).status)"

    def is_reached() -> bool:
        return hosts.run(1, [sys.executable, "-c", asks]).returncode == 0

    assert any(is_reached() for _ in range(20))
    hosts.cut(1)
    assert not is_reached()
    hosts.heal(1)
    assert any(is_reached() for _ in range(20))


def test_default_buffers_fill_a_long_line() -> None:
    cell = LineCell(SHAPE, RunSpec(seconds=8.0, warmup_s=2.6, emit="batch", record_bytes=1024))
    with real_line(SHAPE) as (run, _):
        result: Any = run(cell)
    assert "error" not in result, json.dumps(result)
    assert result["delivered"] is True
    assert result["payload_mb_per_s"] > 0.85 * 12.5 * STREAM_SHARE
