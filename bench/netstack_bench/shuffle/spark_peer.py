"""The same shuffle by PySpark: the same rows, moved by `repartition`, summed up by the same code.

Spark's Python workers make rows and sum them up, from and to Arrow without a copy, as netstack's operators do in
theirs. Between them is Spark's own shuffle with its own compression. Each range of keys is one value of the
partitioning column, chosen so that every range has a partition of its own, as it has a sink of its own in netstack.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from netstack.spark.end_stage import numbers_for

from .rows import ROW_BYTES, MakeRows, SumRows, by_range


def run(spark: Any, *, batches: int, producers: int, consumers: int) -> dict[str, Any]:
    """Runs one shuffle (`rows.shuffle_job`), and returns its duration and the results of the sinks."""
    import pyarrow as pa

    class Context:
        subtask = 0

    def make(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        offsets = None
        for batch in given:
            for subtask in batch.column(0).to_pylist():
                source, context = MakeRows(batches), Context()
                context.subtask = subtask
                source.open(context)
                while (rows := source.read()) is not None:
                    if offsets is None:
                        offsets = pa.py_buffer(np.arange(0, rows.size + 1, ROW_BYTES, dtype=np.int32))
                    column = pa.Array.from_buffers(pa.binary(), len(rows), [None, offsets, pa.py_buffer(rows)])
                    part = pa.array(values[by_range.partition_batch(rows, consumers)])
                    yield pa.RecordBatch.from_arrays([part, column], ["part", "row"])

    def total(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums: dict[int, SumRows] = {}
        for batch in given:
            parts, column = batch.column(0).to_numpy(), batch.column(1)
            offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
            rows = np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, ROW_BYTES)
            present = np.unique(parts).tolist()
            for part in present:
                of_part = rows if len(present) == 1 else rows[parts == part]
                sums.setdefault(part, SumRows()).process_batch(of_part)
        totals = [(part, json.dumps(each.finish(None))) for part, each in sums.items()]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([part for part, _ in totals], pa.int32()),
                pa.array([text for _, text in totals], pa.string()),
            ],
            ["part", "sums"],
        )

    values = np.array(numbers_for(consumers), np.int32)  # 0, 1, 2 ... would share some partitions and leave others
    began_s = time.monotonic()
    made = spark.range(0, producers, 1, producers).mapInArrow(make, "part int, row binary")
    rows = made.repartition(consumers, "part").mapInArrow(total, "part int, sums string").collect()
    duration_s = time.monotonic() - began_s
    document = {row["part"]: json.loads(row["sums"]) for row in rows}
    return {"duration_s": duration_s, "results": [document.get(value) for value in values.tolist()]}
