"""`netstack-bench isolate`: its document, its flags, and real processes."""

import json
import re
from pathlib import Path

import pytest
from bench.isolate_results import Mode, mode

from netstack_bench.cli import main
from netstack_bench.isolate import command
from netstack_bench.isolate.spec import PHASES, SUBTASKS, IsolateSpec

# ------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[IsolateSpec, bool]]:
    """The command measures nothing; `measured` lists what it would have."""
    asked: list[tuple[IsolateSpec, bool]] = []

    def measure(spec: IsolateSpec, *, credit: bool, on_progress: object) -> Mode:
        asked.append((spec, credit))
        return mode(spec, sibling=1.0 if credit else 0.0)

    monkeypatch.setattr(command, "measure", measure)
    return asked


def test_isolate_prints_one_json_document(
    measured: list[tuple[IsolateSpec, bool]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["isolate", "--seconds", "0.3", "--json", "--output", str(tmp_path / "new")]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported.keys() == {"credit_on", "credit_off", "settings", "host", "version"}
    assert measured == [(IsolateSpec(seconds=0.3), True), (IsolateSpec(seconds=0.3), False)]
    contract = {
        "sibling_kept", "records_per_s", "backpressured_s", "backpressured_ms_per_s", "delivered", "connections",
        "series",
    }  # fmt: skip
    for key in ("credit_on", "credit_off"):
        assert reported[key].keys() >= contract
        for name in ("records_per_s", "backpressured_s", "backpressured_ms_per_s"):
            assert reported[key][name].keys() == set(SUBTASKS)
            assert all(phases.keys() == set(PHASES) for phases in reported[key][name].values())
    assert json.loads((tmp_path / "new" / "isolate.json").read_text()) == reported
    assert "netstack-bench isolate --seconds 0.3" in (tmp_path / "new" / "isolate.html").read_text(encoding="utf-8")


def test_every_flag_reaches_the_spec(measured: list[tuple[IsolateSpec, bool]], tmp_path: Path) -> None:
    flags = (
        "isolate --seconds 1.5 --rate none --record-bytes 1KiB --slow-rate 10 --credit off --exclusive-buffers 0"
        f" --floating-buffers 3 --segment-size 8KiB --transport unix --output {tmp_path}"
    )
    assert main(flags.split()) == 0
    spec = IsolateSpec(
        seconds=1.5,
        rate_per_s=None,
        record_bytes=1024,
        slow_rate_per_s=10.0,
        exclusive_buffers=0,
        floating_buffers=3,
        segment_size_bytes=8192,
        transport="unix",
    )
    assert measured == [(spec, False)]


def test_isolate_prints_tables_and_where_the_picture_is(
    measured: list[tuple[IsolateSpec, bool]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["isolate"]) == 0
    printed = capsys.readouterr()
    assert "credit on: B.3 kept 100 %" in printed.out
    assert "credit off: B.3 kept 0 %" in printed.out
    picture = re.search(r"picture: (results/isolate-[\d-]+/isolate\.html)", printed.out)
    assert picture is not None
    assert (tmp_path / picture[1]).exists()
    assert "warning: producer: a remark" in printed.err


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--rate", "fast"], "--rate 'fast'"),
        (["--rate", "-1"], "--rate '-1'"),
        (["--rate", "nan"], "--rate 'nan'"),
        (["--seconds", "0"], "--seconds 0"),
        (["--credit", "maybe"], "--credit"),
        (["--slow-rate", "9000"], "--slow-rate 9000"),
        (["--segment-size", "1"], "--segment-size 1B"),
    ],
)
def test_bad_usage_is_exit_code_2(
    flags: list[str],
    reported: str,
    measured: list[tuple[IsolateSpec, bool]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["isolate", "--output", str(tmp_path / "new"), *flags]) == 2
    assert reported in capsys.readouterr().err
    assert measured == []
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_bad_usage(
    measured: list[tuple[IsolateSpec, bool]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["isolate", "--output", str(tmp_path / "file" / "x")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert measured == []


def test_what_was_not_delivered_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "measure", lambda spec, **_: mode(spec, problems={"B.3": ["lost"], "B.4": []}))
    assert main(["isolate", "--credit", "on", "--output", str(tmp_path)]) == 1
    assert "not delivered with credit on" in capsys.readouterr().err


@pytest.mark.parametrize("before", [0, 1])
def test_ctrl_c_keeps_the_mode_that_ended(
    before: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    left = iter(range(before))

    def measure(spec: IsolateSpec, **_: object) -> Mode:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return mode(spec)

    monkeypatch.setattr(command, "measure", measure)
    assert main(["isolate", "--json", "--output", str(tmp_path)]) == 130
    printed = capsys.readouterr()
    assert "stopped by Ctrl-C" in printed.err
    assert ("credit_on" in json.loads(printed.out)) == bool(before)
    assert (tmp_path / "isolate.html").exists() == bool(before)


@pytest.mark.whole
def test_two_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["isolate", "--seconds", "0.3", "--rate", "2000", "--record-bytes", "1KiB", "--json"]
    assert main([*flags, "--output", str(tmp_path)]) == 0
    reported = json.loads(capsys.readouterr().out)
    for key in ("credit_on", "credit_off"):
        assert reported[key]["delivered"]
        assert reported[key]["connections"] == 1
        assert reported[key]["records_per_s"]["B.4"]["during"] == 0, "a subtask that does not read takes nothing"
        assert len(reported[key]["series"]["records_per_s"]["B.3"]) == 9
        assert min(reported[key]["records"].values()) > 0


def test_figures_are_printed_though_their_page_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "measure", lambda spec, **_: mode(spec))
    (tmp_path / "isolate.json").mkdir()
    assert main(["isolate", "--json", "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "credit_on" in json.loads(printed.out)
    assert f"not written: {tmp_path / 'isolate.json'}: is a directory" in printed.err
