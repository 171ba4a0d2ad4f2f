"""Metrics over TLS: both ends show a certificate, and a real Prometheus reads them."""

from __future__ import annotations

import functools
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack.base.tls.certificates import make_authority, make_host
from netstack.network.connection.authentication import Secret
from netstack.network.environment import open_network
from netstack.network.metrics import prometheus

pytest.importorskip("cryptography")
yaml = pytest.importorskip("ruamel.yaml", reason="comes with check-jsonschema")

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024)
PROMETHEUS = shutil.which("prometheus")
SETTINGS = Path(__file__).parents[3] / "tools/monitoring/prometheus-tls.yml"


@pytest.fixture
def host(authority: Path, tmp_path: Path) -> Path:
    make_host(tmp_path / "host", authority, ["127.0.0.1"])
    return tmp_path / "host"


def metrics(folder: Path, bound: str = "127.0.0.1:0") -> str:
    return f"tls+tcp://{bound}?folder={folder}"


def scraper(folder: Path, *, shows: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if shows:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def get(address: str, context: ssl.SSLContext, token: str = "") -> tuple[int, str, Any]:
    """The status, the text, and the certificate that was shown."""
    connection = http.client.HTTPSConnection(address.removeprefix("https://"), timeout=120, context=context)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
        assert isinstance(connection.sock, ssl.SSLSocket)
        displayed = connection.sock.getpeercert(binary_form=True)
        assert connection.sock.version() == "TLSv1.3"
        with connection.getresponse() as response:
            return response.status, response.read().decode(), displayed
    finally:
        connection.close()


async def scraped(*arguments: Any) -> tuple[int, str, Any]:
    return await trio.to_thread.run_sync(functools.partial(get, *arguments))


async def test_a_scraper_with_a_certificate_reads_and_nobody_else(host: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "stranger")
    make_host(tmp_path / "other", tmp_path / "stranger", ["127.0.0.1"])
    async with open_network("memory://tls-metrics", CONFIG, metrics_address=metrics(host)) as manager:
        address = manager.metrics_address
        assert address is not None
        assert address.startswith("https://127.0.0.1:")
        status, text, _ = await scraped(address, scraper(host))
        assert (status, "netstack_memory_total_segments" in text) == (200, True)
        foreign = scraper(tmp_path / "other")
        foreign.load_verify_locations(host / "ca.pem")  # it trusts us, and we do not trust it
        for refused in (scraper(host, shows=False), foreign, scraper(tmp_path / "other")):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                await scraped(address, refused)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            await trio.to_thread.run_sync(plain, address)
        assert (await scraped(address, scraper(host)))[0] == 200


def plain(address: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("https://"), timeout=120)
    try:
        connection.request("GET", "/metrics")
        connection.getresponse()
    finally:
        connection.close()


async def test_with_a_secret_its_token_is_wanted_too(host: Path) -> None:
    secret = Secret.generate()
    async with open_network(
        "memory://tls-token", CONFIG, secret=secret, metrics_address=metrics(host, "0.0.0.0:0")
    ) as manager:
        assert manager.metrics_address is not None
        address = manager.metrics_address.replace("0.0.0.0", "127.0.0.1")
        for token, status in (("", 401), ("x", 401), (secret.metrics_token, 200)):
            assert (await scraped(address, scraper(host), token))[0] == status


async def test_renewed_files_are_used_from_the_next_scrape_on(host: Path, authority: Path) -> None:
    async with open_network("memory://tls-renewed", CONFIG, metrics_address=metrics(host)) as manager:
        assert manager.metrics_address is not None
        first = (await scraped(manager.metrics_address, scraper(host)))[2]
        make_host(host, authority, ["127.0.0.1"])
        second = (await scraped(manager.metrics_address, scraper(host)))[2]
        assert first != second


async def test_who_shakes_no_hands_gives_way(host: Path) -> None:
    async with open_network("memory://tls-slow", CONFIG, metrics_address=metrics(host)) as manager:
        address = manager.metrics_address
        assert address is not None
        port = int(address.rpartition(":")[2])
        slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(5 * prometheus.MAX_SCRAPES)]
        try:
            assert (await scraped(address, scraper(host)))[0] == 200
        finally:
            for stream in slow:
                await stream.aclose()


async def test_files_that_cannot_be_used_are_told_before_anything_listens(host: Path, tmp_path: Path) -> None:
    (host / "key.pem").chmod(0o644)
    for folder, message in ((host, "is accessible to other users"), (tmp_path / "nowhere", "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            async with open_network("memory://tls-wrong", CONFIG, metrics_address=metrics(folder)):
                raise AssertionError("it is open")


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus: apt-get install prometheus")
async def test_prometheus_reads_them_as_the_settings_say(host: Path, tmp_path: Path) -> None:
    secret = Secret.generate()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with open_network(
        "memory://tls-prometheus", CONFIG, secret=secret, metrics_address=metrics(host, "0.0.0.0:0")
    ) as manager:
        assert manager.metrics_address is not None
        target = manager.metrics_address.removeprefix("https://").replace("0.0.0.0", "127.0.0.1")
        (tmp_path / "token").write_text(secret.metrics_token)
        settings = yaml.YAML(typ="safe").load(SETTINGS.read_text())
        del settings["rule_files"]
        settings["global"]["scrape_interval"] = "200ms"
        (scrape,) = settings["scrape_configs"]
        files = {"ca_file": "ca.pem", "cert_file": "certificate.pem", "key_file": "key.pem"}
        scrape["tls_config"] |= {option: str(host / name) for option, name in files.items()}
        scrape["authorization"] = {"credentials_file": str(tmp_path / "token")}
        scrape["static_configs"] = [{"targets": [target]}]
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
        await trio.to_thread.run_sync(until_prometheus_has_read, port, tmp_path)


def until_prometheus_has_read(port: int, folder: Path) -> None:
    assert PROMETHEUS is not None
    words = [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            for _ in range(300):
                time.sleep(0.1)
                try:
                    query = f"http://127.0.0.1:{port}/api/v1/query?query=netstack_memory_total_segments"
                    with urllib.request.urlopen(query, timeout=120) as answer:
                        if json.load(answer)["data"]["result"]:
                            return
                except OSError:
                    continue
            raise AssertionError((folder / "log").read_text())
        finally:
            process.terminate()
