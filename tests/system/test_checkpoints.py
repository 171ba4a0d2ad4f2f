"""Three real processes over real TCP, one killed after the other: the counts after the restarts are exact."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.storage import CheckpointStorage
from netstack.config import NetworkConfig
from netstack.job.master import JobFailed, JobMaster, open_job_master
from netstack.job.spec import InputSpec, Job, TaskSpec

pytestmark = pytest.mark.slow

COUNT = 60_000
KEYS = 17

OPERATORS = """
import trio

class Numbers:
    def __init__(self, count):
        self.next, self.count = 0, count

    def open(self, context):
        self.subtask = context.subtask

    async def read(self):
        await trio.sleep(0.001)
        if self.next == self.count:
            return None
        first, self.next = self.next, min(self.next + 100, self.count)
        return [number * 2 + self.subtask for number in range(first, self.next)]

    def snapshot(self, unsent):
        return self.next - unsent

    def restore(self, states):
        [self.next] = states

class Count:
    def __init__(self):
        self.counts = {}

    def process(self, record, out):
        key = key_of(record)
        count, total = self.counts.get(key, (0, 0))
        self.counts[key] = (count + 1, total + record)

    def snapshot(self):
        return dict(self.counts)

    def restore(self, states):
        [self.counts] = states

def key_of(record):
    return record % 17
"""

WORKER = "import sys, trio; from netstack.job.worker import run_worker; trio.run(run_worker, *sys.argv[1:])"


def job(folder: Path, settings: CheckpointSettings) -> Job:
    return Job(
        tasks=(
            TaskSpec("source", "cut_operators:Numbers", {"count": COUNT // 2}, parallelism=2, workers=(0,)),
            TaskSpec(
                "count",
                "cut_operators:Count",
                parallelism=2,
                inputs=(InputSpec("source", key="cut_operators:key_of", format="int64", buffer_timeout_s=0.005),),
                keyed_state=True,
                workers=(1, 2),
            ),
        ),
        checkpoints=settings,
        folder=str(folder),
        network=NetworkConfig(memory_bytes=4 << 20, segment_size_bytes=4096),
    )


class Processes:
    """The workers, by name."""

    def __init__(self, master: str, path: Path) -> None:
        self._master = master
        self._path = path
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_missing(self, names: str) -> None:
        for name in names:
            if name not in self.running:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-c", WORKER, self._master, name],
                    env={**os.environ, "PYTHONPATH": f"{self._path}:{os.environ.get('PYTHONPATH', '')}"},
                )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()


@contextmanager
def processes(master: JobMaster, path: Path) -> Iterator[Processes]:
    (path / "cut_operators.py").write_text(OPERATORS)
    workers = Processes(master.address, path)
    try:
        yield workers
    finally:
        for name in [*workers.running]:
            workers.kill(name)


@pytest.mark.parametrize(
    "settings",
    [
        CheckpointSettings(interval_s=0.03, unaligned=True),
        CheckpointSettings(interval_s=0.03, unaligned=True, aligned_timeout_s=0.002),
        CheckpointSettings(interval_s=0.03),
    ],
    ids=["unaligned", "timed", "aligned"],
)
def test_killed_processes_lose_nothing_and_repeat_nothing(tmp_path: Path, settings: CheckpointSettings) -> None:
    rng = random.Random(7)
    restored: list[int | None] = []
    planned = job(tmp_path / "checkpoints", settings)

    async def run_once(master: JobMaster, workers: Processes, *, kill: bool) -> None:
        workers.start_missing("abc")
        await master.wait_workers(3)
        assert master.workers == ("a", "b", "c")
        async with master.open_job(planned) as run, trio.open_nursery() as nursery:
            restored.append(run.restored_from)

            async def kill_one() -> None:
                while not (await run.checkpoint()).is_complete:
                    pass  # one may be declined while the job starts
                await trio.sleep(rng.uniform(0, 0.05))
                workers.kill(rng.choice("abc"))

            if kill:
                nursery.start_soon(kill_one)
            await run.wait()

    async def main() -> None:
        with trio.fail_after(110):
            async with open_job_master("tcp://127.0.0.1:0") as master:
                with processes(master, tmp_path) as workers:
                    for _ in range(2):
                        with pytest.raises(ExceptionGroup) as caught:
                            await run_once(master, workers, kill=True)
                        # Of its process, or of a connection to it: whichever is noticed first.
                        assert caught.group_contains(JobFailed)
                    await run_once(master, workers, kill=False)

    trio.run(main)
    assert restored[0] is None
    assert None not in restored[1:]
    storage = CheckpointStorage(tmp_path / "checkpoints")
    newest = storage.newest()
    assert newest is not None
    counts: dict[int, tuple[int, int]] = {}
    for snapshot in storage.read(newest.checkpoint_id):
        if snapshot.task == "count":
            counts.update(snapshot.operator)
    expected = Counter(number % KEYS for number in range(COUNT))
    totals = Counter({key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)})
    assert counts == {key: (expected[key], totals[key]) for key in range(KEYS)}


def test_workers_end_with_their_master(tmp_path: Path) -> None:
    async def main() -> list[subprocess.Popen[bytes]]:
        async with open_job_master("tcp://127.0.0.1:0") as master:
            with processes(master, tmp_path) as workers:
                workers.start_missing("ab")
                await master.wait_workers(2)
                ending = [*workers.running.values()]
                workers.running.clear()
                return ending

    for process in trio.run(main):
        assert process.wait(10) == 0
