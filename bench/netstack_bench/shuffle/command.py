"""The command `netstack-bench shuffle`: rates, bytes on disk and memory of shuffles on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, final

import click
import trio
from rich.console import Console

from netstack.base.config import SHUFFLE_COMPRESSIONS
from netstack.base.errors import ConfigError
from netstack.base.scratch import scratch_folder
from netstack.cli.values import COUNT, SIZE
from netstack.cluster.jobmanager.local import open_local_cluster
from netstack.schedule.slots.slots import LoadBalanceMode

from .. import console
from ..experiment import with_facts
from ..flags import flag, flags, json_flag, list_flag
from ..spec import Settings, refuse_below
from ..stopping import kept_at_interrupt
from . import spark_peer
from .rows import BATCH_ROWS, MODES, ROW_BYTES, expected, shuffle_job


@click.command(short_help="Shuffle of a batch job: pipelined, hybrid, blocking; rate, disk, memory.")
@flags(
    flag("--bytes", SIZE, "Size of all rows together.", "size_bytes", default="256MiB"),
    list_flag("--mode", tuple(MODES), "How the stages exchange rows; by default all.", "modes"),
    flag("--producers", COUNT, "Subtasks that make rows.", default=2),
    flag("--consumers", COUNT, "Subtasks that receive rows.", default=2),
    flag("--taskmanagers", COUNT, "Number of TaskManagers, processes of this machine.", default=2),
    flag("--slots", COUNT, "Slots of each TaskManager; with 1 the second stage waits for the first.", default=2),
    flag("--repeats", COUNT, "Runs of each mode, by turns.", default=3),
    list_flag("--compression", SHUFFLE_COMPRESSIONS, "Compression of stored data; by default all.", "compressions"),
    click.option(
        "--half/--no-half",
        "is_halved",
        default=True,
        show_default=True,
        help="Also run modes that store data with half of the slots.",
    ),
    click.option(
        "--spark/--no-spark", "with_spark", show_default=True, help="Also run PySpark's shuffle of the same rows."
    ),
    json_flag,
)
def shuffle(
    modes: tuple[str, ...],
    compressions: tuple[str, ...],
    is_halved: bool,
    with_spark: bool,
    as_json: bool,
    **settings: int,
) -> int:
    """Measures the shuffle between two stages of a batch job, beside the rate of the disk and PySpark's shuffle.

    Exit code 1 if a row is lost or reaches the wrong consumer. For each range of keys the number of rows and a sum that
    does not depend on their order are compared with those of the generated rows.
    """
    errors = console.err()
    compressions = compressions or SHUFFLE_COMPRESSIONS
    spec = ShuffleSpec(modes=modes or tuple(MODES), compressions=compressions, is_halved=is_halved, **settings)
    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(_session(spec.producers)) if with_spark else None
        result = measure(spec, lambda what: errors.print(what, soft_wrap=True), spark)
    return console.finish(result, as_json, print_shuffle)


def _session(producers: int) -> AbstractContextManager[Any]:
    from netstack.spark.session import open_session  # needs Spark
    from netstack.spark.settings import SparkSettings

    return open_session(SparkSettings(master=f"local[{producers}]", is_measured=True))


def print_shuffle(result: Mapping[str, Any], out: Console) -> None:
    """The figures as a table."""
    settings, disk = result["settings"], result["disk"]
    out.print(
        f"{result['rows']:,} rows of {result['row_bytes']} bytes, {settings['producers']} to {settings['consumers']} on"
        f" {settings['taskmanagers']} TaskManagers of {settings['slots']} slots, medians of {settings['repeats']};"
        f" one process writes {disk['write_bytes_per_s'] / 1e6:,.0f} MB/s and reads"
        f" {disk['read_bytes_per_s'] / 1e6:,.0f} MB/s",
        soft_wrap=True,
    )
    heads = "MB/s", "of the disk's", "seconds", "CPU s", "on disk", "compressed", "memory", "complete"
    table = console.table(("exchange",), heads)
    own = min(disk["write_bytes_per_s"], disk["read_bytes_per_s"])
    for mode, runs in result["modes"].items():
        rate = median(run["bytes_per_s"] for run in runs)
        on_disk = [run["peak_disk_bytes"] for run in runs if run["peak_disk_bytes"] is not None]
        shares = [run["compressed_share"] for run in runs if run["compressed_share"] is not None]
        table.add_row(
            mode,
            f"{rate / 1e6:,.0f}",
            f"{rate / own:.2f}",
            f"{median(run['duration_s'] for run in runs):.2f}",
            f"{median(run['cpu_s'] for run in runs):.1f}",
            f"{max(on_disk) / 1e6:,.0f} MB" if on_disk else "",
            f"{median(shares):.0%}" if shares else "",
            f"{max(run['peak_memory_growth_bytes'] for run in runs) / 1e6:,.0f} MB",
            "yes" if all(run["delivered"] for run in runs) else "[red]NO[/]",
        )
    out.print(table)


BLOCK_BYTES: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSpec(Settings):
    """The settings of the command; each field is a flag.

    Fewer slots than subtasks make stages wait where they can. With `is_halved` modes that store data also run with half
    of the slots.
    """

    size_bytes: int
    modes: tuple[str, ...]
    producers: int
    consumers: int
    taskmanagers: int
    slots: int
    repeats: int
    compressions: tuple[str, ...] = SHUFFLE_COMPRESSIONS
    is_halved: bool = True

    def __post_init__(self) -> None:
        refuse_below(
            ("--bytes", self.size_bytes, 1),
            ("--producers", self.producers, 1),
            ("--consumers", self.consumers, 1),
            ("--taskmanagers", self.taskmanagers, 1),
            ("--slots", self.slots, 1),
            ("--repeats", self.repeats, 1),
        )
        if "pipelined" in self.modes and not self.holds_a_stage(self.slots):
            raise ConfigError(
                f"--taskmanagers {self.taskmanagers} --slots {self.slots}: pipelined stages run at once and need"
                f" {max(self.producers, self.consumers)} slots; give more, or --mode blocking"
            )

    def holds_a_stage(self, slots: int) -> bool:
        """Whether all subtasks of the larger stage run at once, where each TaskManager has so many slots."""
        return self.taskmanagers * slots >= max(self.producers, self.consumers)


@final
@dataclass(frozen=True, slots=True)
class Variant:
    """One way to shuffle: a mode, a compression (pipelined data has none), and the slots of each TaskManager."""

    mode: str
    compression: str
    slots: int

    def label(self, spec: ShuffleSpec) -> str:
        """The name in the table, and the key in results."""
        parts = [self.mode]
        if self.mode != "pipelined":
            parts.append(self.compression if self.compression != "none" else "plain")
        if self.slots < spec.slots:
            parts.append("half the slots")
        return ", ".join(parts)


def variants(spec: ShuffleSpec) -> list[Variant]:
    """The variants, which take turns: pipelined once; the others by compression, and with half of the slots."""
    named = []
    for mode in spec.modes:
        compressions = ("auto",) if mode == "pipelined" else spec.compressions
        named += [Variant(mode, compression, spec.slots) for compression in compressions]
        if spec.is_halved and mode != "pipelined" and spec.slots > 1:
            named.append(Variant(mode, compressions[0], spec.slots // 2))
    return named


def measure(spec: ShuffleSpec, progress: Callable[[str], None], spark: Any = None) -> dict[str, Any]:
    """Measures the disk, then every variant and, in a Spark session, the same shuffle by turns.

    Raises:
        JobFailed: a job failed.
    """
    batches = max(1, spec.size_bytes // (BATCH_ROWS * ROW_BYTES * spec.producers))
    shape = {"batches": batches, "producers": spec.producers, "consumers": spec.consumers}
    size = batches * BATCH_ROWS * ROW_BYTES * spec.producers
    sums = expected(**shape)
    by_key: dict[str, list[dict[str, Any]]] = {}

    def add(label: str, run: dict[str, Any]) -> None:
        run["delivered"] = run.pop("results") == sums
        run["bytes_per_s"] = size / run["duration_s"]
        by_key.setdefault(label, []).append(run)

    with scratch_folder() as folder:
        progress("the disk's own rate")
        disk = _disk_rate(Path(folder), size)
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = folder  # the TaskManagers keep their files there
        try:
            if spark is not None:
                progress("pyspark warms up")
                spark_peer.run(spark, **{**shape, "batches": 1})
            with kept_at_interrupt(lambda: bool(by_key)) as stopped:
                for repeat in range(spec.repeats):
                    for variant in variants(spec):
                        label = variant.label(spec)
                        progress(f"{label} {repeat + 1}/{spec.repeats}")
                        add(label, trio.run(_run, variant, shape, spec, Path(folder)))
                    if spark is not None:
                        progress(f"pyspark {repeat + 1}/{spec.repeats}")
                        add("pyspark", _with_spark(spark, shape))
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
    figures = {
        "row_bytes": ROW_BYTES,
        "rows": size // ROW_BYTES,
        "size_bytes": size,
        "disk": disk,
        "modes": by_key,
        "delivered": all(run["delivered"] for runs in by_key.values() for run in runs),
        "stopped": stopped.by,
    }
    return with_facts(spec, figures)


async def _run(variant: Variant, shape: dict[str, int], spec: ShuffleSpec, folder: Path) -> dict[str, Any]:
    """Runs one job, after a short one through which the TaskManagers import everything."""
    waits = variant.slots < spec.slots or not spec.holds_a_stage(variant.slots)
    short, long = (
        shuffle_job(variant.mode, compression=variant.compression, waits_for_slots=waits, **each).stream_graph()
        for each in ({**shape, "batches": 1}, shape)
    )
    spread = LoadBalanceMode.SLOTS  # else a stage that fits one TaskManager leaves the others idle
    async with open_local_cluster(taskmanagers=spec.taskmanagers, slots=variant.slots, load_balance=spread) as cluster:
        pids = [each["pid"] for each in await cluster.client.taskmanagers()]
        await cluster.wait(await cluster.client.submit(short))
        before = _anonymous_bytes(pids)
        with _Watch(folder, pids) as watch:
            began, began_cpu_s = time.monotonic(), _cpu_s(pids)
            job_id = await cluster.client.submit(long)
            result = await cluster.wait(job_id)
            duration_s = time.monotonic() - began
            cpu_s = _cpu_s(pids) - began_cpu_s
        kept = [vertex["kept"] for vertex in (await cluster.client.job(job_id))["vertices"]]
    return {
        "duration_s": duration_s,
        "cpu_s": cpu_s,
        "peak_disk_bytes": watch.disk_bytes,
        "compressed_share": next((each["compressed_bytes"] / each["bytes"] for each in kept if each), None),
        "peak_memory_growth_bytes": max(0, watch.memory_bytes - before),
        "results": [result.results["sums"].get(index) for index in range(spec.consumers)],
    }


def _with_spark(spark: Any, shape: dict[str, int]) -> dict[str, Any]:
    pids = [os.getpid()]
    before, began_cpu_s = _anonymous_bytes(pids), _cpu_s(pids)
    with _Watch(Path("/nonexistent"), pids) as watch:
        run = spark_peer.run(spark, **shape)
    run["cpu_s"] = _cpu_s(pids) - began_cpu_s
    run["peak_disk_bytes"] = run["compressed_share"] = None
    run["peak_memory_growth_bytes"] = max(0, watch.memory_bytes - before)
    return run


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                pids += [child, *children_of(child)]
    return pids


def with_descendants(pids: list[int]) -> list[int]:
    """These processes and all that descend from them: a TaskManager's slots are processes of their own."""
    return [each for pid in pids for each in (pid, *children_of(pid))]


def _cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes, their descendants, and those of these that have ended."""
    ticks = 0
    for pid in with_descendants(pids):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class _Watch:
    """Samples files and processes from a thread, ten times a second."""

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
            self.memory_bytes = max(self.memory_bytes, _anonymous_bytes(self._pids))


def _files_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("netstack-shuffle-*/*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _anonymous_bytes(pids: list[int]) -> int:
    """Anonymous memory of processes and their descendants; forked ones share pages, which count for each."""
    total = 0
    for pid in with_descendants(pids):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
    return total


def _disk_rate(folder: Path, size: int) -> dict[str, float]:
    """Rates of writing and reading as many bytes: one process, a MiB at a time, through the page cache."""
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
