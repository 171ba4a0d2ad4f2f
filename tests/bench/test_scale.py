"""What more channels, connections and TaskManagers cost: which points there are, and what is told of them."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from netstack.base.errors import ConfigError
from netstack_bench.cli import main
from netstack_bench.endpoints import PARTITION, config_of, descriptors_of
from netstack_bench.scale import command
from netstack_bench.scale.command import (
    CHANNELS,
    CONNECTIONS,
    Constants,
    ScaleSpec,
    prediction,
    prediction_lines,
    print_scale,
)
from netstack_bench.spec import RunSpec


def test_no_more_of_them_than_asked() -> None:
    spec = ScaleSpec(most=16)
    assert spec.points(CHANNELS) == [1, 10]
    assert spec.points(CONNECTIONS) == [1, 2, 8, 16]
    assert ScaleSpec().points(CHANNELS) == list(CHANNELS)


def test_record_i_comes_through_channel_i_whatever_the_number_of_connections() -> None:
    spec = RunSpec(channels=6, connections=3)
    actual = descriptors_of(spec, "a:1 b:1 c:1")
    assert [each.address for each in actual] == ["a:1", "b:1", "c:1"] * 2
    assert [each.subpartition for each in actual] == [0, 0, 0, 1, 1, 1]
    assert {each.partition_id for each in actual} == {PARTITION}


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"connections": 3, "channels": 4}, "--connections 3"),
        ({"connections": 2, "channels": 2, "emit": "arrow"}, "--connections"),
        ({"connections": 2, "channels": 2, "profile": True}, "--profile"),
        ({"read": "buffer", "emit": "batch"}, "--read buffer"),
        ({"write": "blocking", "emit": "batch"}, "--write blocking"),
        ({"write": "blocking", "connections": 2, "channels": 2}, "--write blocking"),
        ({"write": "blocking", "profile": True}, "--profile"),
    ],
)
def test_what_connections_and_readers_cannot_do_is_refused(settings: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        RunSpec.from_dict(settings)


def test_each_connection_has_its_landing_buffers() -> None:
    def memory(connections: int) -> int:
        return config_of(RunSpec(channels=8, connections=connections)).memory_bytes

    assert memory(8) - memory(1) == 7 * 16 * 32 * 1024


def test_a_failed_point_is_a_row() -> None:
    written = StringIO()
    rows = [
        {
            "emit": "batch",
            "channels": 10,
            "records_per_s": 2e6,
            "cpu_us_per_thousand": 61.25,
            "memory_bytes": {"producer": 60_000_000, "consumer": 61_000_000},
            "latency_p50_us": 1250.0,
            "delivered": True,
        },
        {"emit": "batch", "channels": 100, "error": "no memory", "delivered": False},
    ]
    print_scale({"channels": rows}, Console(file=written, width=120))
    text = written.getvalue()
    assert "2 M" in text
    assert "61.2" in text
    assert "failed" in text


def test_points_until_ctrl_c_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pair(_spec: object, _emit: str, settings: dict[str, int]) -> dict[str, Any]:
        if settings["channels"] > 1:
            raise KeyboardInterrupt
        return {"delivered": True, "records_per_s": 1e6}

    monkeypatch.setattr(command, "_pair", pair)
    assert main(["scale", "--json"]) == 130
    printed = capsys.readouterr()
    actual = json.loads(printed.out)
    assert [len(actual[axis]) for axis in command.AXES] == [1, 0, 0]
    assert actual["stopped"] == "Ctrl-C"
    assert "stopped by Ctrl-C: the results until then are shown" in printed.err


@pytest.mark.long
@pytest.mark.parametrize("axis", ["channels", "connections", "taskmanagers"])
def test_every_axis_end_to_end(axis: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--axis", axis, "--most", "2", "--emit", "batch", "--seconds", "0.3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[axis]
    assert len(rows) == {"channels": 1, "connections": 2, "taskmanagers": 2}[axis]
    assert all(row["delivered"] and row["records_per_s"] > 0 for row in rows)


def test_a_limit_below_every_point_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--axis", "taskmanagers", "--most", "1"]) == 2
    assert "--most 1 with --axis taskmanagers: the minimum is 2" in capsys.readouterr().err


def row(channels: int, connections: int, *, noise: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A row of a machine whose constants are known."""
    memory = noise * (100e6 + 20e3 * channels + 300e3 * (connections - 1))
    setup_s = noise * (0.5 + 1e-4 * channels + 2e-3 * (connections - 1))
    shares = {"producer": 0.4 * memory, "consumer": 0.6 * memory}
    figures = {"memory_bytes": shares, "setup_s": setup_s, "credits_per_buffer": 1.5}
    sizes = (
        {"channels": channels}
        if connections == 1 and channels != 64
        else {"channels": channels, "connections": connections}
    )
    return {"emit": "batch", **sizes, "delivered": True, **figures, **changes}


def rows(axis: str = "", noise: float = 1.0) -> dict[str, list[dict[str, Any]]]:
    """The last size of one axis is away from all others by `noise`."""
    factors = {each: noise if each == axis else 1.0 for each in ("channels", "connections")}
    last = row(CHANNELS[-1], 1, noise=factors["channels"]), row(64, CONNECTIONS[-1], noise=factors["connections"])
    return {
        "channels": [*(row(count, 1) for count in CHANNELS[:-1]), last[0]],
        "connections": [*(row(64, count) for count in CONNECTIONS[:-1]), last[1]],
    }


def test_constants_that_hold_are_the_prediction_and_its_errors_are_none() -> None:
    foreseen = prediction(rows())
    assert foreseen is not None
    each = foreseen["each"]
    assert each["memory_bytes"] == pytest.approx(50e6 + 20e3 * 10_000 + 300e3 * 998)
    assert each["setup_s"] == pytest.approx(0.5 + 1e-4 * 10_000 + 2e-3 * 998)
    assert (each["connections"], foreseen["all"]["connections"]) == (1998, 999_000)
    for checked in foreseen["checked"]:
        assert checked["errors"] == pytest.approx(dict.fromkeys(checked["errors"], 0.0), abs=1e-9)


@pytest.mark.parametrize("noise", [0.8, 1.25])
@pytest.mark.parametrize(("axis", "place", "size"), [("channels", 0, (10_000, 1)), ("connections", 1, (64, 64))])
def test_the_error_is_that_of_a_prediction_made_without_the_size(
    axis: str, place: int, size: tuple[int, int], noise: float
) -> None:
    foreseen = prediction(rows(axis, noise))
    assert foreseen is not None
    checked = foreseen["checked"][place]
    assert (checked["channels"], checked["connections"]) == size
    assert checked["measured"]["setup_s"] == pytest.approx(row(*size, noise=noise)["setup_s"])
    assert checked["errors"]["credits_per_buffer"] == 0
    for name in ("memory_bytes", "setup_s"):
        assert checked["errors"][name] == pytest.approx(1 / noise - 1)


def test_the_prediction_is_shown_with_its_errors() -> None:
    foreseen = prediction(rows())
    assert foreseen is not None
    text = "\n".join(prediction_lines(foreseen))
    assert "1,000 TaskManagers with 10,000 channels each" in text
    assert "10,000 channels on 1 connection, from smaller sizes" in text
    assert "999,000 connections" in text
    assert "errors: memory +0%" in text or "errors: memory -0%" in text


def test_constants_are_never_negative() -> None:
    sizes = [(1, 1), (10, 1), (100, 1), (64, 8)]
    constants = Constants.of(sizes, [5.0, 4.0, 1.0, 2.0])
    assert min(constants.base, constants.per_channel, constants.per_connection) >= 0


@pytest.mark.parametrize("axis", ["channels", "connections"])
def test_without_enough_sizes_nothing_is_predicted(axis: str) -> None:
    few = rows()
    few[axis] = [*few[axis][:2], {**few[axis][2], "delivered": False}]
    assert prediction(few) is None
    assert prediction({}) is None
