"""`netstack-bench checkpoints`: its document, its flags, and real processes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.checkpoint_results import CONTRACT, SPEC, Result, result

from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack_bench.checkpoints import command
from netstack_bench.checkpoints.figures import point
from netstack_bench.checkpoints.spec import MODES, CheckpointsSpec
from netstack_bench.cli import main

# ------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointsSpec]:
    """The command measures nothing; `measured` lists what it would have."""
    asked: list[CheckpointsSpec] = []

    def fake(spec: CheckpointsSpec, *, on_progress: object) -> tuple[Result, bool]:
        asked.append(spec)
        actual = result()
        kept = {mode: actual["modes"][mode] for mode in spec.modes}
        return {"modes": kept, "undisturbed_records_per_s": 1e5, "warnings": actual["warnings"]}, False

    monkeypatch.setattr(command, "measure", fake)
    return asked


def test_checkpoints_prints_one_json_document(
    measured: list[CheckpointsSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["checkpoints", "--pressure", "0,0.9", "--json", "--output", str(tmp_path / "new")]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported.keys() == {"modes", "undisturbed_records_per_s", "warnings", "settings", "host", "version"}
    assert measured == [SPEC]
    assert reported["modes"].keys() == set(MODES)
    assert all(each.keys() >= CONTRACT for actual in reported["modes"].values() for each in actual)
    assert json.loads((tmp_path / "new" / "checkpoints.json").read_text()) == reported
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
    assert "unaligned: 22 ms" in printed.out
    picture = re.search(r"picture: (results/checkpoints-[\d-]+/checkpoints\.html)", printed.out)
    assert picture is not None
    assert (tmp_path / picture[1]).exists()
    assert "warning: a <remark>" in printed.err


@pytest.mark.parametrize(("stopped", "reported"), [(True, "stopped by Ctrl-C"), (False, "")])
def test_what_was_not_measured_is_exit_code_1(
    stopped: bool, reported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    none = {"timed": [point(0.0, [], 3, [])]}
    actual = {"modes": none, "undisturbed_records_per_s": 1.0, "warnings": []}
    monkeypatch.setattr(command, "measure", lambda spec, **_: (actual, stopped))
    assert main(["checkpoints", "--output", str(tmp_path)]) == 1
    assert reported in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reported"),
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
    reported: str,
    measured: list[CheckpointsSpec],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["checkpoints", "--output", str(tmp_path / "new"), *flags]) == 2
    assert reported in capsys.readouterr().err
    assert measured == []
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_bad_usage(
    measured: list[CheckpointsSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["checkpoints", "--output", str(tmp_path / "file" / "x")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert measured == []


def test_figures_are_printed_though_their_page_cannot_be_written(
    measured: list[CheckpointsSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "checkpoints.json").mkdir()
    assert main(["checkpoints", "--json", "--output", str(tmp_path)]) == 1
    assert "modes" in json.loads(capsys.readouterr().out)


# ----------------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of all processes that are started; none is left in the end."""
    started: list[int] = []

    @asynccontextmanager
    async def noted(**settings: Any) -> AsyncIterator[LocalCluster]:
        async with open_local_cluster(**settings) as cluster:
            started.extend(cluster.taskmanagers.pids.values())
            yield cluster

    monkeypatch.setattr(command, "open_local_cluster", noted)
    yield started
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.whole
def test_on_processes(pids: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = f"checkpoints --seconds 0.2 --modes unaligned --pressure 0.8 --channels 2 --keys 100 --output {tmp_path}"
    assert main([*flags.split(), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["undisturbed_records_per_s"] > 0
    (actual,) = reported["modes"]["unaligned"]
    assert actual["checkpoints"] >= 1
    assert actual["duration_ms"]["p50"] > actual["state_write_ms"]["p50"] > 0
    assert actual["channel_state_bytes"]["max"] > 0, "the sinks are held back, so records wait in front of them"


@pytest.mark.whole
def test_ctrl_c_leaves_no_process_behind(pids: list[int]) -> None:
    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.measure(SPEC, on_progress=interrupt)
