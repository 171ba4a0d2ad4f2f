"""The page's server: connections one by one, and the server as a whole, may fail without consequences."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from jobmanager.scripted_taskmanager import jobmanager
from page_attacks import ATTACKS, attack
from served_pages import ask, running

from netstack.base import contained
from netstack.cluster.jobmanager.views.metrics import CATALOGUE, statistics
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
