"""tools/flink-shuffle with a real Flink: its tasks write to netstack, its input gates read from there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.flink, pytest.mark.long]

TOOL = Path(__file__).parents[2] / "tools" / "flink-shuffle" / "flink_shuffle.py"


def test_a_job_that_fails_once_over_a_long_line_counts_exactly_from_an_unaligned_checkpoint() -> None:
    flags = ("--link", "10ms", "--unaligned", "--aligned-timeout", "50ms", "--fail", "--watch")
    demo = ("--records", "12800", "--work-us", "1000")
    done = subprocess.run(
        [sys.executable, str(TOOL), "run", *flags, *demo], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "keys with an exact count: 64 of 64, after a failure: true" in done.stdout
    found = re.search(r"checkpoints: (\d+) completed, \d+ failed, 1 restored; (\d+) bytes in flight", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= 2
    assert int(found[2]) > 0, "nothing was overtaken"
    assert "credits" in done.stderr
