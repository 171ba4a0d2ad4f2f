"""The README's program does what the README says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_embedding_example_prints_every_word_once(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 1
    program = tmp_path / "embed.py"
    program.write_text(blocks[0])
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


def test_the_example_of_a_kept_partition_reads_half_of_it() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = next(block for block in blocks if "ResultPartitionType.BLOCKING" in block)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    half = sum(number for number in range(100_000) if number % 128 < 64)
    assert done.stdout.splitlines() == ["128 subpartitions, 1200000 bytes", str(half)]


def test_the_checkpoint_example_counts_every_word(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "checkpoints.py"
    program.write_text(next(block for block in blocks if "interval_s=" in block))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = {}
    for line in done.stdout.splitlines():
        counted |= ast.literal_eval(line.partition(" ")[2])
    assert counted == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_the_blocking_example_prints_every_word_once(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "worker.py"
    program.write_text(next(block for block in blocks if "blocking" in block))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


def test_the_planning_example_is_what_is_shown() -> None:
    readme = (ROOT / "README.md").read_text()
    (program,) = [one for one in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "make_plan" in one]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"```\n(Chained, or why not\n.*?)```", readme, re.DOTALL)
    assert shown in done.stdout
    assert "split -> count: not chained: C10 partitioner is hash" in done.stdout


def test_the_first_screen_names_both_commands_and_they_exist() -> None:
    first_screen = (ROOT / "README.md").read_text()[:1500]
    targets = re.findall(r"^make (\w+)", first_screen, re.MULTILINE)
    assert targets == ["sweep", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
