"""A law over real processes: under any flood of frames, valid or not, others keep their share, and pings are answered.

The flooding processes take some of the machine themselves, and so may others; so the best of a few attempts counts.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from system import flood_processes
from system.flood_processes import HEADER, PING, PONG, frame, hello

PROGRAM = [sys.executable, flood_processes.__file__]
KEPT = 0.4
PING_S = 0.1
ATTEMPTS = 4
WINDOW_S = 0.8
WAIT_S = 120.0


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


class Victim:
    """What a producer has sent, and how fast it answers pings on a connection of its own."""

    def __init__(self, producer: subprocess.Popen[str]) -> None:
        assert producer.stdout is not None
        self._lines = producer.stdout
        self.address = self._lines.readline().strip()
        self._sent: list[tuple[float, float]] = []
        self._pings: list[tuple[float, float]] = []
        for task in (self._read, self._ping):
            threading.Thread(target=task, daemon=True).start()

    def rate(self, since: float) -> float:
        """Bytes a second."""
        rows = [(sent, at) for sent, at in list(self._sent) if at >= since]
        return (rows[-1][0] - rows[0][0]) / (rows[-1][1] - rows[0][1]) if len(rows) > 1 else 0.0

    def ping_s(self, since: float) -> float:
        """Of ten pings nine took no longer."""
        took = [took for at, took in list(self._pings) if at >= since]
        return statistics.quantiles(took, n=10)[-1] if len(took) > 1 else 10.0

    def _read(self) -> None:
        for line in self._lines:
            sent, at = line.split()
            self._sent.append((float(sent), float(at)))

    def _ping(self) -> None:
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as peer:
            peer.sendall(hello())
            received = peer.makefile("rb")
            while True:
                start = time.monotonic()
                peer.sendall(frame(PING, struct.pack(">Q", 1)))
                kind = 0
                while kind != PONG:
                    header = received.read(HEADER.size)
                    if len(header) < HEADER.size:
                        return
                    length, kind = struct.unpack_from(">IB", header)
                    received.read(length)
                self._pings.append((start, time.monotonic() - start))
                time.sleep(0.01)


class Said:
    """What a flood says of itself."""

    def __init__(self, flood: subprocess.Popen[str]) -> None:
        assert flood.stdout is not None
        self.heard = threading.Event()
        self.ended = 0
        self._lines = flood.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # the end of the flood closes its pipe
            for line in self._lines:
                self.ended += "ended" in line
                self.heard.set()


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with process("produce") as producer:
        victim = Victim(producer)
        with process("consume", victim.address):
            time.sleep(1.5)
            yield victim


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "connections"),
    [("pings", 1), ("pings", 16), ("pongs", 4), ("opens", 4), ("unknown", 4), ("credit", 4), ("garbage", 8)],
)
def test_others_keep_their_share_of_a_flooded_producer(victim: Victim, kind: str, connections: int) -> None:
    seen = []
    for _ in range(ATTEMPTS):
        since = time.monotonic()
        time.sleep(WINDOW_S)
        before = victim.rate(since)
        with process("flood", victim.address, kind, str(connections)) as flood:
            message = Said(flood)
            assert message.heard.wait(WAIT_S), "nobody heard the flood, so it shows nothing"
            time.sleep(0.6)  # until all of it has begun
            since = time.monotonic()
            time.sleep(WINDOW_S)
            assert kind == "garbage" or not message.ended, "the flood was refused, so it shows nothing"
            seen.append((victim.rate(since) / before if before else 0.0, victim.ping_s(since)))
        time.sleep(0.2)
        if seen[-1][0] >= KEPT and seen[-1][1] <= PING_S:
            return
    raise AssertionError(f"kept of the rate, and seconds for nine of ten pings: {seen}")
