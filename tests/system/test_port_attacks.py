"""Ten attacks on page, metrics, control and data ports while a job runs: by strangers, and by peers after the proof."""

from __future__ import annotations

import random
import struct
from functools import partial
from pathlib import Path
from typing import Final

import cluster_jobs
import msgpack
import pytest
import trio
from system.cluster_rig import ClusterRig, memory_bytes, port_of

from netstack.base.transport import transport_for
from netstack.cluster.control.messages import GREETING, VERSION
from netstack.cluster.control.routing import write_route
from netstack.cluster.jobmanager.client import JobClient
from netstack.network.connection.authentication import Secret, prove_dialler

pytestmark = pytest.mark.slow
ROUNDS: Final = 5
GROWTH_BYTES: Final = 16 << 20


def framed(document: object) -> bytes:
    body = msgpack.packb(document)
    return struct.pack(">I", len(body)) + body


def deep(levels: int) -> bytes:
    body = b"\x91" * levels + b"\xc0"
    return struct.pack(">I", len(body)) + body


_GREETING: Final = [GREETING, VERSION, "0.4.0+0", "x" * 100, "taskmanager", {"slots": 1 << 20, "data": "tcp://x:1"}]

ATTACKS: Final[dict[str, bytes]] = {
    "endless length": struct.pack(">I", 0xFFFFFFFF) + bytes(1 << 16),
    "full frame of nothing": struct.pack(">I", 1 << 16) + bytes(1 << 16),
    "deep document": deep(50_000),
    "many parts": framed([[[]] * 10_000]),
    "extension types": framed([msgpack.ExtType(5, bytes(12))] * 100),
    "greeting of a TaskManager": framed(_GREETING),
    "greeting with tasks": framed(_GREETING) + framed(["TaskFinished", "0" * 16, [0, 0, 0], [], {}, None, []]) * 50,
    "Flink's partition request": bytes.fromhex("00000061badc0ffe02") + bytes(88),
    "frames of data": b"".join(struct.pack(">IBBHIIII", 24, 3, 0, 0, 0, n, 0, 0) for n in range(1000)),
    "noise": random.Random(5).randbytes(1 << 16),
}


async def attack(port: int, data: bytes, secret: Secret | None) -> bytes:
    """What came back until the other end closed; with a secret it is proven first, and a control connection begun."""
    stream = await transport_for("tcp://").connect(f"tcp://127.0.0.1:{port}")
    received = b""
    window = memoryview(bytearray(1 << 16))
    try:
        if secret is not None:
            await prove_dialler(stream, secret=secret)
            await write_route(stream, None)
        view = memoryview(data)
        with trio.move_on_after(30.0):
            while view or not received.endswith(b"closed"):
                if view:
                    view = view[stream.try_send((view,)) :]
                count = stream.try_receive_into((window,))
                if count == 0:
                    return received + b"closed"
                if count is None:
                    await (stream.wait_readable() if not view else stream.wait_writable())
                else:
                    received += bytes(window[:count])
    except Exception:  # the other end has closed, perhaps without reading all
        return received + b"closed"
    finally:
        stream.close()
    return received


async def all_attacks(ports: list[int], peers_at: list[int], secret: Secret) -> dict[tuple[int, str, bool], bytes]:
    received: dict[tuple[int, str, bool], bytes] = {}
    limit = trio.CapacityLimiter(16)

    async def one(port: int, name: str, is_peer: bool) -> None:
        async with limit:
            received[port, name, is_peer] = await attack(port, ATTACKS[name], secret if is_peer else None)

    async with trio.open_nursery() as nursery:
        for name in ATTACKS:
            for port in ports:
                nursery.start_soon(one, port, name, False)
            for port in peers_at:
                nursery.start_soon(one, port, name, True)
    return received


@pytest.mark.whole
def test_ten_attacks_at_every_port_cost_nothing(tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as rig:
        rig.start_taskmanagers(2, flags=["--slots-in", "loop"])
        done = tmp_path / "done"
        job_id = rig.ask(lambda client: client.submit(cluster_jobs.honest(until=str(done))))
        rig.wait_running(job_id)
        (taskmanager,) = rig.ask(JobClient.taskmanagers)
        peers_at = [port_of(rig.address), port_of(taskmanager["address"])]
        ports = [port_of(rig.page), port_of(rig.metrics), *peers_at]
        secret = Secret.from_file(rig.secret_file)
        rounds = partial(trio.run, all_attacks, ports, peers_at, secret)
        received = rounds()
        assert len(received) == 10 * 6
        assert all(received.values()), [each for each, answer in received.items() if not answer]
        assert rig.jobmanager is not None
        processes = [rig.jobmanager.pid, taskmanager["pid"]]
        before = [memory_bytes(each) for each in processes]
        for _ in range(ROUNDS):
            rounds()
        growth = [memory_bytes(each) - size for each, size in zip(processes, before, strict=True)]
        assert max(growth) < GROWTH_BYTES
        done.touch()
        rig.wait_until(lambda: rig.job(job_id)["ended_at"])
        ended = rig.job(job_id)
        assert (ended["state"], ended["restarts"]) == ("finished", 0)
        assert ended["results"]["count"]["0"] > 0  # it fails if one is missing or out of order
        assert [each["name"] for each in rig.ask(JobClient.taskmanagers)] == [taskmanager["name"]]
        assert rig.jobmanager.poll() is None
        assert "Traceback" not in rig.log()
