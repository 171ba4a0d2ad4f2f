"""Streams between netstack and Spark, both of which are killed again and again at random: exact counts.

A job's JobManager and TaskManagers, workers, drivers, their JVMs and executors are processes of their own. A driver
that dies costs the start of a session. `NETSTACK_DEATHS=30 pytest -m long` kills thirty in each test,
NETSTACK_DEATHS_SEED the same ones again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from process_tree import children_of
from spark.workers import free_address

from netstack.network.connection.authentication import Secret

pytestmark = [pytest.mark.java, pytest.mark.long, pytest.mark.xdist_group("spark")]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEATHS = int(os.environ.get("NETSTACK_DEATHS", "0"))
EXECUTOR = "executor"
EPOCHS_AFTER_LAST = 6  # more than a Subscriber keeps: the writers have recovered from the last kill
PATIENCE_S = 180.0  # for each death, and one more; a session may take a minute to start

Start = Callable[[], "subprocess.Popen[bytes]"]


def deaths_of(victims: Sequence[str]) -> int:
    """Each of them once, or as the environment says."""
    return DEATHS or len(victims)


def campaign(
    starts: dict[str, Start],
    victims: Sequence[str],
    progress: Callable[[], int],
    after_last: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Kills one of the processes after every step of progress, and starts it again, until the first of them has ended.

    Args:
        starts: starts each process, by name; the first one exits with 0 when its work is complete.
        victims: names of the processes to kill, in turns: each of them is killed at random moments, in a random order.
            EXECUTOR is an executor of the process "driver".
        progress: a number that grows.
        after_last: called after the last kill.

    Returns:
        The number of kills by name.
    """
    seed = int(os.environ.get("NETSTACK_DEATHS_SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    order = [victims[each % len(victims)] for each in range(deaths_of(victims))]
    rng.shuffle(order)
    running = {name: start() for name, start in starts.items()}
    first, dies_at, until_s = next(iter(starts)), 1, time.monotonic() + PATIENCE_S * (len(order) + 1)
    actual = dict.fromkeys(starts, 0)
    try:
        while running[first].poll() != 0:
            assert time.monotonic() < until_s, (seed, actual, progress())
            for name, process in running.items():
                if process.poll() is not None and process.returncode != 0:
                    running[name] = starts[name]()
            if order and progress() >= dies_at:
                time.sleep(rng.uniform(0, 1))
                name = order.pop()
                actual[name] = actual.get(name, 0) + 1
                dies_at = progress() + 1
                if name == EXECUTOR:
                    kill_executor(running["driver"].pid, rng)
                else:
                    running[name].kill()
                    running[name].wait()
                if not order:
                    after_last()
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert not order, (seed, actual)
    return actual


def kill_executor(driver: int, rng: random.Random) -> None:
    """One of those that a driver has, if there is any: it may be starting."""
    waiting, actual = [driver], []
    while waiting:
        pid = waiting.pop()
        waiting += children_of(pid)
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                actual.append(pid)
    if actual:
        os.kill(rng.choice(actual), signal.SIGKILL)


def starting(folder: Path, *words: object) -> Start:
    command = [sys.executable, *map(str, words)]
    path = os.pathsep.join(map(str, (ROOT, HERE, ROOT / "tests/support")))
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}

    def start() -> subprocess.Popen[bytes]:
        with (folder / "said").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    return start


def stored(folder: Path, default: Any) -> Any:
    state = folder / "state.json"
    return json.loads(state.read_text()) if state.exists() else default


def commits(folder: Path) -> int:
    """Micro-batches that Spark has committed."""
    return len([path for path in (folder / "checkpoint/commits").glob("*") if path.name.isdecimal()])


def ids_of(table: Path) -> list[int]:
    """What a streaming query has written: the files that its log names, not those of attempts that died."""
    paths = {
        json.loads(line)["path"]
        for log in (table / "_spark_metadata").glob("*")
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
    }
    files = [urllib.parse.unquote(urllib.parse.urlsplit(path).path) for path in paths]
    return [value for file in files for value in pq.ParquetFile(file).read().column("id").to_pylist()]


def test_a_stream_out_of_a_job_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """The job's JobManager and TaskManagers die on one side, Spark's driver with its executors on the other."""
    victims = ("driver", "taskmanager a", "jobmanager", "taskmanager b")
    rows, stream, jobmanager = 30_000 * deaths_of(victims), free_address(), free_address()
    secret = tmp_path / "secret"
    secret.write_bytes(Secret.generate().reveal())
    secret.chmod(0o600)
    cli = ("-P", "-m", "netstack.cli")
    there = ("--jobmanager", jobmanager, "--secret-file", secret)
    taskmanager = (*cli, "taskmanager", *there, "--listen", "tcp://127.0.0.1:0", "--memory", "32MiB", "--allow", "*")
    job = ("-p", f"address={stream}", "-p", f"folder={tmp_path / 'epochs'}", "-p", f"count={rows}", "-p", "per_s=4000")
    jobs = ("--listen", jobmanager, "--folder", tmp_path / "jobs", "--secret-file", secret)
    starts = {
        "submit": starting(
            tmp_path, *cli, "submit", "stream_job:numbers", *job, *there, "--wait", "--patience", "120s"
        ),
        "jobmanager": starting(tmp_path, *cli, "jobmanager", *jobs),
        "taskmanager a": starting(tmp_path, *taskmanager, "--slots", "1"),
        "taskmanager b": starting(tmp_path, *taskmanager, "--slots", "1"),
        "driver": starting(tmp_path, HERE / "stream_query.py", tmp_path, stream, 1),
    }
    actual = campaign(starts, victims, lambda: commits(tmp_path))
    ids = ids_of(tmp_path / "table")
    assert len(ids) == rows, actual
    assert sorted(ids) == list(range(rows)), actual


def test_a_stream_into_a_table_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    victims = ("worker", "driver")
    rows, address = 600 * deaths_of(victims), free_address()
    starts = {
        "worker": starting(tmp_path, HERE / "stream_worker.py", tmp_path, address, rows, 100),
        "driver": starting(tmp_path, HERE / "stream_query.py", tmp_path, address, 2),
    }
    campaign(starts, victims, lambda: int(stored(tmp_path, [0, 0])[1]))
    ids = ids_of(tmp_path / "table")
    assert len(ids) == rows
    assert sorted(ids) == list(range(rows))


SINK_VICTIMS = ("worker", "driver", EXECUTOR)


def sink_campaign(folder: Path, what: str) -> tuple[dict[str, int], list[int]]:
    """The kills by name, and the numbers that have arrived in the order of epochs, 100 in each."""
    address = free_address()
    starts = {
        "worker": starting(folder, HERE / "sink_worker.py", folder, address),
        "driver": starting(folder, HERE / "stream_sink.py", folder, address, what),
    }

    def epochs() -> int:
        return int(stored(folder, [0])[0])

    def end_soon() -> None:
        (folder / "last.part").write_text(str(epochs() + EPOCHS_AFTER_LAST))
        (folder / "last.part").rename(folder / "last")

    deaths = campaign(starts, SINK_VICTIMS, epochs, end_soon)
    assert sum(deaths.values()) == deaths_of(SINK_VICTIMS)
    return deaths, stored(folder, None)[1]


def test_a_stream_out_of_a_query_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    _, ids = sink_campaign(tmp_path, "query")
    assert len(ids) >= 100 * deaths_of(SINK_VICTIMS)
    assert sorted(ids) == list(range(len(ids)))


def test_saves_are_whole_and_only_one_whose_driver_died_may_be_there_twice(tmp_path: Path) -> None:
    """Whoever calls `save` again because it does not know whether it has returned writes another epoch."""
    deaths, ids = sink_campaign(tmp_path, "saves")
    epochs = [ids[at : at + 100] for at in range(0, len(ids), 100)]
    numbers = [min(epoch) // 100 for epoch in epochs]
    assert [sorted(epoch) for epoch in epochs] == [list(range(each * 100, each * 100 + 100)) for each in numbers]
    assert sorted(numbers) == numbers
    assert set(numbers) == set(range(max(numbers) + 1))
    assert len(numbers) - len(set(numbers)) <= deaths["driver"], deaths
