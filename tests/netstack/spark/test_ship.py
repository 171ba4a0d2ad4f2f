"""What is sent to executors: importable from a zip, transports and all, and equal for equal source."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from netstack.spark.ship import ship, zip_bytes

PROBE = """
import sys
sys.path.insert(0, {zip!r})
import netstack, bench.mesh.invokables, transports.tcp
from netstack.transport import transport_for
from netstack.control.build import build_of, own_build
assert netstack.__file__.startswith({zip!r}), netstack.__file__
print(type(transport_for("tcp://127.0.0.1:0")).__module__, own_build(), build_of("netstack.bench"))
"""


class Context:
    """What `ship` needs of a SparkContext."""

    def __init__(self) -> None:
        self.listFiles: list[str] = []

    def addPyFile(self, path: str) -> None:
        self.listFiles.append(f"file:{path}")


def test_equal_source_makes_an_equal_zip() -> None:
    data = zip_bytes()
    assert zip_bytes() == data
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert "netstack/taskmanager/service.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("/")]


def test_a_session_is_sent_it_once() -> None:
    context = Context()
    assert ship(context) == ship(context)
    (path,) = context.listFiles
    assert Path(path.removeprefix("file:")).exists()


@pytest.mark.slow
def test_it_runs_from_the_zip_and_says_the_same_build(tmp_path: Path) -> None:
    from netstack.control.build import build_of, own_build

    path = tmp_path / "sent.zip"
    path.write_bytes(zip_bytes())
    told = subprocess.run(
        [sys.executable, "-c", PROBE.format(zip=str(path))], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert told.stdout.split() == ["transports.tcp", own_build(), build_of("netstack.bench")]
