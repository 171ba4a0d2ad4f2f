"""The keys of a run's document are described once; the schema, METHOD.md and the columns follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tool_modules import load_tool

from netstack_bench.document import KEYS, document
from netstack_bench.histogram import Histogram
from netstack_bench.spec import RunSpec
from netstack_bench.store import COLUMNS

render = load_tool("render_run_document")


def test_schema_and_tables_are_those_of_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--check"]) == 0, capsys.readouterr().out


def test_every_key_is_described_once() -> None:
    names = [key.name for key in KEYS]
    assert len(set(names)) == len(names)
    assert all(key.meaning for key in KEYS)
    text = "".join(render.rendered().values())
    assert all(f"| `{name}` |" in text for name in names)


def test_a_document_has_no_key_that_is_not_described(fake_result: Callable[..., dict[str, Any]]) -> None:
    spec = RunSpec(rate_per_s=1000.0)
    latency = Histogram()
    latency.record(5_000)
    made = document(
        spec,
        engine="netstack",
        records=100,
        seconds=2.0,
        records_per_s=50.0,
        payload_bytes=800,
        wire_bytes=1000,
        latency=latency,
        cpu_s={"producer": 1.0, "consumer": None},
        problems=["one is missing"],
        warnings=["it was slow"],
        netstack_build="python",
    )
    described = {key.name: key for key in KEYS}
    of_the_command = {"schema_version", "started_at", "command"}
    assert made.keys() <= described.keys()
    assert made.keys() >= {key.name for key in KEYS if key.is_required} - of_the_command
    assert made["payload_mb_per_s"] == pytest.approx(400 / 1e6)
    assert made["wire_mb_per_s"] == pytest.approx(500 / 1e6)
    assert made["cpu_s_per_gb"] == {"producer": pytest.approx(1.0 / 8e-7), "consumer": None}
    assert made["latency_kind"] == "open-loop"
    assert made["warnings"] == ["delivery: one is missing", "it was slow"]
    assert made["delivered"] is False
    assert made["host"]["netstack_build"] == "python"
    assert fake_result(spec).keys() <= described.keys()


def test_columns_are_those_of_the_keys() -> None:
    assert {f"{key.name}{rest}" for key in KEYS for rest in key.columns} <= COLUMNS.keys()
    assert COLUMNS["latency_us_p999"] == "float64"
