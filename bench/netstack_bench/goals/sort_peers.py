"""The same sort by DuckDB, Polars and Dask: `python -m netstack_bench.goals.sort_peers NAME FOLDER SECONDS`.

Takes: a folder with `rows.npy`. Gives: a line of JSON with the seconds of one sort and the proofs of its parts.

Each has the rows in its own columnar format before the clock starts, a key and a binary payload, and as many threads or
processes as there are processors: DuckDB and Polars in memory, Dask as Parquet files, shuffled by its P2P method into a
range of keys for each worker. The proof is computed inside of the measured time and by every processor, as netstack's
sinks do it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from .sort import KEY_BITS, PAYLOAD_BYTES, Rows, keys_of, proof

CORES: Final = len(os.sched_getaffinity(0))
Sort = Callable[[], list[dict[str, Any]]]


def main(name: str, folder: str, seconds: str) -> None:
    """Sorts once as a warm-up (Dask a part of the rows), then until the seconds are over, and prints the mean."""
    _PREPARE[name](Path(folder), float(seconds))


def _package(name: str) -> Any:
    """A package of an extra, which may have no annotations or be missing where types are checked."""
    return importlib.import_module(name)


def _measure(warm_up: Sort, sort: Sort, least_s: float) -> None:
    warm_up()
    began_s, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began_s < least_s:
        parts = sort()
        count += 1
    sys.stdout.write(json.dumps({"seconds": (time.perf_counter() - began_s) / count, "parts": parts}) + "\n")


def arrow_table(rows: Rows) -> Any:
    """The rows as an Arrow table of keys and payloads."""
    pa = _package("pyarrow")
    offsets = pa.py_buffer(np.arange(0, len(rows) * PAYLOAD_BYTES + 1, PAYLOAD_BYTES, dtype=np.int64))
    payloads = pa.py_buffer(np.ascontiguousarray(rows[:, 8:]))
    payload = pa.Array.from_buffers(pa.large_binary(), len(rows), [None, offsets, payloads])
    return pa.table({"key": keys_of(rows), "payload": payload})


def proofs(part: Callable[[int, int], Any], rows: int) -> list[dict[str, Any]]:
    """Of sorted rows, in a thread for each processor; `part(first, count)` gives some of them as an Arrow table."""
    ends = [rows * number // CORES for number in range(CORES + 1)]
    with ThreadPoolExecutor(CORES) as threads:
        by_part = threads.map(lambda first, end: _proofs_of(part(first, end - first)), ends, ends[1:])
        return [each for proofs_of_part in by_part for each in proofs_of_part]


def _proofs_of(table: Any) -> list[dict[str, Any]]:
    """One for each contiguous piece, so that nothing is copied."""
    return [proof(batch.column("key").to_numpy(), _payloads(batch.column("payload"))) for batch in table.to_batches()]


def _payloads(chunk: Any) -> Rows:
    width = np.int64 if str(chunk.type).startswith("large") else np.int32
    offsets = np.frombuffer(chunk.buffers()[1], width)[chunk.offset : chunk.offset + len(chunk) + 1]
    return np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, PAYLOAD_BYTES)


def _duckdb(folder: Path, least_s: float) -> None:
    with _package("duckdb").connect(config={"threads": CORES}) as connection:
        table = arrow_table(np.load(folder / "rows.npy"))
        connection.register("given", table)
        connection.execute("CREATE TABLE rows AS SELECT * FROM given")
        connection.unregister("given")

        def sort() -> list[dict[str, Any]]:
            table = connection.sql("SELECT * FROM rows ORDER BY key").to_arrow_table()
            return proofs(table.slice, len(table))

        _measure(sort, sort, least_s)


def _polars(folder: Path, least_s: float) -> None:
    polars = _package("polars")
    frame = polars.from_arrow(arrow_table(np.load(folder / "rows.npy")))

    def sort() -> list[dict[str, Any]]:
        rows, level = frame.sort("key"), polars.CompatLevel.oldest()
        return proofs(lambda first, count: rows.slice(first, count).to_arrow(compat_level=level), len(rows))

    _measure(sort, sort, least_s)


def _dask(folder: Path, least_s: float) -> None:
    distributed, dataframe, parquet = map(_package, ("dask.distributed", "dask.dataframe", "pyarrow.parquet"))
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    for part in range(4 * CORES):
        first, last = (len(rows) * (part + step) // (4 * CORES) for step in (0, 1))
        parquet.write_table(arrow_table(rows[first:last]), folder / f"part-{part:03}.parquet", compression=None)
    _package("dask").config.set({"dataframe.shuffle.method": "p2p", "temporary-directory": str(folder)})
    with (
        distributed.LocalCluster(n_workers=CORES, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        divisions = [(part << KEY_BITS) // CORES for part in range(CORES + 1)]

        def sort(files: str = "part-*.parquet") -> list[dict[str, Any]]:
            frame = dataframe.read_parquet(folder / files, dtype_backend="pyarrow")
            parts = frame.set_index("key", divisions=divisions).map_partitions(_dask_proofs, meta=("proofs", object))
            return [each for proofs_of_part in parts.compute() for each in proofs_of_part]

        _measure(lambda: sort("part-000.parquet"), sort, least_s)


def _dask_proofs(part: Any) -> Any:
    payload = part["payload"].array.__arrow_array__()
    table = _package("pyarrow").table({"key": part.index.to_numpy(dtype=np.int64), "payload": payload})
    return _package("pandas").Series([_proofs_of(table)])


_PREPARE: Final[dict[str, Callable[[Path, float], None]]] = {"duckdb": _duckdb, "polars": _polars, "dask": _dask}

if __name__ == "__main__":
    main(*sys.argv[1:])
