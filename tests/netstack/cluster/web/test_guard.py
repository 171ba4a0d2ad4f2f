"""Pages of others, endless bodies, long names and broken questions: raw requests over real sockets."""

from __future__ import annotations

import json
import logging
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing
from jobmanager.scripted_taskmanager import jobmanager
from served_pages import running

from netstack.cluster.web import app
from netstack.cluster.web.app import MAX_STREAMS, Web
from netstack.cluster.web.guard import MAX_BODY_BYTES, LoginSessions


async def request(
    url: str, line: str, *headers: str, body: bytes = b"", host: str | None = None
) -> tuple[int, str, Any]:
    """Status, headers and document; a status of 0 if nothing came."""
    parts = urlsplit(url)
    reported = [f"Host: {parts.netloc if host is None else host}", "Connection: close", *headers]
    if body and not any(each.startswith("Transfer-Encoding") for each in headers):
        reported.append(f"Content-Length: {len(body)}")
    data = "\r\n".join([f"{line} HTTP/1.1", *reported, "", ""]).encode() + body

    def talk() -> bytes:
        assert parts.port is not None
        with socket.create_connection(("127.0.0.1", parts.port), timeout=30) as peer:
            received = b""
            try:
                peer.sendall(data)
                while part := peer.recv(1 << 16):
                    received += part
            except OSError:  # it has said enough, and closed
                pass
            return received

    head, _, rest = (await trio.to_thread.run_sync(talk)).partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    return status, head.decode().lower(), json.loads(rest) if rest.startswith((b"{", b"[")) else rest


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[::1", "localhost@evil"]
)
async def test_who_is_asked_under_a_foreign_name_answers_nothing(host: str) -> None:
    async with running(may_change=True) as (manager, url, job_id):
        status, _, reported = await request(url, f"PATCH /jobs/{job_id}?mode=cancel", host=host)
        assert status in (400, 421), reported
        assert job_id in manager.dispatcher.running
        assert (await request(url, "GET /overview", host=host))[0] in (400, 421)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80", socket.gethostname(), "given.example"]
)
async def test_its_own_names_and_any_address_are_answered(host: str) -> None:
    async with running(names=["Given.Example"]) as (_, url, _):
        assert (await request(url, "GET /overview", host=host))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Origin: http://127.0.0.1:1"],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
    ],
)
async def test_a_page_of_others_changes_nothing(headers: list[str]) -> None:
    async with running(may_change=True) as (manager, url, job_id):
        for line in (f"PATCH /jobs/{job_id}?mode=cancel", f"POST /jobs/{job_id}/savepoints"):
            status, _, reported = await request(url, line, *headers)
            assert (status, len(reported["errors"])) == (403, 1)
        assert job_id in manager.dispatcher.running
        place = urlsplit(url).netloc
        assert (await request(url, f"PATCH /jobs/{job_id}?mode=cancel", f"Origin: http://{place}"))[0] == 202


async def test_long_bodies_and_names_are_refused_and_say_little(caplog: pytest.LogCaptureFixture) -> None:
    async with running(may_change=True) as (_, url, job_id):
        save = f"POST /jobs/{job_id}/savepoints"
        assert (await request(url, save, "Content-Length: 600000000"))[0] == 413
        assert (await request(url, save, f"Content-Length: {'9' * 400}"))[0] in (400, 413)
        chunk = b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"
        assert (await request(url, save, "Transfer-Encoding: chunked", body=2 * chunk + b"0\r\n\r\n"))[0] == 413
        assert (await request(url, save, body=b"[" * (MAX_BODY_BYTES - 1)))[0] == 400
        for bad in (b"{", b"\xff", b"nul"):
            status, _, reported = await request(url, save, body=bad)
            assert (status, reported["errors"][0].startswith("the body is not JSON")) == (400, True)
        for line in (
            f"GET /jobs/{job_id}/vertices/{'9' * 5000}",
            f"GET /jobs/{job_id}?x={'y' * 5000}",
            f"GET /{'z' * 9000}",
        ):
            assert (await request(url, line))[0] == 414
        assert (await request(url, f"GET /jobs/{job_id}/vertices/{'9' * 1900}"))[0] == 404
        assert not [each for each in caplog.records if each.name == "netstack.web" and each.levelno > logging.INFO]


async def test_a_request_that_breaks_is_a_line_and_breaks_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("\x1b[2J")

    async with running() as (_, url, _):
        monkeypatch.setattr("netstack.cluster.web.flink.overview", breaks)
        for _ in range(100):
            status, _, reported = await request(url, "GET /overview")
            assert (status, reported["errors"]) == (
                500,
                ["the JobManager failed to serve this request; its log has the error"],
            )
        assert (await request(url, "GET /jobs"))[0] == 200
    lines = [each for each in caplog.records if each.name.startswith("netstack.web")]
    assert 1 <= len(lines) < 40
    assert all(each.exc_info is None and each.getMessage().isprintable() for each in lines)


async def test_no_page_of_others_frames_ours() -> None:
    async with running() as (_, url, _):
        _, head, _ = await request(url, "GET /")
        assert re.search(r"content-security-policy: .*frame-ancestors 'none'", head)
        assert "x-content-type-options: nosniff" in head


async def test_of_many_streams_the_oldest_give_way() -> None:
    async with running() as (_, url, _):
        parts = urlsplit(url)
        asked = f"GET /netstack/events HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        streams = []
        for _ in range(MAX_STREAMS + 10):
            stream = await trio.open_tcp_stream("127.0.0.1", parts.port or 0)
            await stream.send_all(asked)
            assert b"200" in await stream.receive_some(1 << 16)
            streams.append(stream)
        for stream in streams[:10]:
            received = b""
            while not received.endswith(b"0\r\n\r\n"):  # the end of the answer
                received += await stream.receive_some(1 << 20)
        assert await streams[-1].receive_some(1 << 20)
        for stream in streams:
            await stream.aclose()


async def test_streams_that_nobody_reads_hold_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may have 16 MiB, and each of 64 streams held its own copies."""
    monkeypatch.setattr(app, "MAX_EVENTS_BYTES", 35_000)
    async with jobmanager() as manager:
        web = Web(manager, sessions=LoginSessions([], is_secure=False), may_change=False)
        scope = {"type": "http", "method": "GET", "path": "/netstack/events", "query_string": b"", "headers": []}
        began = 0

        async def receive() -> Any:
            await trio.sleep_forever()

        async def never_reads(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.body":
                began += 1
                await trio.sleep_forever()

        def held_bytes() -> int:
            return sum({id(event): len(event) for event in web._sending.values()}.values())

        async with trio.open_nursery() as nursery:
            for number in range(20):
                web.history.add(float(number), f'"{number:010000}"')
                nursery.start_soon(web.app, scope, receive, never_reads)
                await trio.testing.wait_all_tasks_blocked()
                assert began == number + 1
                assert 10_000 < held_bytes() <= 35_000
            assert len(web._sending) == 20
            nursery.cancel_scope.cancel()
        assert held_bytes() == 0
