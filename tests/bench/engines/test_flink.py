"""A real Flink as a peer. Those marked `flink` start one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netstack.base.errors import ConfigError
from netstack_bench.emulation import emulation_cells
from netstack_bench.engines import peer_spec
from netstack_bench.engines.flink import FlinkSession, FlinkSpec, jar
from netstack_bench.engines.flink.java_build import _sources as java_sources
from netstack_bench.engines.flink.session import SINK, SOURCE, check_rows, document_of, metrics_of, pairs_of
from netstack_bench.engines.flink.spec import cells
from netstack_bench.generator import MissingExtra
from netstack_bench.goals.jobs import write_words
from netstack_bench.grid import Grid
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.placements import LocalPlace, Runners
from netstack_bench.recommend.lines import lines, memory_bytes
from netstack_bench.rows import RowSource
from netstack_bench.spec import RunSpec
from netstack_bench.store import read_rows

REAL = [pytest.mark.java, pytest.mark.flink, pytest.mark.long]


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"transport": "unix"}, "--transport"),
        ({"round_trip_s": 0.01}, "--round-trip"),
        ({"link_bytes_per_s": 1 << 20}, "--link-rate"),
        ({"loss": 0.01}, "--loss"),
        ({"emit": "batch"}, "--emit"),
        ({"exclusive_buffers": 4}, "--exclusive-buffers"),
        ({"floating_buffers": 1}, "--floating-buffers"),
        ({"credit": False}, "--credit"),
        ({"buffer_timeout_s": 0.0005}, "--buffer-timeout 500us with --peer flink: give whole milliseconds"),
        ({"segment_size_bytes": 5000}, "--segment-size"),
    ],
)
def test_what_flink_has_not_is_refused_by_its_flag(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        peer_spec("flink", RunSpec(**settings))


def test_the_same_work_is_one_run_of_flink_whatever_ours_behaves_as() -> None:
    ours = RunSpec(buffer_timeout_s=None, debloat_s=0.5, rate_per_s=7.0, seconds=0.6, channels=3)
    flink = FlinkSpec.of(ours)
    assert flink.acts_as == "flink"
    assert flink == FlinkSpec.of(RunSpec(**flink.as_dict())) == FlinkSpec.of(flink)
    assert flink.run_id != RunSpec(**flink.as_dict()).run_id
    line = flink.line()
    assert (line["timeout_ms"], line["debloat_ms"], line["rate"], line["channels"]) == (-1, 500, 7.0, 3)
    assert line["warmup_seconds"] == pytest.approx(0.2)


def test_cells_take_turns_on_flink_as_flink_and_as_they_are_and_back(tmp_path: Path) -> None:
    every = cells(tmp_path)
    place = LocalPlace(Runners(), beside_flink=True)
    runs = place.on(Grid(points=every[:1], repeats=2)).plan()
    assert [(run.spec.ENGINE_KIND, run.spec.acts_as) for run in runs] == [
        ("flink", "flink"),
        ("local", "flink"),
        ("local", "netstack"),
        ("local", "netstack"),
        ("local", "flink"),
        ("flink", "flink"),
    ]
    assert str(runs[0]).startswith("Flink: latency")
    assert len({run.key for run in runs}) == 6
    assert len({spec.run_id for spec in every}) == len(every)
    several = place.on(Grid(points=[spec for spec in every if spec.channels > 1])).plan()
    assert {run.spec.gates for run in several} == {"each"}, "a sink of Flink has a gate of its own"


def test_flink_1_has_its_buffers_and_its_sinks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flink-dist-1.20.5.jar").touch()
    monkeypatch.setattr(jar, "flink_libraries", lambda: tmp_path)
    flink = FlinkSpec.of(RunSpec(exclusive_buffers=0, floating_buffers=32, overdraft_buffers=7))
    assert (flink.acts_as, flink.overdraft_buffers, flink.spin_s) == ("flink-1.x", 7, 0)
    line = flink.line()
    assert (line["exclusive_buffers"], line["floating_buffers"], line["overdraft_buffers"]) == (0, 32, 7)
    assert {spec.exclusive_buffers for spec in cells(tmp_path)} == {1, 2, 8}
    copies = {path.name: path.read_text() for path in java_sources(jar.SOURCES, tmp_path, tmp_path)}
    assert "createWriter(Sink.InitContext" in copies["CellSink.java"]
    assert not any("WriterInitContext" in text for text in copies.values())


def test_rows_become_sizes_and_sinks(tmp_path: Path) -> None:
    skewed = cells(tmp_path)[-1]
    assert skewed == cells(tmp_path)[-1]
    source = RowSource.of(skewed)
    pairs = np.frombuffer(pairs_of(source), dtype="<i4").reshape(-1, 2)
    assert set(pairs[:, 0]) == {1024}
    shares = np.bincount(pairs[:, 1], minlength=skewed.channels) / source.rows
    assert sorted(set(pairs[:, 1])) == list(range(skewed.channels))
    assert shares.max() > 1.5 / skewed.channels, "no skew"
    assert source.payload_bytes(2 * source.rows + 3) == (2 * source.rows + 3) * 1024
    short = tmp_path / "short.csv"
    short.write_text("key\nlong enough\nshort\n")
    plain = RowSource.of(RunSpec(input_path=str(short)))
    assert np.frombuffer(pairs_of(plain), dtype="<i4").tolist() == [11, -1, 5, -1]
    with pytest.raises(ConfigError, match="5 bytes"):
        check_rows(plain)


def sides(**sink: float) -> dict[str, Any]:
    """What the JVM samples: half a second of a source and two sinks."""
    source = {"softBackPressuredTimeMsPerSecond": 100.0, "numBuffersOut": 4.0, "numBytesOut": 80_000.0}
    gauges = {"outPoolUsage": 0.5, "outputQueueSize": 1000.0}
    sinks = {"accumulateIdleTimeMs": 400.0, "accumulateBusyTimeMs": 700.0, "numBuffersInRemote": 4.0, **sink}
    ended = {**sinks, "numBuffersInRemote": 8.0, "numBytesInRemote": 84_000.0}
    before = dict.fromkeys((*source, *sinks), 0.0)
    return {
        "seconds": 0.5,
        SOURCE: {"before": before, "mean": gauges, "after": source, "final": source},
        SINK: {"before": before, "mean": {"inPoolUsage": 1.0, "inputQueueSize": 64.0}, "after": sinks, "final": ended},
    }


def test_flinks_metrics_have_our_names_and_units() -> None:
    metrics = metrics_of(2, sides())
    assert metrics["producer"] == {
        "netstack_output_pool_usage_ratio": 0.5,
        "netstack_output_queue_bytes": 1000.0,
        "netstack_output_soft_backpressured_ms_per_second": 200.0,
        "netstack_output_backpressured_ms_per_second": 200.0,
        "netstack_output_buffers_total": 4.0,
        "netstack_output_bytes_total": 80_000.0,
    }
    assert metrics["consumer"] == {
        "netstack_input_pool_usage_ratio": 0.5,  # on average over two sinks
        "netstack_input_queue_bytes": 64.0,  # of both
        "netstack_input_idle_ms_per_second": 400.0,
        "netstack_input_busy_ms_per_second": 700.0,
        "netstack_input_remote_buffers_total": 4.0,  # two events a channel are none
        "netstack_input_remote_bytes_total": 84_000.0,
    }


def answer(**more: Any) -> dict[str, Any]:
    second = 1_000_000_000
    return {
        "cpu_s": 0.5,
        "start_ns": 10 * second,
        "stopped_ns": 12 * second,
        "last_ns": 12 * second,
        "sent": 2000,
        "received": 2000,
        "problems": [],
        "latency": {"buckets": [100], "counts": [3], "min_ns": 100, "max_ns": 100},
        "arrivals": [[10 * second, 0], [11 * second, 1000], [11 * second + second // 2, 1400]],
        "sides": sides(),
        "checkpoints": [],
        **more,
    }


def test_checkpoints_are_told_as_ours_are() -> None:
    spec = FlinkSpec.of(RunSpec(seconds=2.0, checkpoints="unaligned", checkpoint_interval_s=0.5, memory_bytes=1 << 20))
    line = spec.line()
    assert (line["checkpoint_ms"], line["unaligned"], line["memory_bytes"]) == (500, True, 1 << 20)
    one = {"duration_ms": 40, "start_delay_ms": 5, "alignment_ms": 1, "write_ms": 9, "channel_state_bytes": 1000}
    checkpoints = [{**one, "complete": True}, {**one, "complete": False, "duration_ms": 900}]
    report = document_of(spec, answer(checkpoints=checkpoints))["checkpoints"]
    assert (report["complete"], report["aborted"]) == (1, 1)
    assert report["duration_ms"] == {"p50": 40.0, "max": 40.0}
    assert report["besides_writing_ms"]["p50"] == pytest.approx(31.0)
    assert report["channel_state_bytes"]["p50"] == 1000
    assert document_of(FlinkSpec.of(RunSpec(seconds=2.0)), answer())["checkpoints"] == {}


def test_the_window_leaves_out_the_warm_up_and_a_loss_is_told() -> None:
    spec = FlinkSpec.of(RunSpec(seconds=2.0))
    document = document_of(spec, answer())
    assert (document["records_per_s"], document["seconds"]) == (pytest.approx(800.0), pytest.approx(0.5))
    assert document["records_per_buffer"] == 350.0
    assert document["wire_bytes"] == 84_000 + 6 * 47, "each buffer has a header of 47 bytes"
    assert document["wire_mb_per_s"] == pytest.approx(800.0 * document["wire_bytes"] / 2000 / 1e6)
    assert document["latency_us"]["p50"] == pytest.approx(0.1)
    assert document["delivered"]
    lost = document_of(spec, answer(received=1999))
    assert not lost["delivered"]
    assert lost["warnings"] == ["delivery: 2000 records were sent, 1999 arrived"]


def test_a_missing_piece_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingExtra, match=r"needs java, .*apt-get install openjdk-17-jdk-headless"):
        jar.java_command()
    monkeypatch.setattr(jar, "_PACKAGE", "no-such-package")
    with pytest.raises(MissingExtra, match=r"pip install 'no-such-package==2\.3\.0'"):
        jar.flink_libraries()


def test_the_jar_of_a_wheel_is_taken_as_it_is_and_another_source_is_another_jar(tmp_path: Path) -> None:
    sources = tmp_path / "java"
    sources.mkdir()
    (tmp_path / jar.JAR).write_bytes(b"ready made")
    assert jar.jar_of(sources, tmp_path) == tmp_path / jar.JAR
    before = jar._digest(sources, tmp_path)
    (sources / "A.java").write_text("class A {}")
    assert jar._digest(sources, tmp_path) != before


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK: apt-get install openjdk-17-jdk-headless")
def test_sources_become_a_jar_with_their_resources_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sources = tmp_path / "java"
    sources.mkdir()
    (sources / "A.java").write_text("class A {}")
    (sources / "log.properties").write_text("x = 1")
    made = jar.jar_of(sources, tmp_path)
    assert set(zipfile.ZipFile(made).namelist()) == {"A.class", "log.properties"}
    stamp = made.stat().st_mtime_ns
    assert jar.jar_of(sources, tmp_path).stat().st_mtime_ns == stamp
    (sources / "A.java").write_text("class A { nonsense }")
    with pytest.raises(MissingExtra, match="cannot compile"):
        jar.jar_of(sources, tmp_path)


def test_a_jvm_that_ends_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "import sys; sys.stderr.write('no memory'); sys.exit(1)"
    monkeypatch.setattr("netstack_bench.engines.flink.session.java_command", lambda **_: [sys.executable, "-c", words])
    with FlinkSession() as session, pytest.raises(MeasurementFailed, match=r"Flink's JVM has ended\n    no memory"):
        session.run_once(RunSpec(seconds=1.0))


def test_the_files_of_a_jvm_are_removed_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The JVM is killed, so that Flink's own hooks remove nothing."""
    answers = (
        "import pathlib, sys\n"
        "(pathlib.Path(sys.argv[1]) / 'flink-rpc.jar').touch()\n"
        "for line in sys.stdin:\n"
        '    print(\'{"seconds": 1, "counts": {}}\', flush=True)\n'
    )

    def java_command(scratch: str) -> list[str]:
        return [sys.executable, "-c", answers, scratch]

    monkeypatch.setattr("netstack_bench.engines.flink.session.java_command", java_command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with FlinkSession() as session:
        session.count_words(tmp_path, 2)
        assert [path.name for path in tmp_path.rglob("*.jar")] == ["flink-rpc.jar"]
    assert [*tmp_path.iterdir()] == []


def test_words_are_counted_three_times_before_the_first_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = (
        "import json, sys\n"
        "for number, line in enumerate(sys.stdin):\n"
        "    asked = json.loads(line)\n"
        "    counts = {asked['count_words']: asked['parallelism']}\n"
        "    print(json.dumps({'seconds': number, 'counts': counts}), flush=True)\n"
    )
    monkeypatch.setattr(
        "netstack_bench.engines.flink.session.java_command", lambda **_: [sys.executable, "-c", answers]
    )
    with FlinkSession() as session:
        assert session.count_words(tmp_path, 2) == ({str(tmp_path): 2}, 3)
        assert session.count_words(tmp_path, 2) == ({str(tmp_path): 2}, 4)


def bench(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "netstack_bench", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.java
@pytest.mark.flink
@pytest.mark.long
def test_flink_counts_the_words_of_a_folder(tmp_path: Path) -> None:
    counts = write_words(tmp_path / "one", 20_000) + write_words(tmp_path / "two", 10_000)
    with FlinkSession() as session:
        actual, taken_s = session.count_words(tmp_path, 2)
    assert actual == counts
    assert taken_s > 0


class TestReal:
    pytestmark = REAL

    def test_flink_takes_every_key_of_a_recommendation(self, tmp_path: Path) -> None:
        spec, timeouts_s = RunSpec(channels=50, segment_size_bytes=16 << 10), (0.02, 0.0, None)
        for number, timeout_s in enumerate(timeouts_s):
            (tmp_path / f"{number}").mkdir()
            (tmp_path / f"{number}" / "config.yaml").write_text(lines(spec, timeout_s)["Flink 2.x, config.yaml"])
        command = [*jar.java_command(Path(__file__).parent / "config_check"), "ConfigCheck", *tmp_path.iterdir()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        actual = {json.loads(line)["buffer_timeout_ms"]: json.loads(line) for line in done.stdout.splitlines()[-3:]}
        memory = {
            "TotalMemory": memory_bytes(spec),
            "TotalMemorySegments": memory_bytes(spec) // spec.segment_size_bytes,
        }
        assert actual == {each: {"buffer_timeout_ms": each, "unknown": [], **memory} for each in (20, 0, -1)}

    def test_checkpoints_and_memory_are_axes_on_both_sides(self, tmp_path: Path) -> None:
        grid = (
            "--record-sizes",
            "1KiB",
            "--timeouts",
            "100ms",
            "--channels",
            "1",
            "--seconds",
            "3",
            "--memory",
            "8MiB",
        )
        slow = ("--consume-rate", "2k", "--warmup", "1s", "--latency-seconds", "0")
        taken = ("--checkpoints", "aligned,unaligned", "--checkpoint-interval", "200ms")
        bench("sweep", "--peer", "flink", *grid, *slow, *taken, "--output", tmp_path)
        rows = {(row["settings_checkpoints"], row.get("engine_kind") == "flink"): row for row in read_rows(tmp_path)}
        assert len(rows) == 2 * 2
        for is_flink in (True, False):
            aligned, unaligned = rows["aligned", is_flink], rows["unaligned", is_flink]
            assert min(aligned["checkpoints_complete"], unaligned["checkpoints_complete"]) >= 1
            assert aligned["checkpoints_channel_state_bytes_p50"] == 0
            assert unaligned["checkpoints_channel_state_bytes_p50"] > 300_000, "what is queued in front of the sink"
            assert aligned["checkpoints_start_delay_ms_p50"] > 100, "behind what is queued"
        assert "persisted in flight" in (tmp_path / "report.html").read_text()

    def test_a_small_grid_is_measured_on_flink_and_compared(self, tmp_path: Path) -> None:
        grid = ("--record-sizes", "8B", "--timeouts", "100ms", "--channels", "1,3", "--seconds", "1")
        document = bench("sweep", "--peer", "flink", *grid, "--output", tmp_path)
        rows = read_rows(tmp_path)
        assert len(rows) == 2 * 2 * 3
        assert all(row["delivered"] for row in rows)
        flinks = {(row["settings_channels"], row["kind"]): row for row in rows if row.get("engine_kind") == "flink"}
        assert flinks[1, "throughput"]["records_per_buffer"] == pytest.approx(32768 / 21, rel=0.05)
        assert 30_000 < flinks[1, "latency"]["latency_us_p50"] < 75_000, "half the period of the flusher"
        assert all(row["metrics_consumer_netstack_input_local_buffers_total"] == 0 for row in flinks.values())
        cells = emulation_cells(rows)
        assert len(cells) == 8
        assert document["emulation"] == [cell.as_dict() for cell in cells]
        assert "Beside Flink" in (tmp_path / "report.html").read_text()

    def test_skewed_rows_go_to_the_same_sinks_of_flink(self, tmp_path: Path) -> None:
        skewed = cells(tmp_path)[-1]
        rows = ("--input", str(skewed.input_path), "--key", "key", "--channels", "4")
        slow = ("--consume-rate", "8000", "--seconds", "3", "--repeats", "1")
        document = bench("run", "--peer", "flink", "--as", "flink", *rows, *slow)
        flink = document["peer"]
        assert document["delivered"]
        assert flink["delivered"]
        assert flink["records_per_s"] == pytest.approx(document["records_per_s"], rel=0.15), "the busiest sink decides"
        assert flink["records_per_s"] < 6500
        assert flink["payload_mb_per_s"] == pytest.approx(1024 * flink["records_per_s"] / 1e6, rel=0.15)
        (cell,) = document["emulation"]
        assert {"p50", "bytes_in_flight"} <= cell["errors"].keys()

    def test_one_run_has_flink_beside_it_and_its_back_pressure(self) -> None:
        load = ("--record-bytes", "1KiB", "--consume-rate", "2000", "--seconds", "2", "--repeats", "1")
        document = bench("run", "--peer", "flink", "--as", "flink", *load)
        flink = document["peer"]
        assert flink["delivered"]
        assert flink["records_per_s"] == pytest.approx(2000, rel=0.1)
        assert flink["metrics"]["producer"]["netstack_output_pool_usage_ratio"] > 0.9
        assert flink["backpressured_ms_per_s"]["soft"] > 800
        (cell,) = document["emulation"]
        assert {"p50", "bytes_in_flight", "backpressured_ms_per_s"} <= cell["errors"].keys()
