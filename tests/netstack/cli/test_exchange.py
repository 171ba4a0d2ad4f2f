"""`netstack consume` and `netstack serve`: what they say, how they end; as two processes over real TCP."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack.cli import main
from netstack.cli.consume import ConsumePlan, Consumption
from netstack.cli.exchange import exchange_config, partition_named
from netstack.cli.serve import ServePlan, Serving

PARTITION = "d0" * 16 + "00000000" + "e0" * 16 + "f0" * 16 + "0000000000000000"
CONFIG = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 256, dialect="flink-2.3.0")


# Names and settings.


def test_partitions_are_named_in_hex_of_any_case() -> None:
    assert partition_named(PARTITION.upper(), "flink-2.3.0") == PARTITION
    assert partition_named("Words", "netstack") == "Words"


@pytest.mark.parametrize("text", [PARTITION[:-1], PARTITION + "0", "g" + PARTITION[1:], ""])
def test_partitions_that_are_misnamed(text: str) -> None:
    with pytest.raises(ConfigError, match="120 hex digits"):
        partition_named(text, "flink-2.3.0")


def test_the_memory_is_what_the_channels_may_take() -> None:
    config = exchange_config(
        dialect="flink-2.3.0", segment_size_bytes=1024, exclusive_buffers=3, floating_buffers=5, gate=100
    )
    assert config.total_segments == 3 * 100 + 5 + 16 + 64


# Words.


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            ["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--as", "rows"],
            2,
            "--as rows and --columns require",
        ),
        (
            ["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--as", "rows", "--columns", "id LONG"],
            2,
            "type LONG is not supported",
        ),
        (["consume", "tcp://127.0.0.1:1", "--partition", "00"], 2, "120 hex digits"),
        (
            ["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--subpartitions", "3-1"],
            2,
            "the lower number first",
        ),
        (["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--subpartitions", "x"], 2, "FIRST-LAST"),
        (["consume", "127.0.0.1:1", "--partition", PARTITION], 2, "has no scheme"),
        (["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--dialect", "flink-1"], 2, "flink-1"),
        (["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--segment-size", "1"], 2, "segment_size_bytes=1"),
        (["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--retries", "-1"], 2, "retries=-1"),
        (["consume", "tcp://127.0.0.1:1", "--partition", PARTITION], 1, "127.0.0.1:1"),
        (["serve", "--partition", PARTITION, "--subpartitions", "0"], 2, "--subpartitions 0"),
        (["serve", "--partition", PARTITION, "--records", "-1"], 2, "--records -1"),
        (["serve", "--partition", PARTITION, "--records", "1", "--input", __file__], 2, "give one of them"),
        (["serve", "--partition", PARTITION, "--listen", "nowhere://1"], 2, "no transport"),
        (["serve", "--partition", PARTITION[1:]], 2, "120 hex digits"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_done_is_told(
    words: list[str], code: int, text: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"] if as_json else words) == code
    displayed = capsys.readouterr()
    assert text in displayed.err
    assert displayed.err.startswith("netstack: ")
    if as_json:
        assert text in json.loads(displayed.out)["error"]


def test_an_address_nobody_answers_at_has_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["consume", "tcp://127.0.0.1:1", "--partition", PARTITION, "--subpartitions", "2-3", "--json"]
    assert main(words) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["error_class"], document["error_scope"]) == (
        "error",
        "ProducerUnreachable",
        "connection",
    )
    assert [channel["subpartition"] for channel in document["channels"]] == [2, 3]
    assert [(channel["records"], channel["crc32"]) for channel in document["channels"]] == [(0, "00000000")] * 2


# In virtual time.


def serve_plan(address: str, **more: Any) -> ServePlan:
    return ServePlan(address, PARTITION, more.pop("subpartitions", 1), more.pop("config", CONFIG), **more)


def consume_plan(address: str, **more: Any) -> ConsumePlan:
    return ConsumePlan(address, PARTITION, range(more.pop("subpartitions", 1)), more.pop("config", CONFIG), **more)


async def both(serving: Serving, consumption: Consumption) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving.run)
        await trio.testing.wait_all_tasks_blocked()
        await consumption.run()


@pytest.mark.parametrize("dialect", ["flink-2.3.0", "netstack"])
@pytest.mark.parametrize("exclusive", [0, 2])
async def test_what_is_served_is_consumed(autojump_clock: MockClock, dialect: str, exclusive: int) -> None:
    config = NetworkConfig(
        segment_size_bytes=256,
        memory_bytes=256 * 256,
        dialect=dialect,
        exclusive_buffers_per_channel=exclusive,
        heartbeat_interval_s=None,
    )
    serving = Serving(serve_plan("memory://both", subpartitions=3, config=config, records=1000), lambda address: None)
    seen: list[Any] = []
    consumption = Consumption(consume_plan("memory://both", subpartitions=3, config=config, kind="long"), seen.extend)
    await both(serving, consumption)
    assert sorted(seen) == list(range(1000))
    assert serving.outcome == consumption.outcome == "finished"
    assert serving.is_released
    for key in ("records", "payload_bytes", "crc32", "events"):
        served, consumed = (
            [channel[key] for channel in side.document()["channels"]] for side in (serving, consumption)
        )
        assert served == consumed
    assert (
        consumption.accounts[1].crc32 == f"{zlib.crc32(b''.join(i.to_bytes(8, 'big') for i in range(1, 1000, 3))):08x}"
    )


async def test_a_consumer_that_leaves_early_ends_the_serving(autojump_clock: MockClock) -> None:
    serving = Serving(serve_plan("memory://early", records=100_000), lambda address: None)
    consumption = Consumption(consume_plan("memory://early", limit=7))
    await both(serving, consumption)
    assert (consumption.outcome, consumption.accounts[0].records) == ("closed-early", 7)
    assert (serving.outcome, serving.accounts[0].records, serving.is_released) == ("finished", 100_000, True)


async def test_time_is_up(autojump_clock: MockClock) -> None:
    serving = Serving(serve_plan("memory://late", subpartitions=2, timeout_s=3), lambda address: None)
    other = PARTITION[:-1] + "1"
    consumption = Consumption(ConsumePlan("memory://late", other, range(1), CONFIG, timeout_s=2))
    await both(serving, consumption)
    assert consumption.outcome == serving.outcome == "error"
    assert "not finished within 2 s" in str(consumption.error)
    assert "not consumed within 3 s" in str(serving.error)


async def test_subpartitions_that_are_not_there(autojump_clock: MockClock) -> None:
    serving = Serving(serve_plan("memory://two"), lambda address: None)
    consumption = Consumption(consume_plan("memory://two", subpartitions=2))
    await both(serving, consumption)
    assert (consumption.outcome, consumption.document()["error_scope"]) == ("error", "connection")
    assert "java.io.IOException (partition" in str(consumption.error)
    assert "subpartitions 0 to 0)" in str(consumption.error)


async def test_a_producer_that_fails_is_told_with_its_reason(autojump_clock: MockClock, tmp_path: Path) -> None:
    lines = tmp_path / "numbers"
    lines.write_text("1\n" * 100_000 + "two\n")
    serving = Serving(serve_plan("memory://fails", input_path=lines), lambda address: None)
    consumption = Consumption(consume_plan("memory://fails"))
    await both(serving, consumption)
    assert (serving.outcome, consumption.outcome) == ("error", "error")
    document = consumption.document()
    assert (document["error_class"], document["error_scope"]) == ("ProducerFailed", "channel")
    assert "java.io.IOException (" in document["error"]
    assert "line 100001" in document["error"]


async def test_two_consumers_of_one_partition(autojump_clock: MockClock) -> None:
    serving = Serving(serve_plan("memory://shared", subpartitions=3, records=3000), lambda address: None)
    consumptions = [
        Consumption(ConsumePlan("memory://shared", PARTITION, subpartitions, CONFIG))
        for subpartitions in (range(2), range(2, 3))
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving.run)
        await trio.testing.wait_all_tasks_blocked()
        for consumption in consumptions:
            nursery.start_soon(consumption.run)
    assert [consumption.outcome for consumption in consumptions] == ["finished", "finished"]
    assert [account.crc32 for consumption in consumptions for account in consumption.accounts.values()] == [
        account.crc32 for account in serving.accounts.values()
    ]
    assert serving.is_released


# Two processes.


@contextlib.contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`netstack serve`, and its address."""
    command = [sys.executable, "-m", "netstack.cli", "serve", "--partition", PARTITION, "--json", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            ready = json.loads(line)
            assert (ready["kind"], ready["partition_id"]) == ("ready", PARTITION)
            yield process, f"tcp://127.0.0.1:{ready['port']}"
        finally:
            process.kill()


def consumed(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netstack.cli", "consume", address, "--partition", PARTITION.upper(), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    actual: dict[str, Any] = json.loads(out)
    return actual


CONTRACT = ("records", "payload_bytes", "crc32", "events")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["long", "string", "bytes"])
@pytest.mark.parametrize(
    "buffers", [[], ["--exclusive-buffers", "0", "--floating-buffers", "3", "--segment-size", "256"]]
)
def test_two_processes_agree(kind: str, buffers: list[str]) -> None:
    with served("--subpartitions", "4", "--records", "5000", "--as", kind, *buffers) as (process, address):
        done = consumed(address, "--subpartitions", "0-3", "--as", kind, "--json", *buffers)
        assert done.returncode == 0, done.stderr
        ours, theirs = summary_of(process), json.loads(done.stdout)
    assert ours["outcome"] == theirs["outcome"] == "finished"
    assert [[c[key] for key in CONTRACT] for c in ours["channels"]] == [
        [c[key] for key in CONTRACT] for c in theirs["channels"]
    ]
    texts = [str(i).encode() if kind == "string" else i.to_bytes(8, "big") for i in range(5000)]
    assert [c["crc32"] for c in theirs["channels"]] == [f"{zlib.crc32(b''.join(texts[i::4])):08x}" for i in range(4)]
    assert theirs["channels"][0]["events"] == ["EndOfData", "EndOfPartitionEvent"]


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["blocking", "hybrid_full"])
@pytest.mark.parametrize("dialect", ["flink-2.3.0", "netstack"])
def test_what_is_kept_is_served_until_it_is_stopped(dialect: str, kind: str) -> None:
    words = ["--subpartitions", "4", "--records", "5000", "--dialect", dialect]
    with served(*words, "--type", kind, "--compression", "lz4", "--partition", PARTITION) as (process, address):
        for _ in range(2):
            done = consumed(address, "--subpartitions", "0-3", "--dialect", dialect, "--json", "--partition", PARTITION)
            assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGTERM)
        ours, theirs = summary_of(process), json.loads(done.stdout)
    assert (ours["outcome"], ours["all_released"], ours["stop_requested"]) == ("finished", False, True)
    assert [[c[key] for key in CONTRACT] for c in ours["channels"]] == [
        [c[key] for key in CONTRACT] for c in theirs["channels"]
    ]


@pytest.mark.whole
@pytest.mark.parametrize("dialect", ["flink-2.3.0", "netstack"])
def test_lines_of_a_file_arrive_as_lines(dialect: str, tmp_path: Path) -> None:
    lines = ["to be", "", "or nöt", "x" * 100_000, "end"]
    path = tmp_path / "lines"
    path.write_text("\n".join(lines), encoding="utf-8")
    with served("--input", str(path), "--dialect", dialect) as (process, address):
        name = PARTITION if dialect == "netstack" else PARTITION.upper()
        done = consumed(address, "--partition", name, "--dialect", dialect, "--as", "string")
        assert done.stdout == "\n".join(lines) + "\n"
        assert done.returncode == 0
        assert "finished" in done.stderr
        assert summary_of(process)["channels"][0]["records"] == 5


@pytest.mark.whole
@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [("flink-2.3.0", "netstack", "--dialect netstack"), ("netstack", "flink-2.3.0", "Flink's network protocol")],
)
def test_the_wrong_dialect_is_told(ours: str, theirs: str, text: str) -> None:
    with served("--dialect", theirs) as (_, address):
        done = consumed(address, "--dialect", ours)
        assert done.returncode == 1
        assert text in done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly(which: signal.Signals) -> None:
    with served("--subpartitions", "2") as (process, address):
        command = [sys.executable, "-m", "netstack.cli", "consume", address, "--partition", PARTITION, "--as", "long"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "0\n"
            process.send_signal(which)
            out, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (128 + which, "")
            document = json.loads(out)
            assert (document["outcome"], document["stop_requested"]) == ("finished", True)
            assert (document["all_released"]) is False
            _, err = consumer.communicate(timeout=120)
            assert consumer.returncode in (0, 1)
            assert "Traceback" not in err
    command = [sys.executable, "-m", "netstack.cli", "consume", "--partition", PARTITION, "--json"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [*command, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as consumer:
            silent.settimeout(20)
            connection, _ = silent.accept()
            with connection:
                assert len(connection.recv(97, socket.MSG_WAITALL)) == 97
                consumer.send_signal(which)
                out, err = consumer.communicate(timeout=120)
        name = "Ctrl-C" if which == signal.SIGINT else "SIGTERM"
        assert (consumer.returncode, err) == (128 + which, f"netstack: stopped by {name}\n")
        assert json.loads(out)["outcome"] == "closed-early"
