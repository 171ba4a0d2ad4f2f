"""A streaming query that writes numbers, until it is killed: `python stream_sink.py FOLDER ADDRESS`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from netstack.spark import register
from netstack.spark.failures import spark_errors
from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings


def main(folder: Path, address: str) -> None:
    with open_session(SparkSettings(master="local[2]", log_file=str(folder / "spark.log"))) as spark:
        register(spark)
        numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2).load()
        writer = numbers.selectExpr("value as id").writeStream.format("netstack")
        writer = writer.options(address=address, partition="numbers", checkpointLocation=str(folder / "checkpoint"))
        while True:
            with contextlib.suppress(*spark_errors()):  # the other end was killed: local mode attempts no task again
                writer.trigger(processingTime="50 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
