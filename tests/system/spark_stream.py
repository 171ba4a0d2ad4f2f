"""A driver of Spark on host 0: `python spark_stream.py MASTER NODES FOLDER`. It prints JSON lines.

A Publisher in this process feeds a query, whose tasks run on the other hosts, and the query feeds a Subscriber in this
process. A query that fails is started again. The last line has the numbers that did not arrive exactly once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from netstack import blocking
from netstack.network.connection.authentication import Secret
from netstack.spark import Publisher, Subscriber, register
from netstack.spark.failures import spark_errors
from netstack.spark.settings import SparkSettings

EPOCHS = 24
ROWS = 300
PATIENCE = {  # a host that is cut off is given up after 20 s; the default is two minutes
    "spark.task.maxFailures": "4",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "5s",
}


def main(master: str, nodes: int, folder: Path) -> None:
    from pyspark.sql import SparkSession

    secret, secret_file = Secret.generate(), folder / "secret"
    secret_file.write_bytes(secret.reveal())
    secret_file.chmod(0o600)
    place = f"tcp://{os.environ['SPARK_LOCAL_IP']}:0"
    builder: Any = SparkSession.builder.master(master)
    spark = builder.config(map={**SparkSettings(master=master, nodes=nodes).properties(), **PATIENCE}).getOrCreate()
    register(spark)
    with (
        blocking.open_network(place, secret=secret) as network,
        Subscriber(place, "out", folder / "out", secret=secret) as subscriber,
    ):
        publisher = Publisher(network, "in", folder / "in", subpartitions=nodes, max_epochs=4)
        options = {"secretFile": str(secret_file), "maxEpochs": "1"}
        source = {**options, "address": network.address, "partition": "in", "subpartitions": str(nodes)}
        sink = {"secretFile": str(secret_file), "address": subscriber.address, "partition": "out"}
        stream = spark.readStream.format("netstack").schema("id bigint").options(**source).load()
        writer = stream.writeStream.format("netstack").options(**sink)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        threading.Thread(target=publish, args=(publisher, nodes), daemon=True).start()
        threading.Thread(target=receive, args=(subscriber, publisher), daemon=True).start()
        while True:
            try:
                writer.start().awaitTermination()
            except spark_errors() as error:
                tell({"failed": str(error)[:300]})


def publish(publisher: Publisher, nodes: int) -> None:
    for first in range(0, EPOCHS * ROWS, ROWS):
        for subpartition in range(nodes):
            ids = pa.array(range(first + subpartition, first + ROWS, nodes), pa.int64())
            publisher.write(pa.RecordBatch.from_pydict({"id": ids}), subpartition)
        publisher.cut()
        publisher.offer()


def receive(subscriber: Subscriber, publisher: Publisher) -> None:
    ids = Counter[int]()
    while len(ids) < EPOCHS * ROWS:
        epoch = subscriber.next()
        for batch in epoch:
            ids.update(batch.column(0).to_pylist())
        subscriber.forget(epoch)
        tell({"epoch": epoch.number})
    while publisher.acknowledged < EPOCHS:
        time.sleep(0.1)
    tell({"wrong": [number for number in range(EPOCHS * ROWS) if ids[number] != 1][:10], "rows": ids.total()})
    os._exit(0)  # the session may wait for a host that is cut off


def tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
