"""Every transport keeps the contract of `netstack.base.transport`, and the contract notices one that does not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import check_half_closeable_stream

from netstack import TrioStream
from netstack.base.errors import ConnectionLost
from netstack.base.tls.certificates import make_authority, make_host
from netstack.base.transport import OneWaiter
from netstack.testing.contracts import TRANSPORT_CHECKS, check_transport, clog, connected, listen
from netstack_transports import memory, tls
from netstack_transports.memory import MemoryStream
from netstack_transports.shm import unsupported

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


@pytest.mark.parametrize("is_clogged", [False, True], ids=["empty", "clogged"])
def test_trio_stream_keeps_the_contract_of_trio(
    is_clogged: bool, make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pair() -> tuple[TrioStream, TrioStream]:
        listener = await listen(make_url())
        near, far = map(TrioStream, await connected(listener))
        listener.close()
        if is_clogged:  # the TLS handshake is complete: a full stream stays full, so nothing more is awaited
            for one, other in ((near, far), (far, near)):
                await one.send_all(b".")
                await other.receive_some(1)
        return near, far

    async def clogged_pair() -> tuple[TrioStream, TrioStream]:
        ends = await pair()
        while any([await clog(end.transport_stream) for end in ends]):
            pass  # the system moves bytes from one full direction while the other one fills
        return ends

    if is_clogged:
        monkeypatch.setattr(tls, "LINGER_S", 0.0)
    trio.run(check_half_closeable_stream, pair, clogged_pair if is_clogged else None)


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
    yield "one_task_waits_for_each_direction", lambda: monkeypatch.setattr(OneWaiter, "__enter__", nothing)
    yield "windows_without_room_are_refused", lambda: monkeypatch.setattr(memory, "check_room", nothing)
    yield "counts_are_bytes_whatever_the_items_are", lambda: monkeypatch.setattr(memory, "byte_view", memoryview)


@pytest.mark.parametrize("number", range(9))
def test_a_broken_transport_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, break_it = list(broken_transports(monkeypatch))[number]
    monkeypatch.setattr("netstack.testing.contracts.LIMIT_S", 0.2)
    break_it()
    with pytest.raises((AssertionError, ConnectionLost, ValueError, ExceptionGroup)):
        trio.run(TRANSPORT_CHECKS[name], memory_urls())
