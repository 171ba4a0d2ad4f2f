"""Temporary folders: those of killed processes are removed, those of living ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from netstack.base.scratch import scratch_folder

_HOLD = """
import sys
from netstack.base.scratch import folder_until_exit
print(folder_until_exit("netstack-test-"), flush=True)
sys.stdin.read()
"""


def _holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed, left = _holder(tmp_path)
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    living, kept = _holder(tmp_path)
    try:
        with scratch_folder(str(tmp_path), "netstack-test-") as own:
            assert {*tmp_path.iterdir()} == {kept, Path(own)}
    finally:
        living.communicate("")
    assert [*tmp_path.iterdir()] == []
