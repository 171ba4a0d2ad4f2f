"""Temporary folders: those of killed processes are removed, those of living ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from netstack.base.scratch import remove_leftovers, scratch_folder

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


def test_only_folders_of_dead_processes_are_removed_whatever_lies_there(tmp_path: Path) -> None:
    """What another user may put into a shared temporary folder."""
    kept, parent = tmp_path / "kept", tmp_path / "parent"
    for folder in (kept, parent, parent / "netstack-test-pipe", parent / "netstack-test-link"):
        folder.mkdir()
    for file in (kept / "lock", kept / "data", parent / "netstack-test-file"):
        file.write_text("")
    (parent / "netstack-test-folder").symlink_to(kept)
    os.mkfifo(parent / "netstack-test-pipe" / "lock")
    (parent / "netstack-test-link" / "lock").symlink_to(kept / "data")
    removed = remove_leftovers(str(parent), "netstack-test-")
    assert removed == [str(parent / "netstack-test-pipe")]
    assert {*os.listdir(kept)} == {"lock", "data"}
    assert {*os.listdir(parent)} == {"netstack-test-folder", "netstack-test-link", "netstack-test-file"}
