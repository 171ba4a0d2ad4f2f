"""Who may look at a page: tokens that end, and sessions that browsers get for them."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from jobmanager.scripted_taskmanager import jobmanager
from served_pages import running

from netstack.base.errors import ConfigError
from netstack.base.tls import certificates
from netstack.cli import main
from netstack.cluster.web.guard import COOKIE, MAX_SESSIONS, SESSION_S, LoginSessions
from netstack.cluster.web.serve import open_web
from netstack.network.connection.authentication import Secret

SECRET = Secret.generate()


async def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Status, and the cookie that was set."""
    parts = urlsplit(url)

    def talk() -> tuple[int, str]:
        with_tls = ssl.create_default_context(cafile=headers.pop("ca")) if "ca" in headers else None
        made = http.client.HTTPConnection if with_tls is None else http.client.HTTPSConnection
        more = {} if with_tls is None else {"context": with_tls}
        connection = made(parts.hostname or "", parts.port, timeout=30, **more)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("Set-Cookie", "")
        finally:
            connection.close()

    return await trio.to_thread.run_sync(talk)


async def test_a_browser_gets_a_session_for_a_token() -> None:
    async with running(secret=SECRET, may_change=True) as (manager, url, job_id):
        end, _, proof = SECRET.web_token(-1).partition(".")
        longer = f"{int(end) + 3600}.{proof}"
        for wrong in ("", "1", longer, SECRET.web_token(-1), Secret.generate().web_token(), None, ["x"], "9" * 5000):
            assert (await ask(url, "POST", "/netstack/session", {"token": wrong}))[0] == 401
        assert (await ask(url, "POST", "/netstack/session", ["x"]))[0] == 401
        status, cookie = await ask(url, "POST", "/netstack/session", {"token": SECRET.web_token()})
        assert (status, cookie.partition("=")[0]) == (200, f"{COOKIE}_{urlsplit(url).port}")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        mine = cookie.partition(";")[0]
        assert (await ask(url, "GET", "/overview", Cookie=f"other=1; {mine}"))[0] == 200
        name = mine.partition("=")[0]
        for forged in ("", f"{mine}x", f"{name}=", f"{name}=\xff"):
            assert (await ask(url, "GET", "/overview", Cookie=forged))[0] == 401
        assert (await ask(url, "GET", "/", Cookie=""))[0] == 200, "the page itself, which asks for the token"
        evil = {"Cookie": mine, "Origin": "http://evil.example"}
        assert (await ask(url, "PATCH", f"/jobs/{job_id}", **evil))[0] == 403
        assert job_id in manager.dispatcher.running
        assert (await ask(url, "PATCH", f"/jobs/{job_id}", Cookie=mine))[0] == 202


def test_a_session_ends_with_its_token_and_there_are_so_many() -> None:
    now = [1e9]
    sessions = LoginSessions([SECRET], is_secure=True, clock=lambda: now[0])

    def token(end: float) -> str:
        text = str(int(end))
        return f"{text}.{SECRET._web_proof(text)}"

    def headers(cookie: str | None) -> dict[str, str]:
        assert cookie is not None
        assert "; Secure" in cookie
        return {"cookie": cookie.partition(";")[0]}

    short, long = headers(sessions.log_in(token(1e9 + 60))), headers(sessions.log_in(token(1e9 + 1e9)))
    bearer = {"authorization": f"Bearer {token(1e9 + 60)}"}
    assert (sessions.may(short), sessions.may(long), sessions.may(bearer)) == (True, True, True)
    now[0] += 61
    assert (sessions.may(short), sessions.may(long), sessions.may(bearer)) == (False, True, False)
    now[0] += SESSION_S
    assert not sessions.may(long)
    first, *_, last = [headers(sessions.log_in(token(1e12))) for _ in range(MAX_SESSIONS + 1)]
    assert (sessions.may(first), sessions.may(last)) == (False, True)


async def test_sessions_of_two_clusters_on_one_host_do_not_end_each_other() -> None:
    """Browsers send a cookie to all ports of a host, and keep one of each name."""
    async with running(secret=SECRET) as (_, one, _), running(secret=Secret.generate()) as (_, other, _):
        jar: dict[str, str] = {}

        async def may_look(url: str) -> bool:
            cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
            return (await ask(url, "GET", "/overview", Cookie=cookies))[0] == 200

        async with running(secret=SECRET) as (_, third, _):
            for url in (one, third):
                status, cookie = await ask(url, "POST", "/netstack/session", {"token": SECRET.web_token()})
                assert status == 200
                name, _, value = cookie.partition(";")[0].partition("=")
                jar[name] = value
            assert [await may_look(url) for url in (one, other, third)] == [True, False, True]


def test_the_command_makes_tokens_that_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET.reveal())
    file.chmod(0o600)
    assert main(["web-token", "--secret-file", str(file), "--expires", "1h"]) == 0
    hour = SECRET.end_of_web_token(capsys.readouterr().out.strip())
    assert main(["web-token", "--secret-file", str(file)]) == 0
    assert main(["web-token", "--secret-file", str(file), "--expires", "0"]) == 2
    day = SECRET.end_of_web_token(capsys.readouterr().out.strip())
    assert hour is not None
    assert day is not None
    assert 10 * 3600 < day - hour < 12 * 3600


async def test_the_page_is_served_over_tls_with_the_certificates_of_the_cluster(tmp_path: Path) -> None:
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    certificates.make_host(tmp_path / "host", tmp_path / "authority", ["localhost", "127.0.0.1"], days=1)
    address = f"tls+tcp://127.0.0.1:0?folder={tmp_path / 'host'}"
    async with running(address=address, secret=SECRET) as (_, url, _):
        ca = str(tmp_path / "authority" / "ca.pem")
        assert url.startswith("https://")
        status, cookie = await ask(url, "POST", "/netstack/session", {"token": SECRET.web_token()}, ca=ca)
        assert (status, cookie.endswith("; Secure")) == (200, True)
        assert (await ask(url, "GET", "/overview", ca=ca, Cookie=cookie.partition(";")[0]))[0] == 200
        certificates.make_authority(tmp_path / "another", name="another", days=2)
        with pytest.raises(ssl.SSLError):
            await ask(url, "GET", "/", ca=str(tmp_path / "another" / "ca.pem"))
    async with jobmanager() as manager:
        with pytest.raises(ConfigError, match="nowhere"):
            async with open_web(manager, f"tls+tcp://127.0.0.1:0?folder={tmp_path}/nowhere"):
                pass
