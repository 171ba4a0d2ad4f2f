"""A measurement that is told to stop leaves no folder and no process, whichever it is."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netstack.base.errors import NetstackError
from netstack.base.scratch import scratch_folder
from netstack.cli.stopping import signals_are_ctrl_c

MEASUREMENTS = [
    "run --seconds 60",
    "simulate --seeds 5000",
    pytest.param("checkpoints --seconds 60 --output results", marks=pytest.mark.long),
    pytest.param("shuffle --bytes 256MiB", marks=pytest.mark.long),
    pytest.param("jobs --tasks 2000", marks=pytest.mark.long),
]


def processes_of_session(session: int) -> list[int]:
    actual = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) == session:
                actual.append(int(entry))
        except ProcessLookupError:
            continue
    return actual


@pytest.mark.whole
@pytest.mark.parametrize("starter", [[], ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]], ids=["", "in a script"])
@pytest.mark.parametrize("words", MEASUREMENTS)
def test_sigterm_leaves_neither_folders_nor_processes(words: str, starter: list[str], tmp_path: Path) -> None:
    """Also if SIGINT is ignored, as in what a shell script starts with `&`."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [*starter, sys.executable, "-m", "netstack_bench", *words.split()]
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path, start_new_session=True
    ) as running:
        while running.poll() is None and not any(scratch.glob("netstack-*")):  # it has begun; other files are Python's
            pass
        running.send_signal(signal.SIGTERM)
        _, reported = running.communicate(timeout=120)
    assert running.returncode == 128 + signal.SIGTERM, reported
    assert b"stopped by SIGTERM" in reported
    assert b"Traceback" not in reported
    assert list(scratch.iterdir()) == []
    assert processes_of_session(running.pid) == []


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_are_ctrl_c():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")  # as a write raises it: without a name
    with (
        pytest.raises(NetstackError, match=f"left in {tmp_path}; set TMPDIR"),
        scratch_folder(str(tmp_path)),
    ):
        raise full
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_elsewhere_is_another_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="results"), scratch_folder(str(tmp_path)):
        raise OSError(errno.ENOSPC, "No space left on device", "results")
