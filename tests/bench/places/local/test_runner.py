from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack_bench.document import connection_warnings, pace_warnings, timeout_warnings
from netstack_bench.endpoints import address_of, config_of
from netstack_bench.generator import MissingExtra
from netstack_bench.host import congestion_control
from netstack_bench.places.conversation import RunState, stalled_s
from netstack_bench.places.local.runner import (
    ratios,
    run_once,
    run_with_peers,
    with_length,
)
from netstack_bench.spec import RunSpec
from netstack_bench.store import COLUMNS, flatten
from netstack_transports.tcp import LOOPBACK_CONGESTION_VARIABLE

PROMISED = {
    "records",
    "records_per_s",
    "payload_mb_per_s",
    "wire_mb_per_s",
    "latency_us",
    "cpu_s_per_gb",
    "delivered",
    "debloated_buffer_bytes",
    "backpressured_ms_per_s",
    "idle_ms_per_s",
    "metrics",
    "settings",
    "host",
    "version",
}


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """A delivered row with every promised key, as other programs read it."""
    assert row["delivered"], row["warnings"]
    assert row.keys() >= PROMISED
    assert row["latency_us"].keys() == {"p50", "p75", "p90", "p95", "p99", "p999", "p9999", "max"}
    assert row["cpu_s_per_gb"].keys() == {"producer", "consumer"}
    assert row["settings"].keys() == RunSpec().as_dict().keys()
    read: dict[str, Any] = json.loads(json.dumps(row))
    assert read == row
    return row


@pytest.mark.slow
def test_the_bare_loop() -> None:
    seen: list[RunState] = []
    row = checked(run_once(RunSpec(records=10_000_000), engine="raw", on_progress=seen.append))
    assert row["records"] == 10_000_000
    assert row["wire_mb_per_s"] > row["payload_mb_per_s"] > 0
    assert row["latency_us"]["p50"] is None
    assert any("only the number of bytes" in text for text in row["warnings"])
    assert {progress.phase for progress in seen} >= {"starting", "running"}
    assert all(progress.engine == "raw" for progress in seen)
    assert row["settings"]["emit"] == "batch"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_the_bare_loop_at_a_rate(transport: str) -> None:
    spec = RunSpec(records=150, rate_per_s=1000, transport=transport, record_bytes=100)  # type: ignore[arg-type]
    row = checked(run_once(spec, engine="raw"))
    assert row["records"] == 150
    assert row["latency_kind"] == "open-loop"
    assert row["latency_samples"] == 100, "the first third is the warm-up"
    assert row["settings"]["rate_per_s"] == 1000, "how evenly they leave is in test_pacing.py"
    assert row["records_per_s"] > 0
    assert row["latency_us"]["p50"] > 0


@pytest.mark.whole
@pytest.mark.parametrize(
    "settings",
    [
        {"seconds": 0.3},
        {"records": 3_001, "record_bytes": 100, "transport": "unix"},
        {"records": 50, "record_bytes": 100_000},
        {"records": 60, "rate_per_s": 500},
        {"records": 10, "channels": 4, "emit": "batch"},
        {"records": 100_001, "emit": "batch", "batch_records": 4096},
        {"seconds": 0.3, "emit": "batch", "verify": "sample"},
    ],
)
def test_zmq(settings: dict[str, Any]) -> None:
    pytest.importorskip("zmq")
    row = checked(run_once(RunSpec(**settings), engine="zmq"))
    assert row["records"] == settings.get("records", row["records"]) > 0
    assert row["settings"]["channels"] == 1
    assert row["latency_kind"] == ("open-loop" if "rate_per_s" in settings else "sampled under load")
    assert row["wire_mb_per_s"] is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"records": 500_000}, {"records": 1000, "record_bytes": 4096}])
def test_flight(settings: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow.flight")
    row = checked(run_once(RunSpec(**settings), engine="flight"))
    assert row["records"] == settings["records"]
    assert row["settings"]["emit"] == "arrow"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"rate_per_s": 2000.0}, {"consume_rate_per_s": 3000.0, "debloat_s": 0.1}])
def test_each_channel_has_a_gate_of_its_own(settings: dict[str, Any]) -> None:
    row = checked(run_once(RunSpec(records=1500, channels=3, gates="each", **settings)))
    assert row["records"] == 1500
    consumer = row["metrics"]["consumer"]
    assert consumer["netstack_input_records_total"] == 1500, "of all gates"
    assert 0 <= consumer["netstack_input_pool_usage_ratio"] <= 1
    assert 0 <= row["idle_ms_per_s"] <= 1000, "of a gate, on average"


def test_a_gate_for_each_channel_reads_single_records() -> None:
    for settings in ({"emit": "batch"}, {"read": "buffer"}, {"checkpoints": "aligned"}):
        with pytest.raises(ConfigError, match="--gates each"):
            RunSpec(channels=2, gates="each", **settings)
    one, each = (config_of(RunSpec(channels=3, gates=gates)).memory_bytes for gates in ("one", "each"))
    assert one is not None
    assert each is not None
    assert each - one == 2 * (8 + RunSpec().spare_buffers) * 32 * 1024


@pytest.mark.whole
def test_rows_of_a_file_exactly_once_or_repeated(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n" + "".join(f"{at},name {at}\n" for at in range(500)))
    once = checked(run_once(RunSpec(input_path=str(path)), engine="zmq"))
    assert once["records"] == 500
    assert once["payload_bytes"] == path.stat().st_size - len("id,name\n") - 500
    again = checked(run_once(RunSpec(input_path=str(path), records=1_234), engine="zmq"))
    assert again["records"] == 1_234
    paced = checked(run_once(RunSpec(input_path=str(path), records=100, rate_per_s=1000), engine="zmq"))
    assert paced["latency_kind"] == "open-loop"
    assert paced["latency_us"]["p50"] > 0


@pytest.mark.slow
def test_columnar_rows_through_flight(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.flight")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"id": range(3000), "text": ["a", None, "ü"] * 1000}), tmp_path / "t.parquet")
    spec = RunSpec(input_path=str(tmp_path / "t.parquet"), emit="arrow", records=7_001, batch_records=400)
    assert checked(run_once(spec, engine="flight"))["records"] == 7_001


@pytest.mark.slow
def test_an_engine_and_its_peer_in_turn() -> None:
    pytest.importorskip("zmq")
    order: list[str] = []

    def note(progress: RunState) -> None:
        if not order or order[-1] != progress.engine:
            order.append(progress.engine)

    row = run_with_peers(RunSpec(records=20_000), ["zmq"], 2, on_progress=note)
    assert order == ["netstack", "zmq"] * 2
    assert row["repeats"] == 2
    assert len(row["runs"]) == 2
    assert row["peer"].keys() >= PROMISED
    assert row["peer"]["engine"] == "zmq"
    assert row["ratio"]["records_per_s"] == row["records_per_s"] / row["peer"]["records_per_s"]
    assert row["ratio"]["latency_us"]["p50"] == row["latency_us"]["p50"] / row["peer"]["latency_us"]["p50"]
    assert row["peer"]["ratio"] == row["ratio"]


@pytest.mark.slow
def test_a_rate_that_was_not_reached_is_told() -> None:
    row = run_once(RunSpec(seconds=0.1, rate_per_s=5e8), engine="zmq")
    assert any("asked 5e+08 records/s, sent" in text for text in row["warnings"])


def test_what_a_peer_cannot_do_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--peer raw moves bytes"):
        run_with_peers(RunSpec(input_path=str(tmp_path / "a.csv")), ["raw"], 5)
    with pytest.raises(ConfigError, match="--peer zmq sends single rows"):
        run_once(RunSpec(input_path=str(tmp_path / "a.parquet"), emit="arrow"), engine="zmq")


@pytest.mark.slow
def test_the_bare_loop_uses_what_netstack_uses_on_loopback() -> None:
    control = run_once(RunSpec(records=1000), engine="raw")["congestion_control"]
    assert control in ("cubic", "reno"), "of which every user may choose one"
    assert control == run_once(RunSpec(records=1000))["congestion_control"]
    environment = {LOOPBACK_CONGESTION_VARIABLE: ""}
    for engine in ("netstack", "raw"):
        control = run_once(RunSpec(records=1000), engine=engine, environment=environment)["congestion_control"]
        assert control == congestion_control(), "the system's"
    assert run_once(RunSpec(records=1000, transport="unix"), engine="raw")["congestion_control"] is None


@pytest.mark.parametrize(("control", "reported"), [("bbr", True), ("cubic", False), (None, False)])
def test_pacing_by_the_kernel_is_told(control: str | None, reported: bool) -> None:
    assert bool(connection_warnings(RunSpec(), control)) is reported
    assert not connection_warnings(RunSpec(rate_per_s=5), control)


def test_a_run_without_a_length_lasts_three_seconds() -> None:
    assert with_length(RunSpec()).seconds == 3
    assert with_length(RunSpec(records=5)).seconds is None
    assert with_length(RunSpec(input_path="rows.csv")).seconds is None


def test_ratios_of_what_both_have() -> None:
    one = {
        "records_per_s": 10.0,
        "payload_mb_per_s": 4.0,
        "wire_mb_per_s": 5.0,
        "latency_us": {"p50": 3.0, "max": None},
        "cpu_s_per_gb": {"producer": 1.0, "consumer": 2.0},
    }
    other = {**one, "records_per_s": 4.0, "wire_mb_per_s": None, "latency_us": {"p50": 6.0, "max": 1.0}}
    assert ratios(one, other) == {
        "records_per_s": 2.5,
        "payload_mb_per_s": 1.0,
        "wire_mb_per_s": None,
        "latency_us": {"p50": 0.5, "max": None},
        "cpu_s_per_gb": {"producer": 1.0, "consumer": 1.0},
    }


@pytest.mark.slow
def test_a_row_fits_the_columns_of_a_sweep() -> None:
    row = flatten(run_once(RunSpec(records=1000), engine="raw"))
    own = {"run_id", "repeat", "order", "kind", "started_at", "error", "hosts", "pairs"}
    assert row.keys() >= COLUMNS.keys() - own


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["unix", "shm"])
def test_a_longer_link_with_no_buffers_of_its_own(transport: str) -> None:
    spec = RunSpec(
        seconds=0.3,
        rate_per_s=500,
        buffer_timeout_s=0,
        transport=transport,  # type: ignore[arg-type]
        round_trip_s=0.02,
        link_bytes_per_s=1 << 20,
        exclusive_buffers=0,
    )
    row = checked(run_once(spec))
    assert row["latency_us"]["p50"] > 10_000, "half a round trip"
    assert row["metrics"]["consumer"]["netstack_input_backlog_announcements_total"] > 0
    assert row["metrics"]["producer"]["netstack_output_records_total"] == row["records"] == 150
    assert row["idle_ms_per_s"] > 0


@pytest.mark.whole
@pytest.mark.parametrize("emit", ["record", "arrow"])
def test_a_consumer_held_back(emit: str) -> None:
    spec = RunSpec(
        records=1500,  # not a time: on a busy machine it may pass before there is more than the buffers hold
        record_bytes=1024,
        emit=emit,  # type: ignore[arg-type]
        batch_records=10,
        consume_rate_per_s=2000,
        floating_buffers=2,
        debloat_s=0.01 if emit == "record" else None,
        warmup_s=0.1,
    )
    row = checked(run_once(spec))
    assert row["records_per_s"] <= 4000  # not held back it is a thousand times that
    assert sum(row["backpressured_ms_per_s"].values()) > 0
    assert (row["debloated_buffer_bytes"] is not None) == (emit == "record")


@pytest.mark.whole
def test_without_credit_beside_credit() -> None:
    row = run_with_peers(RunSpec(records=100_000), ["nocredit"], 1)
    ours, theirs = checked(row), checked(row["peer"])
    assert (ours["settings"]["credit"], theirs["settings"]["credit"]) == (True, False)
    assert ours["metrics"]["consumer"]["netstack_input_announcements_total"] > 0
    assert theirs["credits"] is None
    assert theirs["ratio"]["records_per_s"] == ours["records_per_s"] / theirs["records_per_s"]


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["tcp", "shm"])  # the threads are at the sockets, or the loop is
@pytest.mark.parametrize("rate_per_s", [None, 20_000.0])
def test_both_ends_in_threads_that_block(rate_per_s: float | None, transport: str) -> None:
    timeout_s = 0.1 if rate_per_s is None else 0.0
    settings = {"rate_per_s": rate_per_s, "buffer_timeout_s": timeout_s, "channels": 2, "transport": transport}
    row = run_once(RunSpec.from_dict({"records": 20_000, "read": "blocking", "write": "blocking", **settings}))
    assert (row["delivered"], row["records"], row["verified"]) == (True, 20_000, "all")
    assert row["wire_bytes"] > row["payload_bytes"]


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["tls", "shm"])
def test_another_transport_beside_plain(transport: str) -> None:
    row = run_with_peers(RunSpec(records=100_000, transport=transport), ["plain"], 1)  # type: ignore[arg-type]
    ours, theirs = checked(row), checked(row["peer"])
    assert (ours["settings"]["transport"], theirs["settings"]["transport"]) == (transport, "tcp")


@pytest.mark.parametrize(
    ("settings", "most_s"),
    [
        ({}, 0.1),
        ({"rate_per_s": 10.0, "consume_rate_per_s": 4.0}, 3 / 4),
        ({"link_bytes_per_s": 1000, "record_bytes": 100}, 3 / 10),
        ({"consume_rate_per_s": 100.0, "emit": "arrow", "batch_records": 50}, 3 / 2),
    ],
)
def test_a_run_that_is_held_back_is_not_taken_for_stalled(settings: dict[str, Any], most_s: float) -> None:
    assert stalled_s(RunSpec(**settings), 0.1) == pytest.approx(most_s)


def test_the_address_says_how_long_and_slow_the_link_is(tmp_path: Path) -> None:
    def address(**settings: Any) -> str:
        return address_of(RunSpec(**settings), tmp_path / "s")

    assert address() == "tcp://127.0.0.1:0"
    assert address(round_trip_s=0.01, link_bytes_per_s=100 << 20) == (
        "impaired+tcp://127.0.0.1:0?delay=5ms&rate=98721589B&queue=987215B&congestion=cubic"
    )  # 1,448 of 1,538 bytes of a frame are the stream's
    assert address(round_trip_s=0.001) == "impaired+tcp://127.0.0.1:0?delay=500us"
    assert address(transport="shm") == f"shm://bench-{os.getpid()}-s"
    assert (
        address(link_bytes_per_s=1500, transport="unix")
        == f"impaired+unix://{tmp_path}/s?delay=0&rate=1412B&queue=123401B&congestion=cubic"
    )
    assert address(link_bytes_per_s=1538, queue_bytes=15380).endswith("rate=1448B&queue=14480B&congestion=cubic")
    lossy = address(round_trip_s=0.01, link_bytes_per_s=1538, loss=0.0015, jitter_s=0.001)
    assert lossy.endswith("rate=1448B&queue=123401B&congestion=cubic&loss=0.0015&jitter=1ms")
    assert address(loss=0.001) == "impaired+tcp://127.0.0.1:0?delay=0&loss=0.001", "a loss costs a round trip: nothing"
    assert address(loss=0.001, round_trip_s=0.01).endswith("?delay=5ms&congestion=cubic&loss=0.001")


def test_the_settings_reach_the_configuration() -> None:
    config = config_of(RunSpec(exclusive_buffers=0, floating_buffers=3, credit=False, debloat_s=0.5))
    assert (config.exclusive_buffers_per_channel, config.floating_buffers_per_gate) == (0, 3)
    assert (config.credit_based, config.heartbeat_interval_s, config.debloat_target_s) == (False, None, 0.5)
    assert config_of(RunSpec()).heartbeat_interval_s == NetworkConfig().heartbeat_interval_s


def test_ctrl_c_keeps_the_turns_in_which_the_peer_was_measured_too(
    monkeypatch: pytest.MonkeyPatch, fake_result: Callable[..., dict[str, Any]]
) -> None:
    engines: list[str] = []

    def run_once(spec: RunSpec, *, engine: str, on_progress: object) -> dict[str, Any]:
        engines.append(engine)
        if len(engines) == 6:
            raise KeyboardInterrupt
        return fake_result(spec, salt=len(engines))

    monkeypatch.setattr("netstack_bench.places.local.runner.run_once", run_once)
    try:
        row = run_with_peers(RunSpec(), ["zmq"], 5)
    except KeyboardInterrupt:  # which would end the tests
        pytest.fail("the complete turns are lost")
    assert engines == ["netstack", "zmq"] * 3
    assert len(row["runs"]) == len(row["peer"]["runs"]) == row["repeats"] == 2


def test_ctrl_c_in_the_first_turn_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(spec: RunSpec, *, engine: str, on_progress: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("netstack_bench.places.local.runner.run_once", run_once)
    with pytest.raises(KeyboardInterrupt):
        run_with_peers(RunSpec(), ["zmq"], 5)


@given(st.none() | st.floats(0, 1000), st.floats(0, 1000))
def test_a_timeout_that_cannot_expire_is_a_warning(timeout_s: float | None, sent_s: float) -> None:
    warned = timeout_warnings(RunSpec(buffer_timeout_s=timeout_s), sent_s)
    assert len(warned) == (timeout_s is not None and timeout_s > sent_s)
    assert all("it never expired, so the figures are those of --buffer-timeout none" in text for text in warned)


@pytest.mark.parametrize(
    ("sent_s", "cause"),
    [(0.05, "lasted 0.05 s, too short for a warm-up"), (22.0, "too few records arrived between the warm-up and")],
)
def test_why_a_window_includes_the_start(sent_s: float, cause: str) -> None:
    (warned,) = pace_warnings(RunSpec(), False, 2, sent_s)
    assert cause in warned
    assert not pace_warnings(RunSpec(), True, 2, sent_s)


def test_a_peer_whose_package_is_missing_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "netstack_bench.engines.zmq", raising=False)
    monkeypatch.setattr("netstack_bench.places.local.runner.run_once", lambda *_, **__: pytest.fail("a run"))
    with pytest.raises(MissingExtra, match="--peer zmq needs pyzmq"):
        run_with_peers(RunSpec(), ["raw", "zmq"], 1)
