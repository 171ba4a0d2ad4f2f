"""DataFrames into Subscribers, in a real session: one epoch a `save`, one a micro-batch, whatever is made again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from netstack import blocking
from netstack.spark import Publisher, SparkFailed, Subscriber, plain_errors, register

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]


def table_of(epoch: Any) -> Any:
    return pa.Table.from_batches(list(epoch))


def test_a_data_frame_is_one_epoch_or_none(spark: Any, tmp_path: Path) -> None:
    register(spark)
    df = spark.range(0, 3000, 1, 3).selectExpr(
        "id", "if(id % 3 = 0, null, cast(id / 7 as decimal(20, 4))) as price", "array(named_struct('a', id)) as nested"
    )
    with Subscriber("tcp://127.0.0.1:0", "rows", tmp_path) as subscriber:
        where = {"address": subscriber.address, "partition": "rows"}
        with plain_errors():
            df.write.format("netstack").mode("append").options(**where).save()
        epoch = subscriber.next(timeout_s=0)  # there when `save` returns
        sent = table_of(epoch)
        assert sent.column("id").to_pylist() == list(range(3000))
        assert sent.cast(df.toArrow().schema).equals(df.toArrow())
        broken = df.selectExpr("if(id = 2999, raise_error('no number: 2999'), id) as id", "price", "nested")
        with pytest.raises(SparkFailed, match="no number: 2999"), plain_errors():
            broken.write.format("netstack").mode("append").options(**where).save()
        with (
            pytest.raises(SparkFailed, match=r"'price', decimal128\(20, 4\)"),
            plain_errors(),
        ):
            df.drop("price").write.format("netstack").mode("append").options(**where).save()
        subscriber.forget(epoch)
        assert not list(tmp_path.glob("staged-*"))  # the driver has told it


def test_any_thread_writes_after_it_has_registered_and_timestamps_are_in_utc(spark: Any, tmp_path: Path) -> None:
    df = spark.range(3).selectExpr("timestamp_seconds(id) as at", "array(timestamp_seconds(id)) as list")
    errors: list[BaseException] = []
    with Subscriber("tcp://127.0.0.1:0", "rows", tmp_path) as subscriber:
        where = {"address": subscriber.address, "partition": "rows"}

        def save(registers: bool) -> None:
            try:
                if registers:
                    register(spark)
                with plain_errors():
                    df.write.format("netstack").mode("append").options(**where).save()
            except BaseException as error:
                errors.append(error)

        for registers in (False, True):
            thread = threading.Thread(target=save, args=(registers,))
            thread.start()
            thread.join()
        assert [str(error) for error in errors] == [
            "this thread's active session does not know the format netstack: call netstack.spark.register(spark) in"
            " this thread"
        ]
        sent = table_of(subscriber.next(timeout_s=0))
    zones = [str(kind) for kind in (sent.schema.field("at").type, sent.schema.field("list").type.value_type)]
    assert zones == ["timestamp[us, tz=UTC]"] * 2


@pytest.mark.long
def test_micro_batches_are_there_once_and_another_job_reads_them(spark: Any, tmp_path: Path) -> None:
    register(spark)
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).option("numPartitions", 2).load()
    checkpoint = tmp_path / "checkpoint"

    def start(address: str) -> Any:
        writer = (
            numbers.selectExpr("value as id").writeStream.format("netstack").trigger(processingTime="20 milliseconds")
        )
        writer = writer.options(address=address, partition="ids").option("checkpointLocation", str(checkpoint))
        return writer.start()

    with (
        Subscriber("tcp://127.0.0.1:0", "ids", tmp_path / "in", max_epochs=2) as subscriber,
        blocking.open_network("tcp://127.0.0.1:0") as network,
    ):
        relay = Publisher(network, "ids", tmp_path / "out", resume=0)

        def pass_on(*, is_last: bool = False) -> None:
            epoch = subscriber.next(timeout_s=60)
            for batch in epoch:
                relay.write(batch)
            assert relay.cut(is_last=is_last) == epoch.number + 1
            subscriber.forget(epoch)
            relay.offer()

        query = start(subscriber.address)
        pass_on()
        pass_on()
        query.stop()
        for path in (checkpoint / "commits").glob("[0-9.]*"):  # it died before it wrote down what it had committed
            if not path.name.strip(".").startswith("0"):
                path.unlink()
        query = start(subscriber.address)
        for _ in range(3):
            pass_on()
        pass_on(is_last=True)
        query.stop()
        stream = spark.readStream.format("netstack").schema("id bigint")
        stream = stream.options(address=network.address, partition="ids").load()
        reading = stream.writeStream.format("memory").queryName("ids").start()
        relay.wait_acknowledged(timeout_s=60)
        reading.stop()
    assert sorted(row["id"] for row in spark.table("ids").collect()) == list(range(300))
