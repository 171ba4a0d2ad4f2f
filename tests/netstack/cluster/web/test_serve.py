"""The page's server: connections one by one, and the server as a whole, may fail without consequences."""

from __future__ import annotations

import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from jobmanager.scripted_taskmanager import jobmanager
from served_pages import ask, running
from system.page_attacks import ATTACKS, attack

from netstack.base import contained
from netstack.cluster.jobmanager.views.metrics import CATALOGUE, statistics
from netstack.cluster.web import guard
from netstack.cluster.web.http1 import MAX_CONNECTIONS, HttpServer
from netstack.cluster.web.serve import open_web
from netstack.network.metrics.samples import samples


@pytest.mark.parametrize("name", ATTACKS)
async def test_bytes_of_a_stranger_end_their_connection_only(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        port = urlsplit(url).port or 0
        answer = await trio.to_thread.run_sync(attack, port, name)
        # Without a secret everything may be read: what asks for a token elsewhere is answered.
        assert int(answer.split()[1]) in (*ATTACKS[name].statuses, *((200,) if 401 in ATTACKS[name].statuses else ()))
        assert (await ask(f"{url}/overview"))[0] == 200
    assert not [each for each in caplog.records if each.levelno > logging.INFO and each.name == "netstack.web"]


async def test_a_mistake_in_a_connection_is_a_line_and_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("\x1b[2J")

    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        watching = await trio.open_tcp_stream("127.0.0.1", urlsplit(url).port or 0)
        await watching.send_all(f"GET /netstack/events HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode())
        assert b"200" in await watching.receive_some(1 << 16)
        with monkeypatch.context() as patch:
            patch.setattr("netstack.cluster.web.http1._Connection._scope_of", breaks)
            for _ in range(50):
                broken = await trio.open_tcp_stream("127.0.0.1", urlsplit(url).port or 0)
                await broken.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await broken.receive_some(10) == b""
                await broken.aclose()
        assert (await ask(f"{url}/overview"))[0] == 200
        assert await watching.receive_some(1 << 16), "another connection goes on"
        await watching.aclose()
        assert manager.server_failures == {"page": 0, "metrics": 0}
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert 1 <= len(lines) < 40
    assert all("KeyError" in line and line.isprintable() for line in lines)


async def test_a_server_that_dies_is_started_again_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contained, "RESTART_PAUSE_S", 0.01)
    serve = HttpServer.serve
    deaths = iter([KeyError("a bug"), ExceptionGroup("several", [ValueError("of another library")])])

    async def dies(self: HttpServer) -> None:
        for error in deaths:
            raise error
        await serve(self)

    monkeypatch.setattr(HttpServer, "serve", dies)
    async with running() as (manager, url, job_id):
        assert (await ask(f"{url}/jobs/{job_id}"))[0] == 200
        counted = {
            sample.labels["server"]: sample.value
            for sample in samples(statistics(manager), catalogue=CATALOGUE)
            if sample.metric.name == "netstack_jobmanager_server_failures_total"
        }
        assert counted == {"page": 2.0, "metrics": 0.0}
    lines = [each.getMessage() for each in caplog.records if each.name == "netstack.web"]
    assert [("KeyError" in line, "ValueError" in line) for line in lines] == [(True, False), (False, True)]


async def test_of_many_connections_those_without_a_request_give_way() -> None:
    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        port = urlsplit(url).port or 0
        asked = f"GET /netstack/events HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode()
        streams: list[Any] = [await trio.open_tcp_stream("127.0.0.1", port)]
        await streams[0].send_all(asked)
        assert b"200" in await streams[0].receive_some(1 << 16)
        for _ in range(MAX_CONNECTIONS):
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
        with trio.fail_after(120.0):
            assert await streams[1].receive_some(1) == b"", "the oldest that has asked for nothing"
        assert await streams[0].receive_some(1 << 16)
        assert (await ask(f"{url}/overview"))[0] == 200
        for stream in streams:
            await stream.aclose()


async def test_of_many_connections_that_wait_for_their_peers_the_slowest_gives_way() -> None:
    """Uploads that never end, and pages that nobody reads, took the place of a stream that somebody watches."""
    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        port, host = urlsplit(url).port or 0, urlsplit(url).netloc
        upload = f"POST /netstack/session HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n{{".encode()
        unread = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * 200
        watched = await trio.open_tcp_stream("127.0.0.1", port)
        await watched.send_all(f"GET /netstack/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b"200" in await watched.receive_some(1 << 16)
        for asked in (upload, unread):
            streams: list[Any] = []
            with trio.fail_after(120.0):
                for _ in range(MAX_CONNECTIONS + 5):
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    await stream.send_all(asked)
                    streams.append(stream)
                if asked is upload:
                    assert await streams[0].receive_some(1) == b"", "it was heard, and has to give way"
                else:
                    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012  # reset, after some pages
                        while await streams[0].receive_some(1 << 20):
                            pass
                        raise trio.BrokenResourceError
                for _ in range(3):
                    assert await watched.receive_some(1 << 20)
            for stream in streams:
                await stream.aclose()
        await watched.aclose()


async def test_the_answer_to_head_ends_also_that_of_a_stream() -> None:
    """It sends nothing any more, so nobody would notice that its peer has left."""
    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        rest = f" HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n"
        stream = await trio.open_tcp_stream("127.0.0.1", urlsplit(url).port or 0)
        with trio.fail_after(60.0):
            await stream.send_all(f"HEAD /netstack/events{rest}HEAD /overview{rest}GET /jobs{rest}".encode())
            received = b""
            while b'{"jobs":[]}' not in received and (part := await stream.receive_some(1 << 16)):
                received += part
        assert received.count(b"HTTP/1.1 200") == 3
        assert b"text/event-stream" in received
        await stream.aclose()


async def test_a_body_of_very_many_chunks_does_not_occupy_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 1000.0)  # a busy machine takes more than 10 s for it
    async with jobmanager() as manager, open_web(manager, "127.0.0.1:0") as url:
        head = f"POST /netstack/session HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nTransfer-Encoding: chunked\r\n\r\n"
        stream = await trio.open_tcp_stream("127.0.0.1", urlsplit(url).port or 0)
        rounds = 0
        async with trio.open_nursery() as nursery:

            async def count() -> None:
                nonlocal rounds
                while True:
                    await trio.lowlevel.checkpoint()
                    rounds += 1

            await stream.send_all(head.encode() + b"1\r\nx\r\n" * 10_000)
            nursery.start_soon(count)
            await stream.send_all(b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")
            received = b""
            while b"not JSON" not in received and (part := await stream.receive_some(1 << 16)):
                received += part
            nursery.cancel_scope.cancel()
        assert b"not JSON" in received
        assert rounds > 500, "about 50 where 64 KiB are handled at a time"
        await stream.aclose()
