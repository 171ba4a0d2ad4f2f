"""Streams between a netstack worker and Spark, both of which are killed again and again at random: exact counts.

Workers, drivers and their JVMs are processes of their own. A driver that dies costs the start of a session.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workers import free_address

pytestmark = [pytest.mark.java, pytest.mark.long, pytest.mark.xdist_group("spark")]

HERE = Path(__file__).parent
PATIENCE_S = 900.0


def campaign(
    starts: dict[str, Callable[[], subprocess.Popen[bytes]]], deaths: int, progress: Callable[[], int], dying: str
) -> dict[str, int]:
    """Kills one of the processes at random after every step of progress; starts it again.

    Args:
        starts: makes each of them; the first ends by itself when all is done.
        deaths: how many.
        progress: a number that grows.
        dying: for the name of the test, in its messages.

    Returns:
        Deaths of each.
    """
    rng = random.Random()
    running = {name: start() for name, start in starts.items()}
    found = dict.fromkeys(starts, 0)
    worker, dies_at, until_s = next(iter(starts)), 1, time.monotonic() + PATIENCE_S
    try:
        while running[worker].poll() != 0:
            assert time.monotonic() < until_s, (dying, found, progress())
            for name, process in running.items():
                if process.poll() is not None and process.returncode != 0:
                    running[name] = starts[name]()
            if sum(found.values()) < deaths and progress() >= dies_at:
                time.sleep(rng.uniform(0, 1))
                name = rng.choice(list(starts))
                found[name] += 1
                dies_at = progress() + 1
                running[name].kill()
                running[name].wait()
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert sum(found.values()) == deaths
    return found


def starting(program: str, *arguments: object) -> Callable[[], subprocess.Popen[bytes]]:
    words = [sys.executable, str(HERE / program), *map(str, arguments)]
    return lambda: subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.getcwd()})


def stored(folder: Path, default: Any) -> Any:
    state = folder / "state.json"
    return json.loads(state.read_text()) if state.exists() else default


def test_a_stream_into_a_table_loses_nothing_and_repeats_nothing(spark: Any, tmp_path: Path) -> None:
    rows, address = 6_000, free_address()
    starts = {
        "worker": starting("stream_worker.py", tmp_path, address, rows, 100),
        "driver": starting("stream_query.py", tmp_path, address),
    }
    campaign(starts, 10, lambda: int(stored(tmp_path, [0, 0])[1]), "source")
    ids = [row["id"] for row in spark.read.parquet(str(tmp_path / "table")).collect()]
    assert len(ids) == rows
    assert sorted(ids) == list(range(rows))


def test_a_stream_out_of_a_query_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    address = free_address()
    starts = {
        "worker": starting("sink_worker.py", tmp_path, address, 2_000),
        "driver": starting("stream_sink.py", tmp_path, address),
    }
    campaign(starts, 10, lambda: int(stored(tmp_path, [0])[0]), "sink")
    ids = stored(tmp_path, None)[1]
    assert sorted(ids) == list(range(len(ids)))
