"""`netstack-bench shuffle`: what it measures is complete, and where rows are lost it says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack_bench.cli import main
from netstack_bench.shuffle import command
from netstack_bench.shuffle.rows import BATCH_ROWS, ROW_BYTES, MakeRows, SumRows, by_range, expected


class Context:
    subtask = 0


def test_rows_one_by_one_and_all_at_once_go_to_the_same() -> None:
    source = MakeRows(1)
    source.open(Context())
    rows = source.read()
    assert rows is not None
    assert rows.shape == (BATCH_ROWS, ROW_BYTES)
    assert source.read() is None
    chosen = by_range.partition_batch(rows[:300], 7)
    assert chosen.tolist() == [by_range(bytes(row), 7) for row in rows[:300]]
    assert set(chosen.tolist()) == set(range(7))


def test_the_sum_does_not_depend_on_the_order_and_tells_what_is_missing() -> None:
    source = MakeRows(1)
    source.open(Context())
    rows = source.read()
    assert rows is not None
    one, other, less = SumRows(), SumRows(), SumRows()
    one.process_batch(rows)
    other.process_batch([bytes(row) for row in rows[::-1][:5000]])
    other.process_batch(rows[:5000])
    less.process_batch(rows[1:])
    assert one.finish(None) == other.finish(None)
    assert one.finish(None)["sum"] != less.finish(None)["sum"]


def test_what_is_measured() -> None:
    spec = command.ShuffleSpec(
        size_bytes=1, modes=("pipelined", "blocking"), producers=2, consumers=2, taskmanagers=2, slots=2, repeats=1
    )
    labels = [variant.label(spec) for variant in command.variants(spec)]
    assert labels == [
        "pipelined",
        "blocking, auto",
        "blocking, lz4",
        "blocking, plain",
        "blocking, auto, half the slots",
    ]


@pytest.mark.parametrize("flag", ["--bytes", "--producers", "--consumers", "--taskmanagers", "--slots", "--repeats"])
def test_nothing_to_measure_is_bad_usage(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shuffle", flag, "0"]) == 2
    assert f"{flag} 0: the minimum is 1" in capsys.readouterr().err


@pytest.mark.whole
def test_every_row_comes_in_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes", "2MiB", "--repeats", "1", "--mode", "pipelined", "--mode", "blocking", "--no-half", "--json"]
    assert main(["shuffle", *words]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["delivered"]
    assert document["rows"] == 20_000
    assert [*document["modes"]] == ["pipelined", "blocking, auto", "blocking, lz4", "blocking, plain"]
    (blocking,) = document["modes"]["blocking, lz4"]
    assert blocking["compressed_share"] == 1
    assert document["modes"]["blocking, plain"][0]["compressed_share"] == 0
    assert document["modes"]["blocking, plain"][0]["peak_disk_bytes"] is not None
    assert blocking["bytes_per_s"] > 0
    assert document["disk"]["write_bytes_per_s"] > 0


def test_processes_are_measured_with_their_descendants() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        assert command.with_descendants([shell.pid]) == [shell.pid, child]
        os.kill(child, signal.SIGKILL)


@pytest.mark.whole
def test_a_row_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def more(**shape: int) -> list[dict[str, int]]:
        actual = expected(**shape)
        actual[0]["rows"] += 1
        return actual

    monkeypatch.setattr(command, "expected", more)
    words = ["--bytes", "1MiB", "--repeats", "1", "--mode", "blocking", "--compression", "none", "--no-half"]
    assert main(["shuffle", *words]) == 1
    assert "NO" in capsys.readouterr().out


@pytest.mark.whole
def test_shuffles_until_ctrl_c_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    once = command._run
    calls = iter((once, None))

    async def run(*settings: Any) -> dict[str, Any]:
        if (run_shuffle := next(calls)) is None:
            raise KeyboardInterrupt
        return await run_shuffle(*settings)

    monkeypatch.setattr(command, "_run", run)
    words = ["--bytes", "1MiB", "--repeats", "2", "--mode", "blocking", "--compression", "none", "--no-half", "--json"]
    assert main(["shuffle", *words]) == 130
    printed = capsys.readouterr()
    actual = json.loads(printed.out)
    assert ([len(runs) for runs in actual["modes"].values()], actual["stopped"]) == ([1], "Ctrl-C")
    assert "stopped by Ctrl-C" in printed.err


def test_pipelined_stages_without_slots_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job would wait for slots that never come."""
    monkeypatch.setattr("netstack_bench.shuffle.command.measure", lambda *_: pytest.fail("it measured"))
    assert main(["shuffle", "--consumers", "5", "--slots", "1"]) == 2
    assert "pipelined stages run at once and need 5 slots" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["hybrid-full", "hybrid-selective"])
def test_stages_that_store_rows_take_turns_in_few_slots(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def in_good_time(**settings: Any) -> AsyncIterator[LocalCluster]:
        with trio.fail_after(120.0):  # stages that share slots would wait for each other without end
            async with open_local_cluster(**settings) as cluster:
                yield cluster

    monkeypatch.setattr(command, "open_local_cluster", in_good_time)
    flags = "--bytes 1KiB --producers 2 --consumers 3 --taskmanagers 1 --slots 1 --repeats 1 --compression none"
    assert main(["shuffle", "--json", "--mode", mode, *flags.split()]) == 0
    assert json.loads(capsys.readouterr().out)["delivered"]
