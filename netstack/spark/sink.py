"""Writes DataFrames to a Subscriber: `df.write.format("netstack")` and `df.writeStream.format("netstack")`.

Each task publishes its rows as a partition and sends the partition's address to the Subscriber, which reads it; the
Subscriber's credit holds the task back. The task returns the id of its attempt to Spark. When all tasks have ended,
Spark's driver commits one attempt of each task; rows of failed, killed or speculative attempts are in no epoch. A
micro-batch is identified by the id of its query, which is in Spark's checkpoint, and its number. If the driver dies and
Spark repeats the batch, a batch that was committed is not sent again.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from .. import blocking
from ..base.causes import root_cause
from ..base.config import NetworkConfig
from ..base.errors import ConnectionLost, NetstackError, RequestRefused
from ..cluster.control.link import CLIENT, SUBSCRIBER, dial
from ..cluster.control.port import Questions
from ..exchange.record.arrow import PIECE_BYTES, slices
from ..network.connection.authentication import prove_dialler
from ..network.waiting.threads import background_tasks
from .consumer import StreamLocation
from .ports import open_on_free_port

RecordBatch = Any
_T = TypeVar("_T")

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"  # Spark's names of a task's local properties
_RETRY_DELAY_S = 0.3
_CONNECT_S = 5.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The options of writing.

    Attributes:
        ports: first and last port a task may listen on; None is any port.
    """

    location: StreamLocation
    stream: str
    ports: tuple[int, int] | None = None

    def own_host(self) -> str:
        """The address at which the Subscriber reaches this host: that of the route to it. Sends nothing."""
        where = urlsplit(self.location.address)
        if where.hostname is None:  # a socket of this machine
            return "127.0.0.1"
        family, _, _, _, place = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            host = str(probe.getsockname()[0])
        return f"[{host}]" if ":" in host else host


@final
@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """The result of a task, which Spark passes to `commit` in the driver.

    Attributes:
        writer: the id of the query, or of the `save`.
        partition: the task's partition.
        token: the id of the attempt; empty if the task had no rows, or the batch was committed before.
    """

    writer: str
    batch: int
    partition: int
    token: str
    rows: int


@final
class TableWriter(DataSourceArrowWriter):
    """Writes a `df.write` as one epoch."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._writer = secrets.token_hex(16)

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        """Sends the rows of one task."""
        return stage(self._settings, self._writer, 0, iterator)

    def commit(self, messages: list[Any]) -> None:
        """Commits the rows; Spark calls it when all tasks have succeeded."""
        commit(self._settings, self._writer, 0, messages)

    def abort(self, messages: list[Any]) -> None:
        """Drops the rows; Spark calls it when a task has failed."""
        abort(self._settings, self._writer, 0)


@final
class MicroBatchWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch that has rows as one epoch. Spark creates a writer for each task and each commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        """Sends the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "called by Spark"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise NetstackError(
                "this release of Spark does not set the query and the micro-batch of a task; use 4.2 or 4.3"
            )
        return stage(self._settings, query, int(batch), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - pyspark's name, here and below
        """Commits the rows; Spark calls it when all tasks of a micro-batch have succeeded."""
        writer = next((each.writer for each in messages if each is not None), None)
        if writer is not None:
            commit(self._settings, writer, batchId, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Drops the rows; Spark calls it when a task has failed."""
        writer = next((each.writer for each in messages if each is not None), None)
        if writer is not None:
            abort(self._settings, writer, batchId)


def stage(settings: SinkSettings, writer: str, batch: int, batches: Iterator[RecordBatch]) -> StagedRows:
    """Sends the rows of a task to the Subscriber; blocks while the Subscriber keeps `max_epochs`.

    Raises:
        ConnectionLost: the Subscriber was unreachable for `retry_s`, or disconnected; Spark repeats the task.
        RequestRefused: the Subscriber refuses the rows; the text has the reason.
    """
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    batches = (each for each in batches if each.num_rows)
    first = next(batches, None)
    if first is None:
        return StagedRows(writer, batch, partition, "", 0)
    token = secrets.token_hex(8)
    name = f"{settings.stream}-{token}"
    location = settings.location
    config = NetworkConfig(segment_size_bytes=location.segment_size_bytes)
    with open_on_free_port(settings.own_host(), settings.ports, config, location.secret()) as network:
        output = network.create_partition(name, subpartitions=1)
        ended = threading.Event()
        document = {"attempt": [writer, batch, partition, token], "address": network.address, "partition_id": name}
        request = network.portal.start(partial(ask, settings, "stage", document), what="a writer", on_end=ended.set)

        def watch() -> None:
            ended.wait()
            with contextlib.suppress(NetstackError):  # the partition is closed, or was read to its end
                output.fail("the Subscriber has stopped reading")

        threading.Thread(target=watch, name="netstack writer", daemon=True).start()
        failure: NetstackError | None = None
        sent = 0
        try:
            rows_out = blocking.RecordWriter(output, format="arrow", buffer_timeout_s=None)
            for each in chain((first,), batches):
                for piece in slices(in_utc(each), PIECE_BYTES):
                    rows_out.emit_batch(piece)
                sent += each.num_rows
            rows_out.finish()
        except NetstackError as error:
            failure = error
            ended.wait(_CONNECT_S)  # the Subscriber's answer has the reason
        except BaseException:
            request.cancel()
            raise
        if failure is not None and not ended.is_set():
            request.cancel()
            raise failure
        ended.wait()
        answer = request.outcome()
    if answer.get("is_committed"):
        for _ in batches:
            pass  # Spark expects a writer to consume its rows
        return StagedRows(writer, batch, partition, "", 0)
    if failure is not None:
        raise failure
    if answer.get("rows") != sent:
        raise NetstackError(
            f"{sent} rows were sent to {settings.location.address}, and {answer.get('rows')} have arrived"
        )
    return StagedRows(writer, batch, partition, token, sent)


def in_utc(batch: RecordBatch) -> RecordBatch:
    """Gives timestamps the zone UTC: Spark's have the session's, a name that depends on the host. No value changes."""
    import pyarrow as pa

    schema = pa.schema([field.with_type(_type_in_utc(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _type_in_utc(kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    def within(field: Any) -> Any:
        return field.with_type(_type_in_utc(field.type))

    if types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pa.struct([within(kind.field(at)) for at in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(within(kind.key_field), within(kind.item_field))
    if types.is_large_list(kind):
        return pa.large_list(within(kind.value_field))
    return pa.list_(within(kind.value_field)) if types.is_list(kind) else kind


def commit(settings: SinkSettings, writer: str, batch: int, messages: list[Any]) -> None:
    """Commits the rows of a batch as an epoch; retries until the Subscriber has answered.

    Raises:
        ConnectionLost: the Subscriber was unreachable for `retry_s`. It may have committed the batch; when Spark
            repeats the batch, the Subscriber recognises it.
        RequestRefused: the Subscriber cannot commit the batch; the text has the reason.
    """
    attempts = [[each.partition, each.token] for each in messages if each is not None and each.token]
    if attempts:
        document = {"writer": writer, "batch": batch, "attempts": sorted(attempts)}
        trio.run(_retry, settings.location, partial(ask, settings, "commit", document))


def abort(settings: SinkSettings, writer: str, batch: int) -> None:
    """Asks the Subscriber once to drop the rows of a batch. Later it drops them by itself."""
    with contextlib.suppress(NetstackError, OSError):
        trio.run(ask, settings, "abort", {"writer": writer, "batch": batch})


async def ask(settings: SinkSettings, what: str, document: dict[str, Any]) -> dict[str, Any]:
    """Sends a request to the Subscriber, and returns its answer.

    Raises:
        ConnectionLost: the Subscriber was unreachable for `retry_s`, or disconnected before it answered.
        RequestRefused: the Subscriber refused; the text has the reason.
    """
    try:
        async with _connect(settings.location) as questions:
            return await questions.ask(what, {"stream": settings.stream, **document})
    except BaseExceptionGroup as group:
        raise root_cause(group) from None


@asynccontextmanager
async def _connect(location: StreamLocation) -> AsyncIterator[Questions]:
    secret = location.secret()
    connect = partial(
        dial,
        location.address,
        role=CLIENT,
        name=socket.gethostname(),
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        connect_timeout_s=_CONNECT_S,
    )
    link, greeting = await _retry(location, connect)
    try:
        if greeting.role != SUBSCRIBER:
            raise RequestRefused(f"{link.peer} is a {greeting.role}, no Subscriber: correct the option address")
        questions = Questions(link)
        async with background_tasks() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(questions.receive_all)
            yield questions
    finally:
        link.close()


async def _retry(location: StreamLocation, action: Callable[[], Awaitable[_T]]) -> _T:
    """Repeats an action that loses its connection, for `retry_s` at most."""
    until_s = trio.current_time() + location.retry_s
    while True:
        try:
            return await action()
        except (ConnectionLost, OSError):
            if trio.current_time() > until_s:
                raise
            await trio.sleep(_RETRY_DELAY_S)
