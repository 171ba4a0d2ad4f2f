"""The Python blocks of the page about Spark run as they are, but for addresses, paths and counts."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jobworld
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark.workers import free_address

from netstack.network.connection.authentication import Secret
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.spark import register

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]

PAGE = Path(__file__).parents[3] / "tools/docs/pages/how-to/spark.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_block(mark: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs the only block with `mark` in it, in these names. `replaced` among them maps its texts to others."""
    (block,) = (each for each in BLOCKS if mark in each)
    for old, new in names.pop("replaced", {}).items():
        assert old in block, (mark, old)
        block = block.replace(old, new)
    exec(block, names)
    return names


def in_thread(mark: str, names: dict[str, Any], errors: list[BaseException]) -> threading.Thread:
    def body() -> None:
        try:
            run_block(mark, names)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(Secret.generate().reveal())
    path.chmod(0o600)
    return path


def test_every_block_is_run_here_or_beside_its_other_tests() -> None:
    marks = ("run_sweep", "register_views", "exchange(df", "spark.read.format", "Publisher(", "clicks.sink")
    marks += ("df.write.format", "Subscriber(", "run(spark, job", "remote(")
    assert [[mark for mark in marks if mark in block] for block in BLOCKS] == [[mark] for mark in marks]


def test_the_exchange(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr("id", "concat('u', id % 7) as user")
    run_block("exchange(df", {"spark": spark, "df": df, "replaced": {'"by-user"': repr(str(tmp_path / "by-user"))}})
    assert "announced_credit" in capsys.readouterr().out
    assert spark.read.parquet(str(tmp_path / "by-user")).count() == 100


@pytest.mark.long
def test_a_stream_out_of_a_worker(spark: Any, tmp_path: Path, secret_file: Path) -> None:
    address, errors = free_address(), []
    names = {
        "secret": Secret.from_file(secret_file),
        "folder": tmp_path / "epochs",
        "my_state": SimpleNamespace(epoch=None, store=lambda *, epoch: None),
        "batch": pa.RecordBatch.from_pydict({"id": pa.array(range(100), pa.int64())}),
        "replaced": {"tcp://0.0.0.0:6121": address},
    }
    worker = in_thread("Publisher(", names, errors)
    places = {"tcp://10.0.0.7:6121": address, "/etc/netstack/secret": str(secret_file)}
    places['"checkpoint"'] = repr(str(tmp_path / "checkpoint"))
    places['start("events")'] = f"start({str(tmp_path / 'out')!r})"
    query = run_block("spark.read.format", {"spark": spark, "replaced": places})["query"]
    worker.join(60)
    query.stop()
    assert not errors
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == list(range(100))


@pytest.mark.long
def test_a_worker_is_fed(spark: Any, tmp_path: Path, secret_file: Path) -> None:
    register(spark)
    address, errors, received = free_address(), [], []

    def store(*, epoch: int) -> None:
        if {500, 5} <= {batch.num_rows for batch in received}:
            raise EOFError

    names = {
        "folder": tmp_path / "received",
        "my_state": SimpleNamespace(epoch=None, add=received.append, store=store),
        "replaced": {"tcp://0.0.0.0:6130": address, "/etc/netstack/secret": str(secret_file)},
    }
    worker = in_thread("Subscriber(", names, errors)
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=5, numPartitions=1).load()
    places = {"tcp://10.0.0.9:6130": address, "/etc/netstack/secret": str(secret_file)}
    places['"checkpoint"'] = repr(str(tmp_path / "checkpoint"))
    sent = {"df": spark.range(0, 500, 1, 1), "stream": numbers.selectExpr("value as id"), "replaced": places}
    query = run_block("df.write.format", sent)["query"]
    until_s = time.monotonic() + 60
    while worker.is_alive() and time.monotonic() < until_s:
        worker.join(0.1)
    query.stop()
    assert [type(error) for error in errors] == [EOFError]


@pytest.mark.long
def test_a_job_feeds_spark_and_one_is_placed_by_it(spark: Any, tmp_path: Path) -> None:
    job = StreamEnvironment("clicks", parallelism=1)
    clicks = job.source("jobworld:Numbers", name="numbers", parameters={"count": 1, "per_s": 1.0})
    run_block("clicks.sink", {"clicks": clicks})
    assert "to spark" in {node.name for node in job.stream_graph().nodes}
    places = {"taskmanagers=8": "taskmanagers=2", "/shared/checkpoints": str(tmp_path)}
    names = run_block("run(spark, job", {"spark": spark, "job": jobworld.counting(), "replaced": places})
    assert names["result"].state == "finished"
