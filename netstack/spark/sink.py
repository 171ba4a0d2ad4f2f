"""DataFrames into a Subscriber: `df.write.format("netstack")` and `df.writeStream.format("netstack")`.

Takes: Arrow batches, in Spark's tasks. Gives: rows in the Subscriber's folder, and an epoch when Spark commits.

Each task makes a partition of its rows and tells the Subscriber where it is; the Subscriber reads it, and its credit is
what holds the task back. What the task returns to Spark is the name of its attempt. When all tasks are done, Spark's
driver commits the attempts that counted; a second attempt of a task, a speculative one, one that was killed are in no
epoch. A micro-batch is known by the id of its query, which is in Spark's checkpoint, and its number: made again after
the driver died, it is not sent again if it was committed.
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
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from .. import blocking
from ..config import NetworkConfig
from ..control.link import CLIENT, SUBSCRIBER, dial
from ..control.questions import Questions
from ..errors import ConnectionLost, NetstackError, RequestRefused
from ..record.arrow import PIECE_BYTES, slices
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.causes import root_cause
from ..runtime.threads import background_tasks

RecordBatch = Any
_T = TypeVar("_T")

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"  # Spark's names of what a task is told
_AGAIN_S = 0.3
_CONNECT_S = 5.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Where rows go.

    Attributes:
        address: of the Subscriber.
        stream: its name.
        secret_file: what both share; None for no secret.
        retry_s: how long a Subscriber that is not there is tried.
        ports: first and last port a task may listen on; None is any.
        segment_size_bytes: of network buffers.
    """

    address: str
    stream: str
    secret_file: str | None = None
    retry_s: float = 60.0
    ports: tuple[int, int] | None = None
    segment_size_bytes: int = 32 * 1024

    def secret(self) -> Secret | None:
        """What both share.

        Raises:
            ConfigError: the file cannot be read.
        """
        return None if self.secret_file is None else Secret.from_file(Path(self.secret_file))

    def own_host(self) -> str:
        """The address under which the Subscriber reaches this host: that of the way to it. Nothing is sent."""
        where = urlsplit(self.address)
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
    """What a task tells the driver.

    Attributes:
        writer: the query's id, or that of one `save`.
        batch: the micro-batch.
        partition: of the task.
        token: of its attempt; empty where it had no rows, or the batch was committed before.
        rows: how many the Subscriber has.
    """

    writer: str
    batch: int
    partition: int
    token: str
    rows: int


@final
class TableWriter(DataSourceArrowWriter):
    """One `df.write`: all of it is one epoch."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._writer = secrets.token_hex(16)

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        """The rows of one task."""
        return stage(self._settings, self._writer, 0, iterator)

    def commit(self, messages: list[Any]) -> None:
        """All tasks are done."""
        commit(self._settings, self._writer, 0, messages)

    def abort(self, messages: list[Any]) -> None:
        """One has failed."""
        abort(self._settings, self._writer, 0)


@final
class MicroBatchWriter(DataSourceStreamArrowWriter):
    """One query: each of its micro-batches that has rows is an epoch. Spark makes one for each task and each commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        """The rows of one task."""
        context = TaskContext.get()
        assert context is not None, "called by Spark"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise NetstackError("this release of Spark does not tell tasks which query and micro-batch they are of")
        return stage(self._settings, query, int(batch), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - pyspark's name, here and below
        """All tasks of a micro-batch are done."""
        writer = next((each.writer for each in messages if each is not None), None)
        if writer is not None:
            commit(self._settings, writer, batchId, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """One has failed."""
        writer = next((each.writer for each in messages if each is not None), None)
        if writer is not None:
            abort(self._settings, writer, batchId)


def stage(settings: SinkSettings, writer: str, batch: int, batches: Iterator[RecordBatch]) -> StagedRows:
    """Has the Subscriber read a task's rows; blocks for as long as it has no room.

    Raises:
        ConnectionLost: it was not there for `retry_s`, or went; Spark attempts the task again.
        RequestRefused: it does not take them; the text says why.
    """
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    batches = (each for each in batches if each.num_rows)
    first = next(batches, None)
    if first is None:
        return StagedRows(writer, batch, partition, "", 0)
    token = secrets.token_hex(8)
    name = f"{settings.stream}-{token}"
    with _listen(settings) as network:
        output = network.create_partition(name, subpartitions=1)
        ended = threading.Event()
        document = {"attempt": [writer, batch, partition, token], "address": network.address, "partition_id": name}
        asked = network.portal.start(partial(ask, settings, "stage", document), what="a writer", on_end=ended.set)

        def watch() -> None:
            ended.wait()
            with contextlib.suppress(NetstackError):  # closed, or all of it was read
                output.fail("the Subscriber reads no more")

        threading.Thread(target=watch, name="netstack writer", daemon=True).start()
        failure: NetstackError | None = None
        sent = 0
        try:
            rows_out = blocking.RecordWriter(output, format="arrow", buffer_timeout_s=None)
            for each in chain((first,), batches):
                for piece in slices(each, PIECE_BYTES):
                    rows_out.emit_batch(piece)
                sent += each.num_rows
            rows_out.finish()
        except NetstackError as error:
            failure = error
            ended.wait(_CONNECT_S)  # it says why
        except BaseException:
            asked.cancel()
            raise
        if failure is not None and not ended.is_set():
            asked.cancel()
            raise failure
        ended.wait()
        answer = asked.outcome()
    if answer.get("is_committed"):
        for _ in batches:
            pass  # Spark wants its rows to be taken
        return StagedRows(writer, batch, partition, "", 0)
    if failure is not None:
        raise failure
    if answer.get("rows") != sent:
        raise NetstackError(f"{sent} rows were sent to {settings.address}, and {answer.get('rows')} have arrived")
    return StagedRows(writer, batch, partition, token, sent)


def commit(settings: SinkSettings, writer: str, batch: int, messages: list[Any]) -> None:
    """Has the Subscriber make an epoch of what tasks have sent; again and again until it says so.

    Raises:
        ConnectionLost: it was not there for `retry_s`; whether it has committed is not known, and Spark's own next try
            with the same batch finds out.
        RequestRefused: it cannot be; the text says why.
    """
    attempts = [[each.partition, each.token] for each in messages if each is not None and each.token]
    if attempts:
        document = {"writer": writer, "batch": batch, "attempts": sorted(attempts)}
        trio.run(_again, settings, partial(ask, settings, "commit", document))


def abort(settings: SinkSettings, writer: str, batch: int) -> None:
    """Tells the Subscriber that what it has of a batch is of no use; once: it finds out anyway."""
    with contextlib.suppress(NetstackError, OSError):
        trio.run(ask, settings, "abort", {"writer": writer, "batch": batch})


async def ask(settings: SinkSettings, what: str, document: dict[str, Any]) -> dict[str, Any]:
    """Asks a Subscriber.

    Raises:
        ConnectionLost: it was not there for `retry_s`, or went before it answered.
        RequestRefused: see the answer.
    """
    try:
        async with _questions(settings) as questions:
            return await questions.ask(what, {"stream": settings.stream, **document})
    except BaseExceptionGroup as group:
        raise root_cause(group) from None


@asynccontextmanager
async def _questions(settings: SinkSettings) -> AsyncIterator[Questions]:
    secret = settings.secret()
    connect = partial(
        dial,
        settings.address,
        role=CLIENT,
        name=socket.gethostname(),
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        connect_timeout_s=_CONNECT_S,
    )
    link, greeting = await _again(settings, connect)
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


async def _again(settings: SinkSettings, action: Callable[[], Awaitable[_T]]) -> _T:
    """Does it until it does not end for want of a connection, for `retry_s` at most."""
    until_s = trio.current_time() + settings.retry_s
    while True:
        try:
            return await action()
        except (ConnectionLost, OSError):
            if trio.current_time() > until_s:
                raise
            await trio.sleep(_AGAIN_S)


def _listen(settings: SinkSettings) -> blocking.NetworkEnvironment:
    config = NetworkConfig(segment_size_bytes=settings.segment_size_bytes)
    first, last = settings.ports or (0, 0)
    host, secret = settings.own_host(), settings.secret()
    for port in range(first, last + 1):
        try:
            return blocking.open_network(f"tcp://{host}:{port}", config, secret=secret)
        except OSError:
            if port == last:
                raise
    raise AssertionError("the loop returns or raises")
