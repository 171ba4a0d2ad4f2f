"""A streaming query in a session of its own, until it is killed: `stream_query.py FOLDER ADDRESS SUBPARTITIONS`."""

from __future__ import annotations

import sys
from pathlib import Path

from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings
from netstack.spark.source import NetstackDataSource


def main(folder: Path, address: str, subpartitions: str) -> None:
    with open_session(SparkSettings(master="local[2]", log_file=str(folder / "spark.log"))) as spark:
        spark.dataSource.register(NetstackDataSource)
        stream = spark.readStream.format("netstack").schema("id bigint")
        stream = stream.options(address=address, partition="numbers", subpartitions=subpartitions, maxEpochs="2")
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(processingTime="50 milliseconds").start(str(folder / "table")).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
