"""`PublishRows`: a job's sink that publishes its records to Spark, one epoch for each checkpoint, exactly once.

    rows.sink("netstack.spark.publish_rows:PublishRows", address="tcp://10.0.0.7:7200", stream="clicks",
              folder="/shared/clicks", columns={"id": "int64", "user": "string"})

A checkpoint cuts an epoch, whose number is the subtask's state. Spark can read the epoch once the checkpoint is
complete, so Spark never sees rows that a restart writes again. At the end of the job the sink offers the last epoch and
waits until Spark has processed it; after that a restart adds nothing to the stream. Subtask i listens at the first port
plus i, and the option `address` of Spark's reader lists all of them.

Rules: the folder belongs to this job only, and is shared by all hosts where the subtask may restart. The address must
lead to that host too: between hosts give a name that follows the subtask. While Spark has not processed `max_epochs`,
checkpoints wait, and with them the job; with `retain_bytes` or `retain_s` the sink deletes the oldest epochs instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .. import blocking
from ..base.errors import CheckpointError, ConfigError, RecordError
from ..network.connection.authentication import Secret
from .epoch_protocol import DEFAULT_CONSUMER, check_consumer
from .publisher import Publisher

if TYPE_CHECKING:
    from ..cluster.task.context import OperatorContext

_Result = TypeVar("_Result")
_ROWS_AT_ONCE: Final = 8192


@final
class PublishRows:
    """Publishes the records of a job as a stream, each subtask through a `Publisher` of its own.

    Args:
        address: the URL where subtask 0 listens, `tcp://HOST:PORT`.
        stream: the stream's name: the option `partition` of Spark's reader.
        folder: stores epochs until Spark has processed them.
        columns: the name of each column's Arrow type. A record is a mapping, a sequence in this order, or the value of
            a single column.
        max_epochs: the most epochs that are kept.
        consumers: the names of the queries (their option `consumer`); an epoch is kept until all have processed it.
        retain_bytes: the most bytes that the epochs may have on the disk; with this or `retain_s` the job never waits.
        retain_s: the greatest age of an epoch, in seconds.
        secret_file: the file with the secret that is shared with Spark's reader.

    Raises:
        ConfigError: the address or a type is not valid.
    """

    def __init__(
        self,
        *,
        address: str,
        stream: str,
        folder: str,
        columns: Mapping[str, str],
        max_epochs: int = 16,
        consumers: Sequence[str] = (DEFAULT_CONSUMER,),
        retain_bytes: int | None = None,
        retain_s: float | None = None,
        secret_file: str | None = None,
    ) -> None:
        import pyarrow as pa

        self._host, _, port = address.rpartition(":")
        if not self._host or not port.isdecimal():
            raise ConfigError(f"address={address!r}: give tcp://HOST:PORT, where the first subtask listens")
        self._port = int(port)
        try:
            self._schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
        except ValueError as error:
            raise ConfigError(f"columns={dict(columns)}: {error}") from None
        self._stream = stream
        self._folder = Path(folder)
        self._max_epochs = max_epochs
        self._consumers = tuple(check_consumer(each) for each in consumers)
        self._retention = (retain_bytes, retain_s)
        self._secret_file = secret_file
        self._resume = 0
        self._rows: list[Any] = []
        self._has_more = False  # rows after the last cut
        self._cut: dict[int, int] = {}  # checkpoint: the epoch after those that it covers
        self._publisher: Publisher | None = None
        self._network: blocking.NetworkEnvironment | None = None

    def open(self, context: OperatorContext) -> None:
        """Stores the context."""
        self._context = context

    def restore(self, states: Sequence[int]) -> None:
        """Restores the number of the next epoch.

        Raises:
            CheckpointError: the parallelism has changed.
        """
        if len(states) != 1:
            raise CheckpointError(
                f"{self._context.operator!r} publishes a stream for each subtask, so its parallelism cannot change"
            )
        (self._resume,) = states

    async def process_batch(self, records: Iterable[Any]) -> None:
        """Adds records to the current epoch."""
        self._rows += records
        if len(self._rows) >= _ROWS_AT_ONCE:
            await self._write()

    async def snapshot(self) -> int:
        """Cuts the epoch if it has rows; returns the number of the next one."""
        publisher = await self._write()
        if self._has_more:
            await _in_thread(publisher.cut)
            self._has_more = False
        self._cut[self._context.checkpoint_id] = publisher.epoch
        return publisher.epoch

    async def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Offers the epochs that the checkpoint covers."""
        done = [each for each in self._cut if each <= checkpoint_id]
        before = max((self._cut.pop(each) for each in done), default=0)
        await _in_thread(functools.partial((await self._open()).offer, before=before), waits=True)

    async def finish(self) -> int:
        """Offers the last epoch, and waits until Spark has processed all. Returns the number of epochs."""
        publisher = await self._write()
        if not publisher.is_ended:
            await _in_thread(functools.partial(publisher.cut, is_last=True))
            self._has_more = False  # the final checkpoint adds no epoch
        await _in_thread(publisher.offer, waits=True)
        await _in_thread(publisher.wait_acknowledged, waits=True)
        return publisher.epoch

    async def close(self) -> None:
        """Closes the network: Spark's readers lose their connections and retry."""
        if self._network is not None:
            await _in_thread(self._network.close)

    async def _write(self) -> Publisher:
        publisher, rows = await self._open(), self._rows
        self._rows = []
        if rows and not publisher.is_ended:  # an ended stream has these rows already
            self._has_more = True
            await _in_thread(lambda: publisher.write(self._batch(rows)))
        return publisher

    async def _open(self) -> Publisher:
        if self._publisher is None:
            self._publisher = await _in_thread(self._start)
            await _in_thread(
                self._publisher.offer, waits=True
            )  # the epochs that are kept belong to a completed checkpoint
        return self._publisher

    def _start(self) -> Publisher:
        """Opens the Publisher; not in `open`, which comes before `restore`."""
        subtask = self._context.subtask
        secret = None if self._secret_file is None else Secret.from_file(self._secret_file)
        self._network = blocking.open_network(f"{self._host}:{self._port + subtask}", secret=secret)
        return Publisher(
            self._network,
            self._stream,
            self._folder / str(subtask),
            resume=self._resume,
            max_epochs=self._max_epochs,
            consumers=self._consumers,
            retain_bytes=self._retention[0],
            retain_s=self._retention[1],
            keeps_end=True,
        )

    def _batch(self, rows: list[Any]) -> Any:
        """Converts rows to columns. Raises RecordError if a record does not fit the columns."""
        import pyarrow as pa

        names = self._schema.names
        first = rows[0]
        try:
            if isinstance(first, Mapping):
                return pa.RecordBatch.from_pylist(rows, schema=self._schema)
            if isinstance(first, (list, tuple)):
                columns = list(zip(*rows, strict=True))
            else:
                columns = [tuple(rows)]
            if len(columns) != len(names):
                raise RecordError(f"a record has {len(columns)} values, and the stream {len(names)} columns")
            arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, AttributeError) as error:
            raise RecordError(f"records do not fit the columns {', '.join(names)}: {error}") from error


async def _in_thread(action: Callable[[], _Result], *, waits: bool = False) -> _Result:
    """Runs a call in a thread. A cancellation abandons a call that waits for Spark; `close` ends it."""
    return await trio.to_thread.run_sync(action, abandon_on_cancel=waits)
