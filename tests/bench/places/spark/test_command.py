"""`netstack-bench sweep --place spark` as people run it: on a terminal, stopped, killed.

Each test starts the command, and so a JVM; what it started is found by an environment variable. What needs only a
session is in `test_engine`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).resolve().parents[4]
POINT = ["--timeouts", "0", "--record-sizes", "8", "--channels", "1", "--latency-seconds", "0"]
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def words(output: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "netstack_bench",
        "sweep",
        "--place",
        "spark",
        *POINT,
        "--output",
        str(output),
        *more,
    ]


def left_of(mark: str, within_s: float = 120.0) -> list[str]:
    """Processes that were started with this mark and are still there after so long."""
    until_s = time.monotonic() + within_s
    while actual := marked(mark):
        if time.monotonic() > until_s:
            return actual
        time.sleep(0.1)
    return []


def marked(mark: str) -> list[str]:
    actual = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                actual.append((entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "))
    return actual


class Terminal:
    """The command in a process group of its own, on a terminal of its own."""

    def __init__(self, mark: str, arguments: list[str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(arguments[0], arguments, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "TEST_MARK": mark})
        self.text = ""

    def read_until(self, text: str, within_s: float = 180.0) -> None:
        until_s = time.monotonic() + within_s
        while text not in self.text and self._read(max(0.0, until_s - time.monotonic())):
            pass
        assert text in self.text, self.text

    def press_ctrl_c(self) -> None:
        os.write(self._file, b"\x03")

    def end(self, within_s: float) -> int:
        """The exit code; everything it wrote is in `text`."""
        until_s = time.monotonic() + within_s
        while self._read(max(0.0, until_s - time.monotonic())):
            pass
        assert time.monotonic() < until_s, self.text
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._file], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._file, 1 << 16)
        except OSError:  # a terminal whose processes have gone
            return False
        self.text += _CONTROLS.sub("", data.decode(errors="replace"))
        return bool(data)


@pytest.mark.long
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(tmp_path: Path) -> None:
    terminal = Terminal("ctrl-c", words(tmp_path / "sweep", "--seconds", "4", "--repeats", "20"))
    terminal.read_until("starting Spark at local[2]")
    terminal.read_until("2/20")
    terminal.press_ctrl_c()
    assert terminal.end(120) == 130
    assert left_of("ctrl-c") == []
    assert "1 of 20 runs are stored" in " ".join(terminal.text.split())
    for noise in ("Traceback", "WARN", "log4j", "py4j"):
        assert noise not in terminal.text
    nodes = [json.loads(line) for line in (tmp_path / "sweep/nodes.jsonl").read_text().splitlines()]
    assert [(row["rank"], row["kind"]) for row in nodes] == [(0, "ok"), (1, "ok")]
    (table,) = (tmp_path / "warehouse/node_runs").glob("sweep_id=*")
    assert table.name == f"sweep_id={nodes[0]['sweep_id']}"


def test_ctrl_c_while_spark_starts_leaves_no_process(tmp_path: Path) -> None:
    terminal = Terminal("early", words(tmp_path / "sweep", "--seconds", "0.5"))
    terminal.read_until("left starting Spark")
    while not any("java" in each for each in marked("early")):  # a JVM is half started
        time.sleep(0.01)
    terminal.press_ctrl_c()
    assert terminal.end(120) == 130
    assert left_of("early") == []
    assert "stopped by Ctrl-C before" in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
def test_a_driver_that_is_ended_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    mark = f"signal-{number}"
    process = subprocess.Popen(
        words(tmp_path / "sweep", "--seconds", "60"),
        cwd=ROOT,
        env={**os.environ, "TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_s = time.monotonic() + 180
    while sum("pyspark.daemon" in each for each in marked(mark)) < 3:  # the daemon and two nodes
        assert time.monotonic() < until_s
        time.sleep(0.1)
    process.send_signal(number)
    _, message = process.communicate(timeout=120)
    assert left_of(mark) == []
    assert "Traceback" not in message
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "0 of 1 runs" in message
