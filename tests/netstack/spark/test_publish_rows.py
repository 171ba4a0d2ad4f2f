"""The sink that feeds Spark, called as a task calls it: what may be read of its epochs, and when."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from spark.workers import free_address

from netstack.base.errors import CheckpointError, ConfigError, RecordError
from netstack.cluster.task.context import OperatorContext
from netstack.spark.consumer import StreamLocation, StreamPoller, read_epoch
from netstack.spark.publish_rows import PublishRows

COLUMNS = {"id": "int64", "name": "string"}


@contextlib.asynccontextmanager
async def sink_at(address: str, folder: Path, resume: int | None = None) -> AsyncIterator[PublishRows]:
    sink = PublishRows(address=address, stream="s", folder=str(folder), columns=COLUMNS)
    sink.open(OperatorContext("to spark", "to spark", 0, 1, 128, 0))
    if resume is not None:
        sink.restore([resume])
    try:
        yield sink
    finally:
        await sink.close()


async def snapshot(sink: PublishRows, checkpoint_id: int) -> int:
    sink._context.checkpoint_id = checkpoint_id
    return await sink.snapshot()


async def read(address: str, epoch: int, done: int = -1) -> list[Any] | None:
    """The rows of an epoch that can be read; says that what is before `done` is processed."""

    def work() -> list[Any] | None:
        endpoint = StreamLocation(address=address)
        poller = StreamPoller("s", "spark", [endpoint])
        try:
            is_there = epoch < poller.wait_for_all()[address].next
            actual = list(read_epoch(endpoint, "s", epoch, 0)) if is_there else None
            poller.poll({address: max(done, 0)}, wait_s=120)
        finally:
            poller.close()
        return None if actual is None else [tuple(row.values()) for batch in actual for row in batch.to_pylist()]

    return await trio.to_thread.run_sync(work)


async def test_an_epoch_is_read_when_its_checkpoint_is_complete_and_what_is_made_again_is_not_twice(
    tmp_path: Path,
) -> None:
    address = free_address()
    async with sink_at(address, tmp_path) as sink:
        await sink.process_batch([(1, "a"), (2, None)])
        assert await snapshot(sink, 7) == 1
        assert await snapshot(sink, 8) == 1  # nothing came since
        await sink.process_batch([(3, "c")])
        assert await snapshot(sink, 9) == 2
        assert await read(address, 0) is None
        await sink.checkpoint_completed(8)  # 7 was given up
        assert await read(address, 0) == [(1, "a"), (2, None)]
        assert await read(address, 1) is None, "its checkpoint may never be complete"
    async with sink_at(address, tmp_path, 1) as sink:  # from checkpoint 8
        await sink.process_batch([{"id": 3, "name": "c"}, {"id": 4}])
        assert await snapshot(sink, 10) == 2
        assert await read(address, 0) == [(1, "a"), (2, None)]
        await sink.checkpoint_completed(10)
        assert await read(address, 1) == [(3, "c"), (4, None)]


async def test_the_end_is_waited_for_and_stands_whatever_is_made_again(tmp_path: Path) -> None:
    address = free_address()
    async with sink_at(address, tmp_path) as sink:
        await sink.process_batch([(1, "a")])
        await snapshot(sink, 1)
        await sink.process_batch([(2, "b")])
        with trio.move_on_after(0.5):  # nobody reads yet, and the job is cancelled
            await sink.finish()
    async with sink_at(address, tmp_path) as sink:  # checkpoint 1 was never complete
        await sink.process_batch([(1, "a"), (2, "b")])
        assert await snapshot(sink, 2) == 2
        ended: list[int] = []
        async with trio.open_nursery() as nursery:

            async def finish() -> None:
                ended.append(await sink.finish())

            nursery.start_soon(finish)
            assert await read(address, 0) == [(1, "a")]
            assert await read(address, 1) == [(2, "b")]
            assert not ended
            await read(address, 1, done=2)
        assert ended == [2]


async def test_the_final_checkpoint_after_the_end_adds_no_epoch(tmp_path: Path) -> None:
    address = free_address()
    async with sink_at(address, tmp_path) as sink:
        await sink.process_batch([(1, "a")])
        with trio.move_on_after(0.5):  # it waits for a reader
            await sink.finish()
        assert await snapshot(sink, 1) == 1
        await sink.checkpoint_completed(1)
        assert await read(address, 0) == [(1, "a")]
        assert await read(address, 1) is None, "nobody would wait until this epoch is read"


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for refused, says in (({"address": "here"}, "give tcp://HOST:PORT"), ({"columns": {"id": "number"}}, "number")):
        with pytest.raises(ConfigError, match=says):
            PublishRows(**{"address": "tcp://h:1", "stream": "s", "folder": "f", "columns": COLUMNS, **refused})
    async with sink_at(free_address(), tmp_path) as sink:
        with pytest.raises(CheckpointError, match="parallelism cannot change"):
            sink.restore([1, 2])
        for record in ((1, 2, 3), ("x", "y")):
            await sink.process_batch([record])
            with pytest.raises(RecordError, match=r"the stream 2 columns|the columns id, name"):
                await snapshot(sink, 1)
