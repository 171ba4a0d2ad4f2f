"""TLS: who is let in, what renewed certificates do, and a TaskManager over it."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_network
from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.tls.certificates import make_authority, make_host
from netstack.base.transport import ByteStream, transport_for
from netstack.cli import main as netstack
from netstack.testing.contracts import receive, send_all
from netstack_transports import memory

pytest.importorskip("cryptography")

HOST = ["127.0.0.1", "localhost"]
CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=128 * 1024)


@pytest.fixture
def host(authority: Path, tmp_path: Path) -> Path:
    make_host(tmp_path / "host", authority, HOST)
    return tmp_path / "host"


def url(folder: Path, port: int | str = 0, more: str = "") -> str:
    return f"tls+tcp://127.0.0.1:{port}?folder={folder}{more}"


async def talk(server: str, client: Callable[[str], str]) -> tuple[str, str]:
    """What both ends meet: the error of each, or what it read."""
    listener = await transport_for(server).listen(server)
    port = listener.address.partition("?")[0].rpartition(":")[2]
    near = await transport_for(client(port)).connect(client(port))
    far = await listener.accept()
    met: dict[str, str] = {}

    async def use(name: str, stream: ByteStream) -> None:
        try:
            await send_all(stream, [name.encode()])
            met[name] = (await receive(stream, 4)).decode()
        except (ConnectionLost, AssertionError) as error:
            met[name] = str(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, "near", near)
        nursery.start_soon(use, "far.", far)
    for closable in (near, far, listener):
        closable.close()
    return met["near"], met["far."]


@pytest.mark.parametrize("name", ["10.0.0.1:6121", "tcp://host-1", "two words", "a..b", "straße.example"])
def test_a_name_that_no_host_has_gets_no_certificate(name: str, authority: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a host name nor an IP address; omit scheme and port"):
        make_host(tmp_path / "other", authority, [name])
    make_host(tmp_path / "other", authority, ["host_1.example", "*.example", "::1"])


async def test_both_ends_know_each_other(host: Path, authority: Path, tmp_path: Path) -> None:
    make_host(tmp_path / "other", authority, ["somewhere.else"])

    assert await talk(url(host), lambda port: url(host, port)) == ("far.", "near")
    # Who dials is known by the authority alone: it may come from anywhere.
    assert await talk(url(host), lambda port: url(tmp_path / "other", port)) == ("far.", "near")


async def test_a_certificate_for_another_name_is_refused_unless_told_otherwise(
    host: Path, authority: Path, tmp_path: Path
) -> None:
    make_host(tmp_path / "other", authority, ["10.9.9.9", "somewhere.else"])

    near, far = await talk(url(tmp_path / "other"), lambda port: url(host, port))
    assert "was rejected: IP address mismatch, certificate is not valid for '127.0.0.1'" in near
    assert "tls+tcp://127.0.0.1" in near
    assert "near" not in far
    assert await talk(url(tmp_path / "other"), lambda port: url(host, port, "&names=off")) == ("far.", "near")


async def test_a_stranger_s_authority_is_refused_by_either_end(host: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "strange")
    make_host(tmp_path / "stranger", tmp_path / "strange", HOST)
    shutil.copytree(tmp_path / "stranger", tmp_path / "believer")
    shutil.copy(host / "ca.pem", tmp_path / "believer" / "ca.pem")

    near, _ = await talk(url(tmp_path / "stranger"), lambda port: url(host, port))
    assert "certificate of tls+tcp://127.0.0.1" in near
    assert "was rejected" in near
    # It believes us, and we do not believe it.
    near, far = await talk(url(host), lambda port: url(tmp_path / "believer", port))
    assert "was rejected" in far
    assert "rejected our certificate" in near or "ended" in near or "broke" in near


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shows", [False, True])
async def test_what_others_speak(host: Path, version: ssl.TLSVersion, shows: bool) -> None:
    """A client of trio's own, of a version and with or without a certificate."""
    context = ssl.create_default_context(cafile=str(host / "ca.pem"))
    context.maximum_version = version
    if shows:
        context.load_cert_chain(host / "certificate.pem", host / "key.pem")

    for lowest in ("1.2", "1.3"):
        address = url(host, 0, f"&tls={lowest}")
        listener = await transport_for(address).listen(address)
        port = int(listener.address.partition("?")[0].rpartition(":")[2])
        outcome = "nothing"

        async def dial(port: int = port) -> None:
            nonlocal outcome
            raw = await trio.open_tcp_stream("127.0.0.1", port)
            try:
                stream = trio.SSLStream(raw, context, server_hostname="127.0.0.1", https_compatible=True)
                await stream.send_all(b"hello")
                outcome = (await stream.receive_some(10)).decode()
                await stream.aclose()
            except (trio.BrokenResourceError, ssl.SSLError):
                outcome = "refused"
            finally:
                await trio.aclose_forcefully(raw)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            stream = await listener.accept()
            try:
                assert await receive(stream, 5) == b"hello"
                await send_all(stream, [b"welcome"])
            except ConnectionLost:
                pass
            else:
                assert await stream.wait_readable() is None
                assert stream.try_receive_into([memoryview(bytearray(1))]) == 0
            stream.close()
        listener.close()
        fits = shows and (lowest == "1.2" or version is ssl.TLSVersion.TLSv1_3)
        assert outcome == ("welcome" if fits else "refused"), (lowest, version, shows)


async def test_a_peer_without_tls_and_a_silent_one_keep_nobody_out(host: Path) -> None:
    listener = await transport_for(url(host)).listen(url(host))
    port = int(listener.address.partition("?")[0].rpartition(":")[2])
    silent = await trio.open_tcp_stream("127.0.0.1", port)
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    await plain.send_all(b"GET / HTTP/1.1\r\n\r\n")
    first, second = await listener.accept(), await listener.accept()
    near = await transport_for(url(host)).connect(url(host, port))
    third = await listener.accept()
    await send_all(near, [b"hello"])
    assert await receive(third, 5) == b"hello"
    assert first.try_receive_into([memoryview(bytearray(1))]) is None
    await second.wait_readable()
    with pytest.raises(ConnectionLost, match="check that it uses TLS"):
        second.try_receive_into([memoryview(bytearray(1))])
    for stream in (first, second, third, near, listener):
        stream.close()
    assert await silent.receive_some() == b""
    await silent.aclose()
    await plain.aclose()


async def test_renewed_certificates_are_used_from_the_next_connection_on(
    host: Path, authority: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_host(tmp_path / "peer", authority, HOST)

    listener = await transport_for(url(host)).listen(url(host))
    port = listener.address.partition("?")[0].rpartition(":")[2]

    async def seen() -> bytes:
        near = await transport_for(url(host)).connect(url(tmp_path / "peer", port))
        far = await listener.accept()
        await send_all(near, [b"x"])
        await receive(far, 1)
        binding = far.channel_binding()
        assert binding == near.channel_binding()
        assert len(binding) == 64
        near.close()
        far.close()
        return binding[:32]

    before = await seen()
    assert await seen() == before
    (host / "key.pem").rename(tmp_path / "gone")  # in the middle of a renewal
    assert await seen() == before
    assert "renewed certificates cannot be used yet" in caplog.text
    make_host(host, authority, HOST)
    assert await seen() != before
    listener.close()


async def test_sending_while_another_task_waits_for_room_breaks_nothing(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of what was sent waits for room too; the task that began first gives way, and continues to wait."""
    address = f"tls+memory://room?names=off&folder={host}"
    listener = await transport_for(address).listen(address)
    near = await transport_for(listener.address).connect(listener.address)
    far = await listener.accept()
    await send_all(near, [b"x"])
    await receive(far, 1)
    await send_all(far, [b"x"])
    await receive(near, 1)
    monkeypatch.setattr(memory, "CAPACITY_BYTES", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        assert near.try_send([b"urgent"]) == 6
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        monkeypatch.setattr(memory, "CAPACITY_BYTES", 1024)
        near._inner._out.changed.unpark_all()  # type: ignore[attr-defined]
        await trio.testing.wait_all_tasks_blocked()
        assert far.try_receive_into([memoryview(bytearray(10))]) == len(b"urgent")
    for closable in (near, far, listener):
        closable.close()


async def test_what_is_wrong_with_the_files_is_said_at_once(host: Path, tmp_path: Path) -> None:
    async def refused(address: str) -> str:
        with pytest.raises(ConfigError) as caught:
            await transport_for(address).listen(address)
        return str(caught.value)

    assert "netstack certificate" in await refused(url(tmp_path / "nowhere"))
    assert "known are folder=PATH" in await refused(url(host, 0, "&x=1"))
    (host / "key.pem").chmod(0o644)
    assert "chmod 600" in await refused(url(host))
    (host / "key.pem").chmod(0o600)
    make_authority(tmp_path / "another")
    make_host(tmp_path / "mixed", tmp_path / "another", HOST)
    shutil.copy(host / "key.pem", tmp_path / "mixed" / "key.pem")
    assert "cannot be used: KEY_VALUES_MISMATCH" in await refused(url(tmp_path / "mixed"))
    (host / "ca.pem").write_text("nothing")
    assert "cannot be used" in await refused(url(host))


def test_where_the_files_are_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETSTACK_TLS", raising=False)
    with pytest.raises(ConfigError, match="NETSTACK_TLS"):
        trio.run(transport_for("tls+tcp://h:1").connect, "tls+tcp://h:1")


@pytest.mark.parametrize("dialect", ["netstack", "flink-2.3.0"])
async def test_records_over_tls(host: Path, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETSTACK_TLS", str(host))
    config = NetworkConfig(segment_size_bytes=1024, memory_bytes=256 * 1024, dialect=dialect)
    name = "p" if dialect == "netstack" else "ab" * 60
    records = [b"%d" % number for number in range(5000)]

    async with open_network("tls+tcp://127.0.0.1:0", config) as producer:
        assert producer.address.startswith("tls+tcp://127.0.0.1:")
        writer = RecordWriter(producer.create_partition(name, subpartitions=1))
        async with open_network("tls+tcp://127.0.0.1:0", config) as consumer, trio.open_nursery() as nursery:

            async def produce() -> None:
                for record in records:
                    await writer.emit(record)
                await writer.finish()

            nursery.start_soon(produce)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
            assert [record async for record in RecordReader(gate)] == records
            await writer.wait_consumed()


async def test_the_command_makes_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca, host = str(tmp_path / "ca"), str(tmp_path / "host")
    assert netstack(["certificate", "authority", ca]) == 0
    assert netstack(["certificate", "authority", ca]) == 2
    assert "exists" in capsys.readouterr().err
    assert netstack(["certificate", "host", host, "127.0.0.1", "--authority", ca]) == 0
    assert sorted(os.listdir(host)) == ["ca.pem", "certificate.pem", "key.pem"]
    assert (Path(host) / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (Path(ca) / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    assert netstack(["certificate", "host", host, "not a name ü", "--authority", ca]) == 2
    assert netstack(["certificate", "host", host, "x", "--authority", host]) == 2

    assert await talk(url(Path(host)), lambda port: url(Path(host), port)) == ("far.", "near")
