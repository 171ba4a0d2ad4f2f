"""A driver that writes numbers, until it is killed: `python stream_sink.py FOLDER ADDRESS query|saves`.

Executors are processes. A query writes micro-batches of 100 numbers. Saves are `df.write` of 100 numbers each; of one
that has returned the folder has the number, and what comes next is the next.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import Any

from netstack.spark import register
from netstack.spark.failures import spark_errors

FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # a driver that was killed starts in half of the time
PROPERTIES = {
    "spark.driver.extraJavaOptions": FLAGS,
    "spark.executor.extraJavaOptions": FLAGS,
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "8",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def main(folder: Path, address: str, what: str) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local-cluster[2,1,512]")
    spark = builder.config(map=PROPERTIES).getOrCreate()
    register(spark)
    {"query": query, "saves": saves}[what](spark, folder, {"address": address, "partition": "numbers"})


def query(spark: Any, folder: Path, to: dict[str, str]) -> None:
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2).load()
    writer = numbers.selectExpr("value as id").writeStream.format("netstack").options(**to)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="50 milliseconds")
    while True:
        with contextlib.suppress(*spark_errors()):  # the other end was killed too often for one task
            writer.start().awaitTermination()


def saves(spark: Any, folder: Path, to: dict[str, str]) -> None:
    saved = folder / "saved"
    first = int(saved.read_text()) if saved.exists() else 0
    for number in itertools.count(first):
        numbers = spark.range(number * 100, (number + 1) * 100, 1, 2)
        while True:
            with contextlib.suppress(*spark_errors()):
                numbers.write.format("netstack").mode("append").options(**to).save()
                break
        aside = folder / "saved.part"
        aside.write_text(str(number + 1))
        aside.rename(saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
