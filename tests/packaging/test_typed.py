"""What a type checker knows of a writer's records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import netstack
from netstack import aio, blocking


async def emit(w: netstack.RecordWriter[str], b: blocking.RecordWriter[str], a: aio.RecordWriter[str]) -> None:
    for writer in (w, b, a):
        writer.emit_nowait("word")
    w.emit_nowait(3)
    b.emit_nowait(3)
    a.emit_nowait(3)
"""


@pytest.mark.long
def test_emit_nowait_takes_records_of_the_writers_type_only(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(program)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert re.findall(r":(\d+): error: .*\[(.*)\]", done.stdout) == [(line, "arg-type") for line in ("9", "10", "11")]
