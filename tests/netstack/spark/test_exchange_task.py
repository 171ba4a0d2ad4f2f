"""Tasks of an exchange without Spark: an `allGather` of our own, every task in a thread."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from netstack.base.errors import ConfigError, ProducerFailed
from netstack.exchange.keygroups import default_max_parallelism, key_group, operator_index
from netstack.spark.barrier import BarrierTask, host_of
from netstack.spark.exchange_statistics import ExchangeChannel, ExchangeStatistics, ExchangeTask
from netstack.spark.exchange_task import ExchangeJob, Exchanger

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("more", pa.list_(pa.int32()))])
TOKEN = bytes(range(32))


class Gathering:
    """An `allGather` among threads."""

    def __init__(self, tasks: int) -> None:
        self._said = [""] * tasks
        self._barrier = threading.Barrier(tasks, timeout=120)

    def of(self, rank: int) -> Callable[[str], Sequence[str]]:
        def all_gather(words: str) -> Sequence[str]:
            self._said[rank] = words
            self._barrier.wait()
            return list(self._said)

        return all_gather


def run(
    job: ExchangeJob, inputs: Sequence[Iterable[Any]], on_batch: Callable[[int], None] = lambda rank: None
) -> tuple[list[list[Any]], list[BaseException | None], list]:
    """What every task gave, what it raised, and what all of them told."""
    gathering, reported = Gathering(len(inputs)), []
    given_: list[list[Any]] = [[] for _ in inputs]
    errors: list[BaseException | None] = [None] * len(inputs)

    def one(rank: int) -> None:
        task = BarrierTask(rank, len(inputs), "127.0.0.1", gathering.of(rank))
        try:
            for batch in Exchanger(job, task, reported.extend).run(inputs[rank]):
                given_[rank].append(batch)
                on_batch(rank)
        except BaseException as error:
            errors[rank] = error

    before = set(threading.enumerate())  # the pair that another folder's tests share may have its own
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("netstack")]
    return given_, errors, reported


def rows_of(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def batch_of(rows: Sequence[tuple[Any, ...]]) -> Any:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


ROW = st.tuples(st.none() | st.text(max_size=3), st.integers(-(2**40), 2**40), st.none() | st.lists(st.integers(0, 9)))


@settings(max_examples=12)
@given(st.lists(st.lists(st.lists(ROW, max_size=20), max_size=3), min_size=1, max_size=3), st.data())
def test_every_row_arrives_once_in_the_partition_of_its_key(inputs: list[list[list[Any]]], data: st.DataObject) -> None:
    into = data.draw(st.integers(1, len(inputs)))
    job = ExchangeJob(
        keys=("key",),
        into=into,
        token=TOKEN,
        batch_bytes=data.draw(st.sampled_from([1, 100, 1 << 20])),
        buffer_timeout_s=data.draw(st.sampled_from([None, 0.0, 0.1])),
        network={"segment_size_bytes": data.draw(st.sampled_from([512, 32768]))},
    )
    out, errors, reported = run(job, [[batch_of(rows) for rows in batches] for batches in inputs])
    assert errors == [None] * len(inputs)
    expected: dict[int, list[Any]] = defaultdict(list)
    for batches in inputs:
        for rows in batches:
            for row in rows:
                owner = operator_index(key_group(row[0], default_max_parallelism(into)), into, 128)
                expected[owner].append(row)
    for rank, batches in enumerate(out):
        assert sorted(map(repr, rows_of(batches))) == sorted(map(repr, expected[rank]))
    channels = [each for each in reported if isinstance(each, ExchangeChannel)]
    tasks = [each for each in reported if isinstance(each, ExchangeTask)]
    assert len(channels) == len(inputs) * into
    total = sum(map(len, expected.values()))
    assert sum(each.rows for each in channels) == total
    assert sum(each.rows_in for each in tasks) == sum(each.rows_out for each in tasks) == total


def test_the_rows_of_a_key_keep_their_order() -> None:
    rows = [(f"k{at % 7}", at, None) for at in range(5000)]
    out, _, _ = run(ExchangeJob(keys=("key",), token=TOKEN, batch_bytes=512), [[batch_of(rows)], [batch_of([])]])
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, at, _ in rows_of([batch for batches in out for batch in batches]):
        by_key[key].append(at)
    assert all(places == sorted(places) for places in by_key.values())
    assert sum(map(len, by_key.values())) == 5000


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_both_zeros_are_one_key_as_in_spark(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([0.0, -0.0, None, 1.5], kind)], ["key"])
    out, _, _ = run(ExchangeJob(keys=("key",), token=TOKEN), [[batch], [batch], [batch], [batch]])
    received = [[key for (key,) in rows_of(batches)] for batches in out]
    assert sorted(keys.count(0.0) for keys in received) == [0, 0, 0, 8]
    assert [str(key) for keys in received for key in keys].count("-0.0") == 4, "the rows are unchanged"


def test_more_partitions_than_tasks_are_refused_by_every_task() -> None:
    _, errors, _ = run(ExchangeJob(keys=("key",), into=3, token=TOKEN), [[], []])
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "into=3, and the stage has 2 tasks" in str(error)


@pytest.mark.slow
def test_a_task_that_fails_is_what_all_of_them_say() -> None:
    connected = threading.Event()  # one that connects later learns only that the task has gone

    def broken() -> Iterator[Any]:
        yield batch_of([(f"{at}", at, None) for at in range(50)])
        assert connected.wait(60)
        raise ValueError("row 17 is no number")

    job = ExchangeJob(keys=("key",), token=TOKEN, buffer_timeout_s=0, batch_bytes=100)
    _, errors, _ = run(job, [broken(), []], lambda rank: rank == 1 and connected.set())
    assert isinstance(errors[0], ValueError)
    assert isinstance(errors[1], ProducerFailed)
    assert "row 17 is no number" in str(errors[1])


def test_a_task_that_is_given_up_leaves_no_thread_and_tells_the_others() -> None:
    gathering = Gathering(2)
    job = ExchangeJob(keys=("key",), token=TOKEN, batch_bytes=100)
    endless = (batch_of([(f"{at}", at, None)]) for at in range(10**9))
    message: list[BaseException] = []

    def other() -> None:
        try:
            list(Exchanger(job, BarrierTask(1, 2, "127.0.0.1", gathering.of(1)), print).run([]))
        except BaseException as error:
            message.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    rows = Exchanger(job, BarrierTask(0, 2, "127.0.0.1", gathering.of(0)), print).run(endless)
    next(rows)
    rows.close()
    thread.join(20)
    assert not thread.is_alive()
    assert len(message) == 1
    assert not [each for each in threading.enumerate() if each.name.startswith("netstack 127")]


def test_a_range_without_a_free_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EADDRINUSE, "cannot listen: Address already in use; choose another port")

    monkeypatch.setattr("netstack.spark.ports.blocking.open_network", taken)
    _, errors, _ = run(ExchangeJob(keys=("key",), token=TOKEN, ports=(7100, 7102)), [[]])
    assert "no port from 7100 to 7102 is free at 127.0.0.1; each task needs one" in str(errors[0])


def test_an_address_of_spark_is_a_host() -> None:
    assert host_of("10.0.0.7:39011") == "10.0.0.7"
    assert host_of("localhost") == host_of("localhost:7") == "127.0.0.1"


def test_a_task_that_holds_the_others_up_is_named_by_its_host() -> None:
    def reported(*held_up_s: tuple[float, ...]) -> str:
        statistics = ExchangeStatistics.__new__(ExchangeStatistics)
        values = {field.name: 0 for field in dataclasses.fields(ExchangeTask)}
        tasks = [
            ExchangeTask(**{**values, "task": task, "host": f"10.0.0.{task}", "seconds": 10.0, "held_up_s": held})
            for task, held in enumerate(held_up_s)
        ]
        statistics.accumulator = SimpleNamespace(value=tasks)
        return statistics.slowest()

    assert reported((0, 8, 0), (2, 0, 2), (0, 7, 0)).startswith(
        "the tasks waited 15.0 s of their 30.0 s to send to task 1"
    )
    assert reported((0, 8, 0), (5, 0, 5), (0, 0, 0)) == ""
    assert reported((0, 0, 0), (0, 0, 0), (0, 1, 0)) == ""
    assert reported((0, 8), (2, 0)) == ""
