"""The jobs of the table of goals, and the same work without netstack.

Takes: a job, an engine, the environment of its processes, about how many seconds. Gives: a result with a rate.

- Word count: the example by `netstack run`, two subtasks of each step. `loop` is one process with a dict. `queue` is
  two readers and two counters in processes of their own, with a list of words in a `put`. `bytewax` is two processes.
  `flink` is a job of two task managers in a warm JVM (`engines/flink/java/Words.java`). The rate is that of the whole
  job, from its submission to its end; Bytewax counts from when both processes read until both have their counts.
- Sort: see `sort` and `sort_peers`. netstack's rate is that of the whole job.
- Chain: six operators that add 1; `loop` is `map` of the same functions.
- Sparse edge: two processes (`sparse`), prompt as `netstack`, on the connection of the bulk edge as `shared`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from netstack.base.scratch import scratch_folder
from netstack.examples.word_count import LINES_AT_ONCE, split
from netstack.exchange.keygroups import stable_hash
from netstack.schedule.graph.stream_builder import StreamEnvironment

from ..engines.flink import FlinkSession
from ..jobs.operators import RESULT, chain, in_one_process
from ..places.conversation import MeasurementFailed
from .sort import is_whole, write_rows
from .sparse import measure_sparse

WORDS_A_SECOND: Final = 2_000_000
RECORDS_A_SECOND: Final = 3_000_000
ROWS_A_SECOND: Final = 1_000_000
SPARSE_EDGE: Final = "sparse edge"
SIDE: Final = 2
"""The number of readers, and of counters."""

_OPERATORS: Final = 6
_BYTEWAX_SHARE: Final = 16
"""Bytewax counts one word in so many, because it is slower; its start and imports are not measured."""

_LINE_WORDS: Final = 10
_VOCABULARY: Final = 20_000


def six(records: int = 1) -> StreamEnvironment:
    """A chain of six operators: one task."""
    return chain(records, _OPERATORS, is_chained=True, is_spread=False)


def measure_job(
    name: str, engine: str, environment: Mapping[str, str], seconds: float, flink: FlinkSession | None = None
) -> dict[str, Any]:
    """Runs one job once.

    Raises:
        MeasurementFailed: the job failed or its result is wrong, or a process died or made no progress.
    """
    if name == SPARSE_EDGE:
        return measure_sparse(engine == "netstack", environment, seconds)
    with scratch_folder() as scratch:
        if flink is not None:
            rate = _word_flink(Path(scratch), flink, seconds)
        elif name == "sort":
            rate = _sort(Path(scratch), engine, environment, seconds)
        else:
            rate = _MEASURES[name, engine](Path(scratch), environment, seconds)
    return {"records_per_s": rate, "delivered": True}


def write_words(path: Path, words: int) -> Counter[str]:
    """Writes a text of about so many words, a few of which are frequent; returns the count of each word."""
    lines = [
        " ".join(f"word{(number * step) ** 3 % _VOCABULARY % (1 + number * step % 997)}" for step in range(_LINE_WORDS))
        for number in range(max(1, min(words, 200_000) // _LINE_WORDS))
    ]
    times = max(1, words // (len(lines) * _LINE_WORDS))
    block = "\n".join(lines) + "\n"
    with path.open("w") as file:
        for _ in range(times):
            file.write(block)
    return Counter({word: times * count for word, count in Counter(block.split()).items()})


def _run(job: str, environment: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "netstack.cli", "run", job, "--taskmanagers", "2", "--json", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementFailed(f"{job}: exit code {done.returncode}: {done.stderr[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _word_count(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    path = scratch / "words"
    counts = write_words(path, int(WORDS_A_SECOND * seconds))
    result = _run("netstack.examples.word_count:job", environment, "--input", str(path), "-p", f"parallelism={SIDE}")
    top = result["results"]["top"]["0"]
    _check(top, [[word, counts[word]] for word, _ in top])
    return counts.total() / float(result["duration_s"])


def _word_loop(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    path = scratch / "words"
    wanted = write_words(path, int(WORDS_A_SECOND * seconds))
    began_s = time.perf_counter()
    counts: dict[str, int] = {}
    with path.open("rb") as file:
        for line in file:
            for word in split(line.decode(errors="replace")):
                counts[word] = counts.get(word, 0) + 1
    taken_s = time.perf_counter() - began_s
    _check(counts, wanted)
    return wanted.total() / taken_s


def _word_queue(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    path = scratch / "words"
    wanted = write_words(path, int(WORDS_A_SECOND * seconds))
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(64) for _ in range(SIDE)]
    results, barrier = context.Queue(), context.Barrier(2 * SIDE + 1)
    readers = [context.Process(target=read_words, args=(str(path), i, queues, barrier)) for i in range(SIDE)]
    counters = [context.Process(target=count_words, args=(queue, results, barrier)) for queue in queues]
    for process in (*readers, *counters):
        process.start()
    barrier.wait()
    began_s = time.perf_counter()
    counts: dict[str, int] = {}
    for _ in counters:
        counts |= results.get()
    taken_s = time.perf_counter() - began_s
    for process in (*readers, *counters):
        process.join()
        process.close()
    _check(counts, wanted)
    return wanted.total() / taken_s


def _word_bytewax(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    path = scratch / "words"
    wanted = write_words(path, int(WORDS_A_SECOND * seconds / _BYTEWAX_SHARE))
    _write_parts(path, scratch)
    flow = f"netstack_bench.goals.bytewax_words:flow({str(scratch)!r})"
    command = [sys.executable, "-m", "bytewax.testing", flow, "-p", str(SIDE), "-w", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementFailed(f"Bytewax: exit code {done.returncode}: {done.stderr[-1000:]}")
    counted = [json.loads(each.read_text()) for each in scratch.glob("counts-*")]
    _check({word: count for _, counts in counted for word, count in counts.items()}, wanted)
    began_s = max(float(each.read_text()) for each in scratch.glob("began-*"))
    return wanted.total() / (max(float(ended_s) for ended_s, _ in counted) - began_s)


def _word_flink(scratch: Path, flink: FlinkSession, seconds: float) -> float:
    path, parts = scratch / "words", scratch / "parts"
    wanted = write_words(path, int(WORDS_A_SECOND * seconds))
    parts.mkdir()
    _write_parts(path, parts)
    counts, taken_s = flink.count_words(parts, SIDE)
    _check(counts, wanted)
    return wanted.total() / taken_s


def _write_parts(path: Path, folder: Path) -> None:
    """Writes a file with an equal share of the lines for each reader."""
    lines = path.read_bytes().splitlines(keepends=True)
    for part in range(SIDE):
        first, last = (len(lines) * (part + step) // SIDE for step in (0, 1))
        (folder / f"part-{part}").write_bytes(b"".join(lines[first:last]))


def _sort(scratch: Path, engine: str, environment: Mapping[str, str], seconds: float) -> float:
    path, count = scratch / "rows.npy", int(ROWS_A_SECOND * seconds)
    wanted = write_rows(path, count)
    if engine == "netstack":
        result = _run("netstack_bench.goals.sort:job", environment, "-p", f"path={path}", "-p", f"parallelism={SIDE}")
        parts, taken_s = [part for _, part in sorted(result["results"]["sorted"].items())], result["duration_s"]
    else:
        command = [
            sys.executable,
            "-m",
            "netstack_bench.goals.sort_peers",
            engine,
            str(scratch),
            str(min(1.0, seconds)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MeasurementFailed(f"{engine}: exit code {done.returncode}: {done.stderr[-1000:]}")
        result = json.loads(done.stdout)
        parts, taken_s = result["parts"], result["seconds"]
    if not is_whole(parts, wanted):
        raise MeasurementFailed(f"{engine}: rows are missing, changed or not sorted")
    return count / float(taken_s)


def read_words(path: str, subtask: int, queues: list[Any], barrier: Any) -> None:
    """A reader process: splits the lines that begin in its half, and sends lists of words to their counters."""
    owners: dict[str, int] = {}
    size_bytes = os.path.getsize(path)
    last = size_bytes * (subtask + 1) // SIDE
    barrier.wait()
    with open(path, "rb") as file:
        first = size_bytes * subtask // SIDE
        file.seek(max(0, first - 1))
        if first:
            file.readline()
        start = file.tell()
        while start < last:
            lists: list[list[str]] = [[] for _ in queues]
            for _ in range(LINES_AT_ONCE):
                if start >= last:
                    break
                line = file.readline()
                start += len(line)
                for word in split(line.decode(errors="replace")):
                    owner = owners.get(word)
                    if owner is None:
                        owner = owners[word] = stable_hash(word) % SIDE
                    lists[owner].append(word)
            for queue, words in zip(queues, lists, strict=True):
                queue.put(words)
    for queue in queues:
        queue.put(None)


def count_words(queue: Any, results: Any, barrier: Any) -> None:
    """A counter process: counts until every reader has ended."""
    counts: dict[str, int] = {}
    ended = 0
    barrier.wait()
    while ended < SIDE:
        words = queue.get()
        if words is None:
            ended += 1
            continue
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    results.put(counts)


def _chain(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    records = int(RECORDS_A_SECOND * seconds)
    result = _run("netstack_bench.goals.jobs:six", environment, "-p", f"records={records}")
    summary = result["results"][RESULT]["0"]
    _check(summary["records"], records)
    return float(summary["records"] / summary["seconds"])


def _chain_loop(scratch: Path, environment: Mapping[str, str], seconds: float) -> float:
    return in_one_process(int(RECORDS_A_SECOND * seconds), _OPERATORS)


def _check(counts: Any, wanted: Any) -> None:
    if counts != wanted:
        raise MeasurementFailed("the counts differ from those of the input")


_MEASURES: Final[Mapping[tuple[str, str], Callable[[Path, Mapping[str, str], float], float]]] = {
    ("word count", "netstack"): _word_count,
    ("word count", "loop"): _word_loop,
    ("word count", "queue"): _word_queue,
    ("word count", "bytewax"): _word_bytewax,
    ("chain", "netstack"): _chain,
    ("chain", "loop"): _chain_loop,
}
