"""The metrics over HTTP: what Prometheus reads, addresses that cannot be served, and scrapes that come too late."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import logging
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from netstack.base import contained
from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack.base.ids import ChannelDescriptor
from netstack.network.connection.authentication import Secret
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.metrics import prometheus
from netstack.network.metrics.catalogue import CATALOGUE
from netstack.network.metrics.samples import samples
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024)

numbers = itertools.count()


def url() -> str:
    return f"memory://prometheus-{next(numbers)}"


def get(address: str) -> str:
    """What a scrape gets."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        connection.request("GET", "/metrics")
        with connection.getresponse() as response:
            assert response.status == 200
            assert str(response.getheader("Content-Type")).startswith("text/plain")
            return response.read().decode()


async def scrape(manager: NetworkEnvironment) -> dict[tuple[str, ...], float]:
    """The values a scrape gets, by name and labels."""
    assert manager.metrics_address is not None
    families = text_string_to_metric_families(await trio.to_thread.run_sync(get, manager.metrics_address))
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


@pytest.mark.parametrize("detailed", [False, True])
async def test_a_scrape_gets_every_value(detailed: bool) -> None:
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0", detailed_metrics=detailed) as manager:
        writer = RecordWriter(manager.create_partition('say "p"', subpartitions=1))
        gate = await manager.open_gate([ChannelDescriptor(manager.address, 'say "p"')])
        for number in range(7):
            await writer.emit(b"%d" % number)
        await writer.flush()
        await RecordReader(gate).next_records()
        actual = await scrape(manager)
        expected = samples(manager.statistics(), detailed=detailed)
    assert set(actual) == {(metric.name, *sorted(labels.values())) for metric, labels, _ in expected}
    missing = {metric.name for metric in CATALOGUE if detailed or not metric.is_detailed} - {
        name for name, *_ in actual
    }
    assert missing <= {
        "netstack_input_debloated_buffer_bytes",  # no debloating
        "netstack_input_time_to_consume_seconds",
        "netstack_output_channel_credits",  # no remote consumer
        "netstack_slot_blocked_seconds",  # no supervisor
    }
    assert actual["netstack_output_records_total", 'say "p"'] == 7
    assert actual["netstack_input_records_total", 'say "p"'] == 7
    assert actual["netstack_memory_total_segments",] == 64


async def test_the_help_is_the_definition_and_the_type_the_kind() -> None:
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        assert manager.metrics_address is not None
        text = await trio.to_thread.run_sync(get, manager.metrics_address)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in CATALOGUE:
        if not metric.scope.labels:
            family = families[metric.name.removesuffix("_total")]
            assert (family.documentation, family.type) == (metric.definition, metric.kind)


async def test_the_server_stops_when_the_block_is_left() -> None:
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        address = manager.metrics_address
        assert address is not None
        await scrape(manager)
    with pytest.raises(ConnectionRefusedError):
        await trio.to_thread.run_sync(get, address)
    async with open_network(url(), CONFIG, metrics_address=address) as manager:
        assert manager.metrics_address == address
        await scrape(manager)


async def test_ipv6() -> None:
    try:
        async with open_network(url(), CONFIG, metrics_address="[::1]:0") as manager:
            assert manager.metrics_address is not None
            assert manager.metrics_address.startswith("[::1]:")
            await scrape(manager)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


# Closing.


async def test_scrapes_while_the_block_is_left_are_answered_or_refused() -> None:
    stop = threading.Event()
    answers = []

    def keep_scraping(address: str) -> None:
        while not stop.is_set():
            try:
                answers.append(get(address))
            except (OSError, http.client.HTTPException):
                return

    async with trio.open_nursery() as nursery:
        async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
            assert manager.metrics_address is not None
            for _ in range(3):
                nursery.start_soon(trio.to_thread.run_sync, keep_scraping, manager.metrics_address)
            while len(answers) < 5:
                await trio.lowlevel.checkpoint()
            await manager.open_gate([ChannelDescriptor(manager.address, "p")])
        stop.set()
    assert all("netstack_memory_total_segments 64.0" in answer for answer in answers)


def test_a_scrape_that_is_late_for_the_event_loop_is_answered_without_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, over = threading.Event(), threading.Event()
    hop = trio.from_thread.run_sync

    def late(*arguments: object, **keywords: object) -> object:
        reached.set()
        assert over.wait(120)
        return hop(*arguments, **keywords)  # type: ignore[arg-type]

    answers = []

    async def main() -> None:
        async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
            address = manager.metrics_address
            assert address is not None
            monkeypatch.setattr(prometheus.trio.from_thread, "run_sync", late)
            scraper.append(threading.Thread(target=lambda: answers.append(get(address))))
            scraper[0].start()
            await trio.to_thread.run_sync(reached.wait, 5)

    scraper: list[threading.Thread] = []
    trio.run(main)
    over.set()
    scraper[0].join(5)
    assert answers == [""]


async def test_a_scraper_that_says_nothing_keeps_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="netstack")
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.01)
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        assert manager.metrics_address is not None
        host, port = manager.metrics_address.split(":")
        with socket.create_connection((host, int(port))) as silent:
            await scrape(manager)
            await trio.to_thread.run_sync(silent.recv, 1)  # it was closed from the other side
        with socket.create_connection((host, int(port))):
            pass  # leaves the block with the connection just accepted, or not even that
    assert "a scrape from ('127.0.0.1'" in caplog.text


# What cannot be served.


async def test_an_address_in_use_is_named_and_nothing_stays_open() -> None:
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        taken = manager.metrics_address
        address = url()
        for _ in range(2):  # its own address is free again after the failure
            with pytest.raises(OSError, match=rf"cannot serve metrics at {taken}: Address already in use; choose"):
                async with open_network(address, CONFIG, metrics_address=taken):
                    pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70])
async def test_a_host_that_is_none(host: str) -> None:
    with pytest.raises(OSError, match=f"metrics at {host}:9249: "):
        async with open_network(url(), CONFIG, metrics_address=f"{host}:9249"):
            pass


@pytest.mark.parametrize(
    "address", ["", "9249", "127.0.0.1", ":9249", "127.0.0.1:x", "127.0.0.1:99999", "a:1/metrics", 9249, b"a:1"]
)
async def test_an_address_that_is_none(address: Any) -> None:
    with pytest.raises(ConfigError, match="metrics_address"):
        async with open_network(url(), CONFIG, metrics_address=address):
            pass


def python(code: str) -> str:
    """The output of a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_prometheus_is_imported_only_when_asked_for() -> None:
    actual = python(
        "import netstack, sys\n"
        "print([name for name in sys.modules if 'prometheus' in name or name in ('http.server', 'wsgiref')])"
    )
    assert actual == "[]"


@pytest.mark.slow
def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    actual = python(
        "import sys, trio\n"
        "sys.modules['prometheus_client'] = None\n"
        "import netstack\n"
        "async def main():\n"
        "    try:\n"
        "        async with netstack.open_network('tcp://127.0.0.1:0', metrics_address='127.0.0.1:0'):\n"
        "            pass\n"
        "    except netstack.ConfigError as error:\n"
        "        print(error)\n"
        "trio.run(main)"
    )
    assert actual == "metrics_address requires the package prometheus_client: run pip install 'prometheus_client>=0.20'"


def status(address: str, **headers: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        connection.request(
            "GET", "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        with connection.getresponse() as response:
            response.read()
            return response.status


async def test_beyond_this_host_a_scraper_shows_the_token_of_the_secret() -> None:
    secret = Secret.generate()
    async with open_network(url(), CONFIG, secret=secret, metrics_address="0.0.0.0:0") as manager:
        assert manager.metrics_address is not None
        address = manager.metrics_address.replace("0.0.0.0", "127.0.0.1")
        right = f"Bearer {secret.metrics_token}"
        for given in ("", "Bearer ", "Bearer x", right[:-1], right + "0", secret.metrics_token, "Bearer \xff"):
            assert await trio.to_thread.run_sync(functools.partial(status, address, Authorization=given)) == 401
        assert await trio.to_thread.run_sync(functools.partial(status, address)) == 401
        assert await trio.to_thread.run_sync(functools.partial(status, address, Authorization=right)) == 200
        assert secret.reveal().hex() not in right
    async with open_network(url(), CONFIG, secret=secret, metrics_address="127.0.0.1:0") as manager:
        assert manager.metrics_address is not None
        assert await trio.to_thread.run_sync(status, manager.metrics_address) == 200


async def test_slow_scrapers_use_up_neither_threads_nor_descriptors_and_keep_nobody_out() -> None:
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        assert manager.metrics_address is not None
        host, _, port = manager.metrics_address.rpartition(":")
        threads = threading.active_count()
        slow = [await trio.open_tcp_stream(host, int(port)) for _ in range(90)]
        try:
            for stream in slow:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\nX: ")
            await trio.to_thread.run_sync(get, manager.metrics_address)
            assert threading.active_count() <= threads + 2 * prometheus.MAX_SCRAPES + 1
            given_up = 0
            for stream in slow[: -prometheus.MAX_SCRAPES]:
                with trio.move_on_after(2), contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
                    given_up += 1
            assert given_up == len(slow) - prometheus.MAX_SCRAPES
        finally:
            for stream in slow:
                await stream.aclose()


async def test_a_scrape_that_fails_prints_nothing_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("\x1b[2J")

    def status(address: str) -> int:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
            connection.request("GET", "/metrics")
            with connection.getresponse() as response:
                return response.status

    monkeypatch.setattr(contained, "RESTART_PAUSE_S", 0.01)
    async with open_network(url(), CONFIG, metrics_address="127.0.0.1:0") as manager:
        assert manager.metrics_address is not None
        with monkeypatch.context() as patch:
            patch.setattr(prometheus, "CounterMetricFamily", breaks)
            assert await trio.to_thread.run_sync(status, manager.metrics_address) == 500
        with monkeypatch.context() as patch:
            patch.setattr(prometheus._Server, "handle_request", breaks)
            host, _, port = manager.metrics_address.rpartition(":")
            waiting = socket.create_connection((host, int(port)))
            while not [each for each in caplog.records if "failed because of a bug here" in each.getMessage()]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            waiting.close()
        assert await scrape(manager)
    assert capfd.readouterr() == ("", "")
