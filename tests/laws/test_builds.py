"""Both builds of the data path do the same: on the same random schedules, the same buffers in the same order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netstack.base import build, compiled

SEEDS = 12


def history(*, is_pure: bool, first: int, count: int) -> list[str]:
    here = Path(__file__).parent
    environment = os.environ | {build.PURE: "1" if is_pure else "0", "PYTHONHASHSEED": "0"}
    environment["PYTHONPATH"] = str(here.parent / "support")
    done = subprocess.run(
        [sys.executable, str(here / "build_witness.py"), str(first), str(count)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(
    compiled.current_manifest(Path(build.__file__).parents[1])[0] is None,
    reason="needs the compiled data path: make compiled",
)
def test_both_builds_do_the_same_on_the_same_random_schedules() -> None:
    machine = history(is_pure=False, first=1000, count=SEEDS)
    python = history(is_pure=True, first=1000, count=SEEDS)
    assert (machine[0], python[0]) == ("compiled", "python")
    assert machine[1:] == python[1:]
    assert len(machine) == SEEDS + 1
