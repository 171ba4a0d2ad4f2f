"""The notebooks print what is stored in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "tools/examples").glob("*.ipynb"))


IN_SPARK = [pytest.mark.java, pytest.mark.long, pytest.mark.xdist_group("spark")]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["flow_control", "plan_and_run", "sweeps_in_spark"]


@pytest.mark.whole
@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, id=path.stem, marks=IN_SPARK if "spark" in path.stem else ()) for path in NOTEBOOKS],
)
def test_a_notebook_prints_what_is_stored(notebook: Path) -> None:
    command = [sys.executable, "tools/run_notebook.py", str(notebook)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
