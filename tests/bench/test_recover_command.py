"""`netstack-bench recover`: its document, its flags, and real processes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from recover_records import SMALL

from bench.children import Children
from bench.cli import main
from bench.recover import command, measure
from bench.recover.counts import Comparison
from bench.recover.kills import Kill, OnDisk
from bench.recover.measure import Hit, Run, document
from bench.recover.spec import MASTER, RecoverSpec

# ------------------------------------------------------------------------------------------------- document and command


def runs(**compared: Any) -> list[Run]:
    found = {"lost": 0, "repeated": 0, "disordered": 0, "problems": (), **compared}
    half = OnDisk(3, 1, False)
    return [
        Run(
            [Hit("files", "a-source-0", half), Hit("running", MASTER, OnDisk())], [2, None], [0.5], [0, 500, 1000, 0], 1
        ),
        Run([Hit("files", "b-sink-1", OnDisk())], [7], [0.9, 0.7], [3000, 0, 700], 0, Comparison(**found)),
    ]


CONTRACT = {
    "runs", "kills", "lost", "repeated", "time_to_recover_ms", "checkpoints_completed", "restored_from", "delivered",
    "settings", "host", "version",
}  # fmt: skip


def test_the_document_adds_up() -> None:
    told = document(SMALL, runs())
    assert told.keys() >= CONTRACT
    assert (told["runs"], told["kills"], told["lost"], told["repeated"], told["delivered"]) == (2, 3, 0, 0, True)
    assert told["time_to_recover_ms"] == {"p50": 700.0, "max": 900.0}
    assert (told["checkpoints_completed"], told["checkpoints_aborted"]) == (7, 1)
    assert told["channel_state_bytes"] == {"p50": 500, "max": 3000}
    assert told["restored_from"] == [2, None, 7]
    assert told["kills_by_moment"] == {"files": 2, "running": 1}
    assert told["kills_by_process"] == {"a-source-0": 1, MASTER: 1, "b-sink-1": 1}
    assert told["kills_with_half_written_checkpoint"] == 1
    assert document(SMALL, [Run()])["time_to_recover_ms"] is None


@pytest.mark.parametrize("wrong", ["lost", "repeated", "disordered"])
def test_one_record_is_enough_to_fail(wrong: str) -> None:
    told = document(SMALL, runs(**{wrong: 1, "problems": ("key 4: ...",)}))
    assert told[wrong] == 1
    assert told["delivered"] is False
    assert told["warnings"] == ["run 1: key 4: ..."]


@pytest.mark.parametrize(
    ("compared", "stopped", "code"),
    [({}, False, 0), ({"lost": 3}, False, 1), ({"repeated": 2}, False, 1), ({}, True, 1)],
)
def test_recover_tells_and_exits(
    compared: dict[str, Any],
    stopped: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[RecoverSpec] = []

    def fake(spec: RecoverSpec, *, on_progress: object) -> tuple[list[Run], bool]:
        asked.append(spec)
        return runs(**compared), stopped

    monkeypatch.setattr(command, "measure", fake)
    assert main(["recover", "--runs", "2"]) == code
    assert asked == [RecoverSpec(runs=2)]
    printed = capsys.readouterr()
    assert re.search(r"runs +2 of 30,000 records, unaligned *\n", printed.out)
    assert re.search(r"kills +3: 2 files, 1 running *\n", printed.out)
    assert re.search(r"data in flight in them +0\.5 kB, 3 kB at most *\n", printed.out)
    assert re.search(r"restarts +3, 1 of them from the beginning *\n", printed.out)
    assert re.search(r"time to recover +700 ms, 900 ms at most *\n", printed.out)
    assert re.search(rf"records lost +{compared.get('lost', 0)} *\n", printed.out)
    assert re.search(rf"records repeated +{compared.get('repeated', 0)} *\n", printed.out)
    assert ("stopped by Ctrl-C" in printed.err) == stopped
    assert main(["recover", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told.keys() >= CONTRACT


def test_every_flag_reaches_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RecoverSpec] = []
    monkeypatch.setattr(command, "measure", lambda spec, **_: (asked.append(spec), (runs(), False))[1])
    flags = (
        "recover --runs 4 --kills 5 --seed 6 --records 700 --mode timed --interval 80ms --aligned-timeout 9ms"
        " --change-parallelism --sources 3 --sinks 1 --keys 11 --rate 1200"
    )
    assert main(flags.split()) == 0
    assert asked == [
        RecoverSpec(
            runs=4,
            kills=5,
            seed=6,
            records=700,
            mode="timed",
            interval_s=0.08,
            aligned_timeout_s=0.009,
            change_parallelism=True,
            sources=3,
            sinks=1,
            keys=11,
            rate_per_s=1200.0,
        )
    ]


@pytest.mark.parametrize(
    "flags", [["--runs", "0"], ["--mode", "exactly"], ["--rate", "0"], ["--interval", "0"], ["stray"]]
)
def test_bad_usage_is_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of all processes that are started; none is left in the end."""
    started: list[int] = []
    start = Children.start

    def noted(self: Children, name: str, *arguments: str) -> None:
        start(self, name, *arguments)
        started.append(self.pid(name))

    monkeypatch.setattr(Children, "start", noted)
    yield started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_killed_process_counts_every_record_once(
    pids: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill("files", 0.0, 0.99)])
    flags = "--runs 1 --records 6000 --interval 50ms --sources 1 --sinks 1 --change-parallelism"
    assert main(["recover", *flags.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["lost"], told["repeated"], told["disordered"]) == (1, 0, 0, 0)
    assert told["delivered"]
    assert told["checkpoints_completed"] > 0
    assert told["kills_by_process"] == {"taskmanager-1": 1}
    assert len(pids) == 4, "who was killed was started again"
    assert len(told["restored_from"]) == 1
