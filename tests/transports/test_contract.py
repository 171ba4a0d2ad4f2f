"""Every transport keeps the contract of `netstack.transport`, and the contract notices one that does not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from netstack.certificates import make_authority, make_host
from netstack.errors import ConnectionLost
from netstack.testing.contracts import TRANSPORT_CHECKS, check_transport
from netstack.transports import memory
from netstack.transports.memory import MemoryStream
from netstack.transports.shm import unsupported

MakeUrl = Callable[[], str]
SCHEMES = ["tcp", "unix", "memory", "impaired+tcp", "impaired+unix", "impaired+memory"]
SCHEMES += ["tls+tcp", "tls+unix", "tls+memory", "impaired+tls+memory"]
if not unsupported():
    SCHEMES += ["shm", "impaired+shm", "tls+shm"]
IMPAIRED = "?delay=1ms&rate=200MiB&queue=64KiB"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder / "authority")
    make_host(folder / "host", folder / "authority", ["127.0.0.1", "localhost"])
    return folder / "host"


@pytest.fixture(params=SCHEMES)
def make_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeUrl:
    if "tls" in request.param:
        certificates = request.getfixturevalue("certificates")
        monkeypatch.setenv("NETSTACK_TLS", str(certificates))
    names = map(str, itertools.count())
    return {
        "tcp": lambda: "tcp://127.0.0.1:0",
        "unix": lambda: f"unix://{tmp_path}/{next(names)}",
        "memory": lambda: f"memory://contract-{next(names)}",
        "impaired+tcp": lambda: f"impaired+tcp://127.0.0.1:0{IMPAIRED}",
        "impaired+unix": lambda: f"impaired+unix://{tmp_path}/{next(names)}{IMPAIRED}",
        "impaired+memory": lambda: f"impaired+memory://contract-{next(names)}{IMPAIRED}",
        "tls+tcp": lambda: "tls+tcp://127.0.0.1:0",
        "tls+unix": lambda: f"tls+unix://{tmp_path}/{next(names)}?names=off",
        "tls+memory": lambda: f"tls+memory://contract-{next(names)}?names=off",
        "shm": lambda: f"shm://contract-{os.getpid()}-{next(names)}",
        "impaired+shm": lambda: f"impaired+shm://contract-{os.getpid()}-{next(names)}{IMPAIRED}",
        "tls+shm": lambda: f"tls+shm://contract-{os.getpid()}-{next(names)}?names=off",
        "impaired+tls+memory": lambda: f"impaired+tls+memory://contract-{next(names)}{IMPAIRED}",
    }[request.param]


@pytest.mark.parametrize("check", TRANSPORT_CHECKS)
def test_contract(check: str, make_url: MakeUrl) -> None:
    trio.run(TRANSPORT_CHECKS[check], make_url)


def memory_urls() -> MakeUrl:
    names = map(str, itertools.count())
    return lambda: f"memory://broken-{next(names)}"


def test_all_at_once() -> None:
    trio.run(check_transport, memory_urls())


def broken_transports(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """(the check that must fail, how to break the memory transport)."""

    def nothing(*args: object) -> None: ...

    original_send, original_read = MemoryStream.try_send, MemoryStream.try_receive_into

    yield (
        "bytes_arrive_in_order",
        lambda: monkeypatch.setattr(
            MemoryStream, "try_send", lambda self, pieces: original_send(self, list(pieces)[::-1])
        ),
    )
    yield "directions_end_separately", lambda: monkeypatch.setattr(MemoryStream, "send_eof", MemoryStream.close)
    yield "a_full_stream_takes_nothing", lambda: monkeypatch.setattr(memory, "CAPACITY_BYTES", 1 << 40)
    yield (
        "nothing_there_is_not_the_end",
        lambda: monkeypatch.setattr(
            MemoryStream, "try_receive_into", lambda self, windows: original_read(self, windows) or 0
        ),
    )
    yield (
        "what_has_come_is_known_without_reading",
        lambda: monkeypatch.setattr(MemoryStream, "has_come", lambda self: bool(self._in.size)),
    )
    yield "a_closed_stream_is_closed", lambda: monkeypatch.setattr(MemoryStream, "_check_open", nothing)


@pytest.mark.parametrize("number", range(6))
def test_a_broken_transport_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, break_it = list(broken_transports(monkeypatch))[number]
    monkeypatch.setattr("netstack.testing.contracts.LIMIT_S", 0.2)
    break_it()
    with pytest.raises((AssertionError, ConnectionLost, ExceptionGroup)):
        trio.run(TRANSPORT_CHECKS[name], memory_urls())
