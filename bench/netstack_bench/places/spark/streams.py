"""Measures the stream source "netstack" beside Spark's own: `rate-micro-batch`, Parquet files, a socket.

`measure_streams` returns one document with the rows per second and the durations of micro-batches of each source. Rows
have 16 bytes and go to a sink that drops them (`noop`), one micro-batch directly after the other. The rows exist before
a query starts; only the socket sends them during the query. The first micro-batch is a warm-up and does not count.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from netstack import blocking
from netstack.spark import Publisher, plain_errors, register

from ...experiment import with_facts
from ...spec import Settings, refuse_below

_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 120.0  # for each source
_LINES: Final = 1000
_SOCKET_ROWS: Final = 2000  # Spark's reader searches each line from the first: a long micro-batch takes minutes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec(Settings):
    """The settings: rows of a micro-batch (of the socket those that have arrived, 2,000 at most), and micro-batches."""

    rows: int
    batches: int

    def __post_init__(self) -> None:
        refuse_below(("--rows", self.rows, 1), ("--batches", self.batches, 1))


def measure_streams(spark: Any, spec: StreamsSpec) -> dict[str, Any]:
    """Measures one source after the other, and returns the document.

    Raises:
        SparkFailed: a query failed; the text is one sentence.
        TimeoutError: a source has not delivered its rows within two minutes.
    """
    register(spark)
    sources = {}
    batches = spec.batches + 1
    for name, source in _SOURCES.items():
        count = min(spec.rows, _SOCKET_ROWS) if name == "socket" else spec.rows
        with tempfile.TemporaryDirectory() as folder, plain_errors(), source(spark, Path(folder), count, batches) as df:
            sources[name] = _figures(df, count * batches)
    session = {"master": str(spark.sparkContext.master), "version": str(spark.version)}
    return with_facts(spec, {"sources": sources, "spark": session})


def _figures(df: Any, rows: int) -> dict[str, float]:
    query = df.writeStream.format("noop").start()
    until_s = time.monotonic() + _TIMEOUT_S
    try:
        while sum(each["numInputRows"] for each in query.recentProgress) < rows:
            if query.exception() is not None or not query.isActive:
                query.awaitTermination()  # raises
            if time.monotonic() > until_s:
                raise TimeoutError(f"{rows} rows were not read within {_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)
    finally:
        query.stop()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    counted = progress[1:] or progress  # all rows of a socket may be in one
    took_s = [each["durationMs"]["triggerExecution"] / 1000 for each in counted]
    return {
        "rows_per_s": sum(each["numInputRows"] for each in counted) / sum(took_s),
        "batch_s": statistics.median(took_s),
        "longest_batch_s": max(took_s),
    }


def _table(rows: int, batch: int) -> Any:
    import numpy as np
    import pyarrow as pa

    ids = np.arange(batch * rows, (batch + 1) * rows)
    return pa.table({"id": ids, "value": ids})


@contextmanager
def _of_netstack(spark: Any, folder: Path, rows: int, batches: int) -> Iterator[Any]:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "numbers", folder, max_epochs=batches)
        for batch in range(batches):
            for each in _table(rows, batch).to_batches():
                publisher.write(each)
            publisher.cut()
        publisher.offer()
        options = {"address": network.address, "partition": "numbers", "maxEpochs": "1"}
        yield spark.readStream.format("netstack").schema("id bigint, value bigint").options(**options).load()


@contextmanager
def _of_files(spark: Any, folder: Path, rows: int, batches: int) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for batch in range(batches):
        pq.write_table(_table(rows, batch), folder / f"{batch:06d}.parquet")
    reader = spark.readStream.schema("id bigint, value bigint").option("maxFilesPerTrigger", 1)
    yield reader.parquet(str(folder))


@contextmanager
def _of_rate(spark: Any, folder: Path, rows: int, batches: int) -> Iterator[Any]:
    yield spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=1).load()


@contextmanager
def _of_socket(spark: Any, folder: Path, rows: int, batches: int) -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            lines = b"".join(b"%015d\n" % each for each in range(_LINES))
            with suppress(OSError):  # the server is closed
                while True:
                    accepted, _ = server.accept()
                    with accepted, suppress(OSError):  # Spark opens a connection for a test before it reads
                        for _ in range(-(-rows * batches // _LINES)):
                            accepted.sendall(lines)
                        accepted.recv(1)

        thread = threading.Thread(target=serve, name="netstack-bench socket", daemon=True)
        thread.start()
        host, port = server.getsockname()
        try:
            yield spark.readStream.format("socket").options(host=host, port=port).load()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


_SOURCES: Final[Mapping[str, Callable[[Any, Path, int, int], Any]]] = {
    "netstack": _of_netstack,
    "rate-micro-batch": _of_rate,
    "files": _of_files,
    "socket": _of_socket,
}
