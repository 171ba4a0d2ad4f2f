"""`checkpoints`: settings, figures and verdicts, the table, the page, the command."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench.checkpoints import command, measure
from bench.checkpoints.figures import Seen, Stretch, point, verdicts
from bench.checkpoints.measure import Runner, jobs, taken
from bench.checkpoints.page import build_page
from bench.checkpoints.spec import MASTER, MODES, WORKERS, CheckpointsSpec
from bench.checkpoints.text import print_result, settings_line, state_size
from bench.children import DIED, Children
from bench.cli import main
from bench.processes import MeasurementFailed
from netstack.errors import ConfigError

SPEC = CheckpointsSpec(pressures=(0.0, 0.9))
CONTRACT = {
    "pressure",
    "checkpoints",
    "aborted",
    "duration_ms",
    "alignment_ms",
    "state_write_ms",
    "channel_state_bytes",
    "records_per_s",
    "throughput_lost",
}

Result = dict[str, Any]


def seen(duration_ms: float, *, write_ms: float = 5.0, state: int = 0) -> Seen:
    return Seen(duration_ms / 1e3, duration_ms / 4e3, duration_ms / 2e3, write_ms / 1e3, state)


def stretches(*rates: float) -> list[Stretch]:
    """Of half a second each, without and with checkpoints in turn."""
    return [Stretch(bool(number % 2), int(rate / 2), 0.5) for number, rate in enumerate(rates)]


def points(mode: str) -> list[Result]:
    """Aligned ones grow, unaligned ones do not."""
    found = []
    for pressure in SPEC.pressures:
        grown = 1.0 if mode == "unaligned" else 1 + 20 * pressure
        state = 0 if mode == "aligned" else int(1_000_000 * pressure)
        durations = [seen(grown * each, state=state) for each in (20.0, 22.0, 30.0)]
        found.append(point(pressure, durations, 0, stretches(1000.0, 990.0, 1000.0, 970.0, 1000.0)))
    return found


def result(**changed: Any) -> Result:
    modes = {mode: points(mode) for mode in MODES}
    host = {"name": "lab-<7>", "cpu": "EPYC", "cores": 2, "kernel": None, "python": "3.11", "load_average": [0.5, 1, 1]}
    return {
        "modes": modes,
        "undisturbed_records_per_s": 100_000.0,
        "warnings": ["a <remark>"],
        "settings": SPEC.as_dict(),
        "host": host,
        "version": "0.2.0",
        **changed,
    }


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seconds": 0.1}, "--seconds 0.1"),
        ({"interval_s": 0.0}, "--interval 0"),
        ({"aligned_timeout_s": 0.0}, "--aligned-timeout 0"),
        ({"modes": ()}, "--modes"),
        ({"modes": ("aligned", "fast")}, "--modes aligned,fast: give some of aligned,unaligned,timed"),
        ({"modes": ("aligned", "aligned")}, "--modes aligned,aligned"),
        ({"pressures": ()}, "--pressure"),
        ({"pressures": (0.5, 0.2)}, "--pressure 0.5,0.2"),
        ({"pressures": (0.5, 1.0)}, "--pressure 0.5,1"),
        ({"pressures": (-0.1,)}, "--pressure -0.1"),
        ({"channels": 0}, "--channels 0"),
        ({"record_bytes": 7}, "--record-bytes 7"),
        ({"keys": 0}, "--keys 0"),
        ({"exclusive_buffers": -1}, "--exclusive-buffers -1"),
        ({"floating_buffers": 0}, "--floating-buffers 0"),
        ({"segment_size_bytes": 16}, "--segment-size 16B"),
    ],
)
def test_what_cannot_work_names_the_flag(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        CheckpointsSpec(**settings)


def test_settings_travel_whole() -> None:
    spec = CheckpointsSpec(modes=("timed",), pressures=(0.25, 0.5), channels=2)
    assert CheckpointsSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


# ------------------------------------------------------------------------------------------------------------- figures


def test_a_point_has_medians_and_the_most() -> None:
    told = point(0.5, [seen(20.0, state=10), seen(100.0, write_ms=70.0, state=30), seen(40.0, state=20)], 2, [])
    assert told.keys() >= CONTRACT
    assert (told["pressure"], told["checkpoints"], told["aborted"]) == (0.5, 3, 2)
    assert told["duration_ms"] == pytest.approx({"p50": 40.0, "max": 100.0})
    assert told["start_delay_ms"] == pytest.approx({"p50": 10.0, "max": 25.0})
    assert told["alignment_ms"] == pytest.approx({"p50": 20.0, "max": 50.0})
    assert told["state_write_ms"] == pytest.approx({"p50": 5.0, "max": 70.0})
    assert told["besides_writing_ms"] == pytest.approx({"p50": 30.0, "max": 35.0}), "of each checkpoint its own"
    assert told["channel_state_bytes"] == {"p50": 20, "max": 30}


def test_throughput_is_compared_with_that_next_to_it() -> None:
    told = point(0.0, [], 0, stretches(1000, 980, 1000, 980, 500, 490, 500))
    assert told["throughput_lost"] == pytest.approx(0.02), "not with that of the machine's better hours"
    assert told["throughput_lost_error"] > 0
    assert told["records_per_s"] == 980
    assert told["duration_ms"] is None
    assert point(0.0, [], 0, [])["throughput_lost"] is None
    assert point(0.0, [], 0, stretches(1000, 990))["throughput_lost_error"] is None
    assert point(0.0, [], 0, stretches(0, 0, 0))["throughput_lost"] is None, "a sink that stood still lost nothing"


def test_verdicts_tell_growth_goal_and_cost() -> None:
    aligned, unaligned, timed, cost = verdicts(SPEC, result()["modes"])
    assert aligned == "aligned: 22 ms at pressure 0, 418 ms at 0.9; besides writing the state, 565 ms at most"
    assert unaligned == (
        "unaligned: 22 ms at pressure 0, 22 ms at 0.9; besides writing the state, 25 ms at most (aimed at: below 50 ms)"
    )
    assert timed.startswith("timed: ")
    assert cost.startswith("throughput that a barrier every 100 ms costs at pressure 0: aligned 2.0 % ± ")
    assert cost.endswith("(aimed at: 3.0 % with one every 100 ms)")
    assert verdicts(SPEC, {"aligned": [point(0.0, [], 1, [])]}) == ["aligned: no checkpoint was complete"]
    assert len(verdicts(SPEC, {"aligned": points("aligned")[:1]})) == 2


# ------------------------------------------------------------------------------------------------------------ pictures


def test_the_table_on_a_terminal() -> None:
    out = StringIO()
    modes = result()["modes"]
    modes["timed"][1]["aborted"] = 1
    print_result(SPEC, modes, Console(file=out, width=140))
    text = out.getvalue()
    assert settings_line(SPEC) in text.replace("\n", " ")
    assert re.search(r"0 +aligned +3 +22 +30 +5.5 +11 +5 +17 +0 B +980 +2.0 %", text)
    assert re.search(r"0\.9 +aligned +3 +418 ", text)
    assert re.search(r"\n +unaligned +3 +22 .* 900 kB ", text)
    assert re.search(r"\n +timed +3 of 4", text)


def test_settings_in_a_line() -> None:
    assert settings_line(SPEC) == (
        "4 sources to 2 sinks, a barrier every 100 ms, 100 B records of 10,000 keys, 2 + 8 buffers of 32 KiB,"
        " timed: unaligned after 50 ms"
    )
    assert "timed" not in settings_line(CheckpointsSpec(modes=("aligned",)))
    assert [state_size(size) for size in (0, 512, 1_500_000)] == ["0 B", "512 B", "1.5 MB"]


class Balance(HTMLParser):
    """Checks that every element is closed, and gathers what the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(**changed: Any) -> str:
    return build_page(SPEC, result(**changed), command="netstack-bench checkpoints '<b>'", made="2026-11-21 19:30")


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = page_of()
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.fetched == []
    assert "default-src 'none'" in page
    assert "lab-&lt;7&gt;" in page
    assert "a &lt;remark&gt;" in page
    assert "<b>" not in page
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page)


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg viewBox=.0 0 \d{3}.*?</svg>", page, re.DOTALL)]


def test_the_picture_has_a_line_a_mode_and_the_goal() -> None:
    drawn = charts(page_of())
    assert len(drawn) == 4, "duration and channel state, wide and narrow"
    for chart in drawn:
        assert sum(each.get("class") == "pt" for each in chart.iter()) == 6
        assert sum("series" in (each.get("class") or "").split() for each in chart.iter()) == 3
    guides = [sum(each.get("class") == "guide" for each in chart.iter()) for chart in drawn]
    assert guides == [2, 2, 0, 0]
    told = [each.get("data-told") or "" for each in drawn[0].iter()]
    assert "aligned, pressure 0.9 418 ms, at most 570 ms 3 checkpoints" in told


def test_a_page_of_what_little_there_is() -> None:
    none = point(0.0, [], 3, stretches(1000, 990, 1000))
    page = page_of(modes={"timed": [none]}, warnings=[])
    assert len(charts(page)) == 4
    assert "no checkpoint was complete" in page
    assert 'class="callout"' not in page


# --------------------------------------------------------------------------------------------------------- measurement


def test_records_are_counted_between_samples() -> None:
    samples = [(100, 10), (200, 30), (400, 30)]
    assert [taken(samples, at) for at in (50, 100, 150, 200, 300, 400, 500)] == [10, 10, 20, 30, 30, 30, 30]
    assert taken([], 5) == 0


def test_stretches_are_a_few_barriers_long() -> None:
    assert (SPEC.stretch_s, SPEC.stretches) == (0.25, 12)
    slow = CheckpointsSpec(seconds=3.0, interval_s=0.4)
    assert (slow.stretch_s, slow.stretches) == (1.0, 3)
    short = CheckpointsSpec(seconds=0.2)
    assert (short.stretch_s, short.stretches) == (0.2, 1)


class FakeProcesses:
    """Stands for the three processes: sinks take 1000 records/s, or what they may; 10 % less with checkpoints."""

    def __init__(self) -> None:
        self.inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self.started: list[str] = []
        self.addressed: list[str] = []
        self.jobs: list[tuple[str | None, float | None]] = []
        self.instead: tuple[str, dict[str, Any]] | None = None
        self.second = 0

    def __enter__(self) -> FakeProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.started.clear()

    def start(self, name: str, *arguments: str) -> None:
        self.started.append(name)
        if name == MASTER:
            self.inbox.append((MASTER, {"event": "address", "address": "tcp://x"}))

    def send(self, name: str, event: str, **fields: Any) -> None:
        if event == "address":
            self.addressed.append(name)
            return
        self.jobs.append((fields["mode"], fields["rate_per_s"]))
        rate = fields["rate_per_s"] or 1000.0
        start = self.second
        records = 0
        for second in range(7):
            self.inbox.append((WORKERS[1], self.told(start + second, records)))
            self.inbox.append((WORKERS[0], self.told(start + second, 0)))
            records += int(rate * (0.9 if second % 2 else 1.0))
        self.second += 10
        report = {
            "reason": "", "duration_s": 0.02, "start_delay_s": 0.002, "alignment_s": 0.01, "write_s": 0.005,
            "channel_state_bytes": 100,
        }  # fmt: skip
        reports = [{"is_complete": True, **report}] * 3 + [{**report, "is_complete": False, "reason": "declined"}] * 2
        stretches = [[bool(at % 2), (start + at) * 10**9, (start + at + 1) * 10**9] for at in range(6)]
        if fields["mode"] is None:
            stretches, reports = stretches[::2], []
        self.inbox.append(self.instead or (MASTER, {"event": "measured", "stretches": stretches, "reports": reports}))

    def told(self, second: int, records: int) -> dict[str, Any]:
        return {"event": "taken", "at_ns": second * 10**9, "records": records}

    def receive(self, wait_s: float) -> tuple[str, dict[str, Any]] | None:
        return self.inbox.popleft() if self.inbox else None

    def quotes(self) -> str:
        return "\n  last words"


def test_every_mode_is_measured_at_every_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses()
    monkeypatch.setattr(measure, "Children", lambda module: processes)
    heard: list[Any] = []
    found, stopped = measure.measure(SPEC, on_progress=heard.append)
    assert not stopped
    assert processes.addressed == list(WORKERS)
    assert found["undisturbed_records_per_s"] == 1000
    held_back = pytest.approx(100.0)
    assert processes.jobs == [(None, None), *((mode, None) for mode in MODES), *((mode, held_back) for mode in MODES)]
    assert len(jobs(SPEC)) == len({each.engine for each in heard}) == 7
    aligned = found["modes"]["aligned"]
    assert [each["pressure"] for each in aligned] == [0.0, 0.9]
    assert (aligned[0]["checkpoints"], aligned[0]["aborted"]) == (3, 2)
    assert aligned[0]["throughput_lost"] == pytest.approx(0.1)
    assert aligned[1]["records_per_s"] == pytest.approx(90, abs=1)
    assert aligned[1]["duration_ms"]["p50"] == pytest.approx(20.0)
    assert found["warnings"][0] == "aligned, pressure 0: a checkpoint was aborted: declined"
    assert len(found["warnings"]) == 6


@pytest.mark.parametrize(
    ("name", "message", "told"),
    [
        (
            MASTER,
            {"event": "failed", "reason": "a bug"},
            "undisturbed, pressure 0: the job failed: a bug\n  last words",
        ),
        (MASTER, {"event": "error", "kind": "ConfigError", "text": "no"}, "master raised ConfigError: no"),
        (WORKERS[1], {"event": DIED, "how": "exited with code 1"}, "b-sinks exited with code 1"),
    ],
)
def test_what_goes_wrong_is_told(
    name: str, message: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = FakeProcesses()
    processes.instead = (name, message)
    monkeypatch.setattr(measure, "Children", lambda module: processes)
    with pytest.raises(MeasurementFailed, match=re.escape(told)):
        measure.measure(SPEC)
    assert processes.started == [], "all of them were ended"


def test_a_job_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "PATIENCE_S", -1000.0)
    with pytest.raises(MeasurementFailed, match=r"timed, pressure 0\.5: no end after"):
        Runner(SPEC, FakeProcesses(), tmp_path, None).run(1, 0.5, "timed", 10.0)


@pytest.mark.parametrize("before", [0, 3])
def test_ctrl_c_keeps_what_was_measured(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses()
    monkeypatch.setattr(measure, "Children", lambda module: processes)

    def interrupt(heard: Any) -> None:
        if len(processes.jobs) > before:
            raise KeyboardInterrupt

    if not before:
        with pytest.raises(KeyboardInterrupt):
            measure.measure(SPEC, on_progress=interrupt)
        return
    found, stopped = measure.measure(SPEC, on_progress=interrupt)
    assert stopped
    assert [len(found["modes"][mode]) for mode in MODES] == [1, 1, 0]


# ------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointsSpec]:
    """The command measures nothing; `measured` lists what it would have."""
    asked: list[CheckpointsSpec] = []

    def fake(spec: CheckpointsSpec, *, on_progress: object) -> tuple[Result, bool]:
        asked.append(spec)
        found = result()
        kept = {mode: found["modes"][mode] for mode in spec.modes}
        return {"modes": kept, "undisturbed_records_per_s": 1e5, "warnings": found["warnings"]}, False

    monkeypatch.setattr(command, "measure", fake)
    return asked


def test_checkpoints_prints_one_json_document(
    measured: list[CheckpointsSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["checkpoints", "--pressure", "0,0.9", "--json", "--output", str(tmp_path / "new")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"modes", "undisturbed_records_per_s", "warnings", "settings", "host", "version"}
    assert measured == [SPEC]
    assert told["modes"].keys() == set(MODES)
    assert all(each.keys() >= CONTRACT for found in told["modes"].values() for each in found)
    assert json.loads((tmp_path / "new" / "checkpoints.json").read_text()) == told
    page = (tmp_path / "new" / "checkpoints.html").read_text(encoding="utf-8")
    assert "netstack-bench checkpoints --pressure 0,0.9" in page


def test_every_flag_reaches_the_spec(measured: list[CheckpointsSpec], tmp_path: Path) -> None:
    flags = (
        "checkpoints --seconds 1.5 --interval 200ms --modes timed,aligned --aligned-timeout 30ms --pressure 0.2,0.4"
        " --channels 3 --record-bytes 1KiB --keys 50 --exclusive-buffers 0 --floating-buffers 3 --segment-size 8KiB"
        f" --output {tmp_path}"
    )
    assert main(flags.split()) == 0
    assert measured == [
        CheckpointsSpec(
            seconds=1.5,
            interval_s=0.2,
            modes=("timed", "aligned"),
            aligned_timeout_s=0.03,
            pressures=(0.2, 0.4),
            channels=3,
            record_bytes=1024,
            keys=50,
            exclusive_buffers=0,
            floating_buffers=3,
            segment_size_bytes=8192,
        )
    ]


def test_checkpoints_prints_a_table_and_where_the_picture_is(
    measured: list[CheckpointsSpec],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "--pressure", "0,0.9"]) == 0
    printed = capsys.readouterr()
    assert "unaligned: 22 ms at pressure 0, 22 ms at 0.9" in printed.out
    picture = re.search(r"picture: (results/checkpoints-[\d-]+/checkpoints\.html)", printed.out)
    assert picture is not None
    assert (tmp_path / picture[1]).exists()
    assert "warning: a <remark>" in printed.err


@pytest.mark.parametrize(("stopped", "told"), [(True, "stopped by Ctrl-C"), (False, "")])
def test_what_was_not_measured_is_exit_code_1(
    stopped: bool, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    none = {"timed": [point(0.0, [], 3, [])]}
    found = {"modes": none, "undisturbed_records_per_s": 1.0, "warnings": []}
    monkeypatch.setattr(command, "measure", lambda spec, **_: (found, stopped))
    assert main(["checkpoints", "--output", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--modes", "fast"], "--modes fast"),
        (["--pressure", "1"], "--pressure 1"),
        (["--pressure", "x"], "--pressure"),
        (["--interval", "none"], "--interval"),
        (["--seconds", "0"], "--seconds 0"),
        (["--segment-size", "1"], "--segment-size 1B"),
    ],
)
def test_bad_usage_is_exit_code_2(
    flags: list[str],
    told: str,
    measured: list[CheckpointsSpec],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["checkpoints", "--output", str(tmp_path / "new"), *flags]) == 2
    assert told in capsys.readouterr().err
    assert measured == []
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_bad_usage(
    measured: list[CheckpointsSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["checkpoints", "--output", str(tmp_path / "file" / "x")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert measured == []


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
    assert len(started) == 3
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_three_processes(pids: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = f"checkpoints --seconds 0.2 --modes unaligned --pressure 0.8 --channels 2 --keys 100 --output {tmp_path}"
    assert main([*flags.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["undisturbed_records_per_s"] > 0
    (found,) = told["modes"]["unaligned"]
    assert found["checkpoints"] >= 1
    assert found["duration_ms"]["p50"] > found["state_write_ms"]["p50"] > 0
    assert found["channel_state_bytes"]["max"] > 0, "the sinks are held back, so records wait in front of them"
    assert found["records_per_s"] < told["undisturbed_records_per_s"]


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(pids: list[int]) -> None:
    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.measure(SPEC, on_progress=interrupt)
