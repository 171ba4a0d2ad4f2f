"""What is particular to TCP: addresses, options, what the system's errors become."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
import trio
import trio.testing
from trio_runs import virtual_clock

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream, Listener
from netstack_transports import tcp
from netstack_transports.tcp import TcpTransport, split_host_port

TCP = TcpTransport()
ANY_PORT = "tcp://127.0.0.1:0"


async def connected(listener: Listener) -> tuple[ByteStream, ByteStream]:
    near = await TCP.connect(listener.address)
    return near, await listener.accept()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tcp://127.0.0.1", "needs a host and a port, such as tcp://127.0.0.1:6121"),
        ("tcp://:6121", "needs a host and a port"),
        ("tcp://", "needs a host and a port"),
        ("tcp://host:65536", "out of range"),
        ("tcp://host:http", "could not be cast"),
    ],
)
def test_bad_addresses(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        split_host_port(url)
    assert repr(url) in str(caught.value)


def test_host_and_port() -> None:
    assert split_host_port("tcp://host.example:6121") == ("host.example", 6121)
    assert split_host_port("tcp://[::1]:1") == ("::1", 1)


async def test_port_0_picks_one_and_says_which() -> None:
    first, second = await TCP.listen(ANY_PORT), await TCP.listen(ANY_PORT)
    ports = {split_host_port(listener.address)[1] for listener in (first, second)}
    assert len(ports - {0}) == 2
    first.close()
    second.close()


async def test_ipv6() -> None:
    try:
        listener = await TCP.listen("tcp://[::1]:0")
    except OSError:
        pytest.skip("this host has no IPv6")
    assert listener.address.startswith("tcp://[::1]:")
    near, far = await connected(listener)
    assert far.peer.startswith("tcp://[::1]:")
    for closable in (near, far, listener):
        closable.close()


async def test_options_on_both_ends() -> None:
    listener = await TCP.listen(ANY_PORT)
    for stream in (pair := await connected(listener)):
        sock: socket.socket = stream._socket  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert not sock.getblocking()
        facts = stream.tcp_facts()
        assert facts["congestion_control"]
        assert int(facts["send_buffer_bytes"]) > 0
        assert int(facts["receive_buffer_bytes"]) > 0
    for closable in (*pair, listener):
        closable.close()


async def test_a_port_in_use_says_what_to_do() -> None:
    listener = await TCP.listen(ANY_PORT)
    with pytest.raises(OSError, match="choose another port, or 0") as caught:
        await TCP.listen(listener.address)
    assert caught.value.errno == errno.EADDRINUSE
    assert listener.address in str(caught.value)
    listener.close()


@pytest.mark.parametrize("url", ["tcp://192.0.2.1:0", "tcp://a..b:0"])
async def test_an_address_that_is_not_ours_cannot_be_listened_at(url: str) -> None:
    with pytest.raises(OSError, match="cannot listen at") as caught:
        await TCP.listen(url)
    assert caught.value.errno == errno.EADDRNOTAVAIL
    assert url in str(caught.value)


async def test_nobody_there_says_what_to_check() -> None:
    with pytest.raises(ConnectionLost, match=r"tcp://127.0.0.1:1: .*is anything listening"):
        await TCP.connect("tcp://127.0.0.1:1")
    with pytest.raises(ConnectionLost, match=r"tcp://255.255.255.255:1: .*host up"):
        await TCP.connect("tcp://255.255.255.255:1")


async def test_a_host_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)

    with pytest.raises(ConnectionLost, match=r"resolve tcp://nowhere:1: .*; check"):
        await TCP.connect("tcp://nowhere:1")
    with pytest.raises(OSError, match=r"listen at tcp://nowhere:1: .*; name"):
        await TCP.listen("tcp://nowhere:1")


async def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await TCP.listen(ANY_PORT)
    host, port = split_host_port(listener.address)
    entry = (socket.AF_INET, socket.SOCK_STREAM, 0, "")

    async def two(*args: object, **options: object) -> list[object]:
        return [(*entry, ("127.0.0.1", 1)), (*entry, (host, port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", two)
    near = await TCP.connect("tcp://two-addresses:1")
    assert near.peer == "tcp://two-addresses:1"
    for closable in (near, await listener.accept(), listener):
        closable.close()


def resolves_to(monkeypatch: pytest.MonkeyPatch, *targets: tuple[object, ...]) -> None:
    """Makes every name resolve to these addresses; twice, as where /etc/hosts lists a name twice."""

    async def resolve(_host: object, port: object, **options: object) -> list[object]:
        families = [(socket.AF_INET6 if ":" in str(target[0]) else socket.AF_INET, target) for target in targets]
        return [(family, socket.SOCK_STREAM, 0, "", (each[0], port, *each[1:])) for family, each in families * 2]

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve)


async def test_a_name_of_several_addresses_is_listened_at_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ("127.0.0.3",), ("127.0.0.2",))
    listener = await TCP.listen("tcp://localhost:0")
    host, port = split_host_port(listener.address)
    assert host == "localhost", "the name that certificates and clients know"
    for target in ("127.0.0.2", "127.0.0.3", "127.0.0.2"):
        with socket.create_connection((target, port)):
            stream = await listener.accept()
            assert stream.endpoints()[0] == f"{target}:{port}"
            stream.close()
    with pytest.raises(OSError, match=r"tcp://localhost:\d+: Address already in use"):
        await TCP.listen(listener.address)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()


async def test_an_address_that_the_host_lacks_is_left_out_unless_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `::1` of localhost where IPv6 is switched off."""
    resolves_to(monkeypatch, ("203.0.113.1",), ("127.0.0.1",))
    listener = await TCP.listen("tcp://localhost:0")
    near, far = await connected(listener)
    assert far.endpoints()[0].startswith("127.0.0.1:")
    for closable in (near, far, listener):
        closable.close()
    resolves_to(monkeypatch, ("203.0.113.1",), ("203.0.113.2",))
    with pytest.raises(OSError, match="tcp://localhost:0: Cannot assign"):
        await TCP.listen("tcp://localhost:0")


async def test_a_free_port_is_free_at_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ("127.0.0.2",), ("127.0.0.3",))
    bound, taken = tcp._bound, [True, False]

    def other(family: int, target: tuple[object, ...], *, is_alone: bool) -> socket.socket:
        if target[0] == "127.0.0.3" and taken.pop(0):
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return bound(family, target, is_alone=is_alone)

    monkeypatch.setattr(tcp, "_bound", other)
    (await TCP.listen("tcp://localhost:0")).close()
    assert not taken


async def test_both_families_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ("::1", 0, 0), ("127.0.0.1",))
    listener = await TCP.listen("tcp://localhost:0")
    port = split_host_port(listener.address)[1]
    with socket.create_connection(("127.0.0.1", port)):
        (await listener.accept()).close()
    listener.close()


async def test_a_reset_is_a_lost_connection() -> None:
    listener = await TCP.listen(ANY_PORT)
    with socket.create_connection(split_host_port(listener.address)) as raw:
        stream = await listener.accept()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.wait_readable()
    with pytest.raises(ConnectionLost, match="Connection reset by peer") as caught:
        stream.try_receive_into([memoryview(bytearray(1))])
    assert stream.peer in str(caught.value)
    stream.close()
    listener.close()


class Faulty:
    """A listening socket whose `accept` fails in given ways first."""

    def __init__(self, sock: socket.socket, failures: list[OSError]) -> None:
        self._sock = sock
        self._failures = failures

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> object:
        if self._failures:
            raise self._failures.pop(0)
        return self._sock.accept()

    def close(self) -> None:
        self._sock.close()


def test_accepting_goes_on_after_trouble_that_passes() -> None:
    async def test() -> None:
        listener = await TCP.listen(ANY_PORT)
        failures = [BlockingIOError(), ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files")]
        listener._sockets = [Faulty(listener._sockets[0], failures)]  # type: ignore[attr-defined]
        near, far = await connected(listener)
        assert not failures
        for closable in (near, far, listener):
            closable.close()

    trio.run(test, clock=virtual_clock(0.01))


async def test_accepting_reports_trouble_that_stays() -> None:
    listener = await TCP.listen(ANY_PORT)
    listener._sockets = [Faulty(listener._sockets[0], [OSError(errno.EINVAL, "broken")])]  # type: ignore[attr-defined]
    near = await TCP.connect(listener.address)
    with pytest.raises(OSError, match="broken"):
        await listener.accept()
    near.close()
    listener.close()


async def test_a_peer_that_was_gone_before_it_was_accepted() -> None:
    listener = await TCP.listen(ANY_PORT)
    with socket.create_connection(split_host_port(listener.address)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near = await TCP.connect(listener.address)
    streams = [await listener.accept()]
    if streams[0].peer == "a disconnected peer":
        streams.append(await listener.accept())
    near.close()
    for closable in (*streams, listener):
        closable.close()


async def test_cancelled_dialling_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    async def never(sock: socket.socket, target: object) -> None:
        made.append(sock)
        await trio.sleep_forever()

    monkeypatch.setattr("netstack_transports.tcp.connect_socket", never)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TCP.connect, "tcp://127.0.0.1:1")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [sock.fileno() for sock in made] == [-1]
