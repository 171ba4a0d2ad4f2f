"""One shuffle after the other on TaskManagers of this machine: rates, what was on disk, how much memory it took.

Takes: a `ShuffleSpec`. Gives: plain data.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import trio

from netstack.jobmanager.local import open_local_cluster
from netstack.schedule.graph.stream_graph import StreamGraph

from .rows import BATCH_ROWS, ROW_BYTES, expected, shuffle_job

BLOCK_BYTES: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSpec:
    """What is measured.

    Attributes:
        size_bytes: of all rows.
        modes: see `rows.MODES`.
        producers: subtasks that make rows.
        consumers: subtasks that get them.
        taskmanagers: processes.
        slots: of each TaskManager; fewer than subtasks make stages wait where they can.
        repeats: of each mode, by turns.
    """

    size_bytes: int
    modes: tuple[str, ...]
    producers: int
    consumers: int
    taskmanagers: int
    slots: int
    repeats: int


def measure(spec: ShuffleSpec, progress: Callable[[str], None]) -> dict[str, Any]:
    """All of it.

    Raises:
        JobFailed: a job failed.
    """
    batches = max(1, spec.size_bytes // (BATCH_ROWS * ROW_BYTES * spec.producers))
    shape = {"batches": batches, "producers": spec.producers, "consumers": spec.consumers}
    size = batches * BATCH_ROWS * ROW_BYTES * spec.producers
    wanted = expected(**shape)
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in spec.modes}
    with tempfile.TemporaryDirectory(prefix="netstack-bench-shuffle-") as folder:
        progress("the disk's own rate")
        disk = _disk_rate(Path(folder), size)
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = folder  # the TaskManagers keep their files there
        try:
            for repeat in range(spec.repeats):
                for mode in spec.modes:
                    progress(f"{mode} {repeat + 1}/{spec.repeats}")
                    graph = shuffle_job(mode, **shape).stream_graph()
                    run = trio.run(_run, graph, spec, Path(folder))
                    results = run.pop("results")
                    run["delivered"] = [results[index] for index in range(spec.consumers)] == wanted
                    run["bytes_per_s"] = size / run["duration_s"]
                    found[mode].append(run)
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
    return {
        "settings": asdict(spec),
        "row_bytes": ROW_BYTES,
        "rows": size // ROW_BYTES,
        "size_bytes": size,
        "disk": disk,
        "modes": found,
        "delivered": all(run["delivered"] for runs in found.values() for run in runs),
    }


async def _run(graph: StreamGraph, spec: ShuffleSpec, folder: Path) -> dict[str, Any]:
    async with open_local_cluster(taskmanagers=spec.taskmanagers, slots=spec.slots) as cluster:
        pids = [each["pid"] for each in await cluster.client.taskmanagers()]
        before = sum(map(_anonymous_bytes, pids))
        with _Watch(folder, pids) as watch:
            began = time.monotonic()
            result = await cluster.wait(await cluster.client.submit(graph))
            duration_s = time.monotonic() - began
    return {
        "duration_s": duration_s,
        "peak_disk_bytes": watch.disk_bytes,
        "peak_memory_growth_bytes": max(0, watch.memory_bytes - before),
        "results": result.results["sums"],
    }


class _Watch:
    """Looks at files and processes from a thread, ten times a second."""

    def __init__(self, folder: Path, pids: list[int]) -> None:
        self.disk_bytes = 0
        self.memory_bytes = 0
        self._folder = folder
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self.disk_bytes = max(self.disk_bytes, _files_bytes(self._folder))
            self.memory_bytes = max(self.memory_bytes, sum(map(_anonymous_bytes, self._pids)))


def _files_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("netstack-shuffle-*/*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def _disk_rate(folder: Path, size: int) -> dict[str, float]:
    """What writing and reading as many bytes takes, one process, a MiB at a time, through the page cache."""
    path, block = folder / "rate", os.urandom(BLOCK_BYTES)
    count = max(1, size // BLOCK_BYTES)
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(block)
    written = time.monotonic()
    with path.open("rb", buffering=0) as file:
        memory = bytearray(BLOCK_BYTES)
        while file.readinto(memory):
            pass
    read = time.monotonic()
    path.unlink()
    total = count * BLOCK_BYTES
    return {"write_bytes_per_s": total / (written - began), "read_bytes_per_s": total / (read - written)}
