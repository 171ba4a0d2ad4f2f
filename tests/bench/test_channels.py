from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.channels import command
from netstack_bench.channels.command import document
from netstack_bench.channels.spec import MOST_CHANNELS, ChannelsSpec
from netstack_bench.channels.worker import Memory, Roll, consume, produce
from netstack_bench.cli import main
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.local.runner import Summaries

InOneProcess = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
SPEC = ChannelsSpec(channels=1000, idle_seconds=0.5)
CONTRACT = {
    "channels",
    "open_s",
    "bytes_per_idle_channel",
    "idle_cpu_ms_per_s",
    "delivered",
    "settings",
    "host",
    "version",
}


def summaries(*, traced: bool, **changed: Any) -> Summaries:
    """What the workers would tell; a traced pass is slow, and the only one that knows of memory."""
    producer = {
        "connections": 1,
        "open_channels": SPEC.channels,
        "grown_bytes": 900_000 if traced else None,
        "idle_cpu_ms_per_s": 99.0 if traced else 0.125,
        **changed,
    }
    consumer = {
        "open_s": 9.0 if traced else 0.02,
        "grown_bytes": 1_100_000 if traced else None,
        "idle_cpu_ms_per_s": 99.0 if traced else 0.25,
        "problems": [],
    }
    return Summaries(producer, consumer, ())


def result(**changed: Any) -> dict[str, Any]:
    return {**document(SPEC, summaries(traced=False), summaries(traced=True)), **changed}


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"channels": 0}, "--channels 0: give 1 to 65536"),
        ({"channels": MOST_CHANNELS + 1}, "--channels 65537"),
        ({"idle_seconds": 0.0}, "--idle-seconds 0"),
    ],
)
def test_what_cannot_work_names_the_flag(settings: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reported)):
        ChannelsSpec(**settings)


def test_settings_travel_whole() -> None:
    assert ChannelsSpec.from_dict(json.loads(json.dumps(SPEC.as_dict()))) == SPEC


def test_memory_has_room_for_every_channel() -> None:
    config = SPEC.network()
    assert config.total_segments >= 2 * SPEC.channels
    assert config.heartbeat_interval_s is not None


def test_a_roll_wants_one_record_of_each_channel_and_two_of_the_last() -> None:
    roll = Roll(3)
    for number in (2, 0, 1, 2):
        roll.take(number, number)
    assert roll.problems() == []
    assert roll.records == 4
    roll.take(0, 1)
    assert roll.problems() == [
        "the record of channel 1 arrived on channel 0",
        "2 records arrived on channel 0, 1 were sent",
    ]


def test_a_roll_does_not_list_everything() -> None:
    problems = Roll(100).problems()
    assert len(problems) == 6
    assert problems[-1] == "and 95 more channels"


def test_memory_that_is_not_traced_is_not_known() -> None:
    assert Memory(traced=False).grown_bytes() is None


def test_both_sides_in_one_process(in_one_process: InOneProcess, tmp_path: Path) -> None:
    spec = ChannelsSpec(channels=20, idle_seconds=0.01)
    producer, consumer = in_one_process(produce, consume, {"spec": spec.as_dict(), "traced": False}, tmp_path)
    assert producer["connections"] == 1
    assert producer["open_channels"] == 20
    assert producer["grown_bytes"] is None
    assert consumer["open_s"] > 0
    assert consumer["problems"] == []


def test_time_comes_from_one_pass_and_memory_from_the_other() -> None:
    reported = result()
    assert reported.keys() >= CONTRACT
    assert reported["open_s"] == 0.02
    assert reported["bytes_per_idle_channel"] == {"producer": 900.0, "consumer": 1100.0}
    assert reported["idle_cpu_ms_per_s"] == {"producer": 0.125, "consumer": 0.25}
    assert reported["delivered"] is True


@pytest.mark.parametrize("missing", [{"open_channels": 999}, {"connections": 2}])
def test_channels_that_are_not_open_measure_nothing(missing: dict[str, int]) -> None:
    with pytest.raises(MeasurementFailed, match="1000 channels"):
        document(SPEC, summaries(traced=False, **missing), summaries(traced=True))


@pytest.mark.parametrize(("changed", "code", "alive"), [({}, 0, "yes"), ({"delivered": False}, 1, "NO")])
def test_channels_prints_a_table(
    changed: dict[str, Any],
    code: int,
    alive: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[ChannelsSpec] = []

    def measure(spec: ChannelsSpec, on_progress: object) -> dict[str, Any]:
        asked.append(spec)
        return result(**changed)

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    assert main(["channels", "--channels", "1000", "--idle-seconds", "0.5"]) == code
    assert asked == [SPEC]
    printed = capsys.readouterr().out
    assert "1,000 channels on one connection, 1 + 8 buffers of 4 KiB, idle for 0.5 s" in printed
    assert re.search(r"bytes per idle channel +900 +1,100", printed)
    assert re.search(r"CPU while idle, ms/s +0\.125 +0\.25", printed)
    assert "all open after 0.02 s, 20 us per channel" in printed
    assert f"a record through each: {alive}" in printed
    assert main(["channels", "--channels", "1000", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result(**changed)))


@pytest.mark.parametrize("flags", [["--channels", "0"], ["--channels", "some"], ["--idle-seconds", "-1"], ["stray"]])
def test_bad_usage_is_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.whole
def test_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["channels", "--channels", "300", "--idle-seconds", "0.1", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["delivered"]
    assert reported["channels"] == reported["settings"]["channels"] == 300
    assert reported["bytes_per_idle_channel"]["producer"] > 0
    assert reported["bytes_per_idle_channel"]["consumer"] > 0
    assert reported["open_s"] > 0
