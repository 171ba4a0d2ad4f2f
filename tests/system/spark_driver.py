"""A driver of Spark on host 0: `python spark_driver.py MASTER NODES WORDS...`, each word one exchange, told in JSON.

equal     rows through `exchange` are those of `repartition`; what its statistics say of a slow task
replaced  so many rows, through the loss of an executor
endless   rows without end, until something breaks: what the user reads
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from netstack.spark import ExchangeStatistics, SparkFailed, exchange, plain_errors
from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings

HEARTBEATS: dict[str, Any] = {"heartbeat_interval_s": 1.0, "heartbeat_timeout_s": 4.0}


def main(master: str, nodes: int, words: list[str]) -> None:
    with open_session(SparkSettings(master=master, nodes=nodes)) as spark:
        for word in words:
            began_s = time.monotonic()
            reported = {"equal": equal, "replaced": replaced, "endless": endless}[word](spark, nodes)
            tell({**reported, "seconds": time.monotonic() - began_s})


def tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def equal(spark: Any, nodes: int) -> dict[str, Any]:
    df = spark.range(0, 300_000, 1, nodes).selectExpr("id % 1000 as key", "id", "rpad('', 200, id) as text")
    reported = ExchangeStatistics(spark)
    sums = []
    for frame in (exchange(df, key="key", statistics=reported, **HEARTBEATS), df):
        hashed = frame.selectExpr("key", "xxhash64(id, text) % 1000000007 as h").groupBy("key").sum("h")
        with plain_errors():
            sums.append(sorted(map(tuple, hashed.collect())))
    return {"is_equal": sums[0] == sums[1], "keys": len(sums[0]), "slowest": reported.slowest()}


def replaced(spark: Any, nodes: int) -> dict[str, Any]:
    rows = 10_000_000
    reported = ExchangeStatistics(spark)
    tell({"began": "replaced"})
    with plain_errors():
        actual = exchange(spark.range(0, rows, 1, nodes), key="id", statistics=reported, **HEARTBEATS)
        sums = actual.selectExpr("count(*)", "sum(id)").first()
    tasks = reported.tasks()
    is_whole = tuple(sums) == (rows, rows * (rows - 1) // 2) and sum(each.rows_out for each in tasks) == rows
    return {"is_whole": is_whole, "tasks": len(tasks), "build": reported.build()}


def endless(spark: Any, nodes: int) -> dict[str, Any]:
    until_s = time.monotonic() + 60
    while spark.sparkContext.defaultParallelism < nodes and time.monotonic() < until_s:
        time.sleep(0.2)  # Spark starts another executor for one that was lost
    tell({"began": "endless"})
    df = spark.range(0, 10**11, 1, nodes).selectExpr("id % 1000 as key", "id")
    try:
        with plain_errors():
            exchange(df, key="key", boundary=False, **HEARTBEATS).write.format("noop").mode("overwrite").save()
    except SparkFailed as error:
        return {"said": str(error)}
    return {"said": ""}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
