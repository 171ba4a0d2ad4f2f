"""The sink with which a netstack job feeds Spark: its records are epochs of a `Publisher`, one for each checkpoint.

Takes: records of a job. Gives: a stream that `spark.readStream.format("netstack")` reads, each row once.

    rows.sink("netstack.spark.publish_rows:PublishRows", address="tcp://10.0.0.7:7200", stream="clicks",
              folder="/shared/clicks", columns={"id": "int64", "user": "string"})

A checkpoint cuts an epoch, whose number is the subtask's state; Spark may read it when the checkpoint is complete, so
nobody has seen what a restart makes again. At the end of the job the last epoch is offered and waited for; from then on
the stream is whole, whatever is made again. Subtask i listens at the port i behind the first, and all of them are the
option `address` of Spark's reader.

Rules: the folder is of this job alone, and is seen from wherever the subtask may be started again; the address has to
lead there too, so between hosts give a name that follows it. While Spark has not processed `max_epochs`, checkpoints
wait, and with them the job; with `retain_bytes` or `retain_s` nothing waits, and the oldest epochs go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from .. import blocking
from ..errors import CheckpointError, ConfigError, RecordError
from ..runtime.authentication import Secret
from .publisher import Publisher
from .stream_state import DEFAULT_CONSUMER, check_consumer

if TYPE_CHECKING:
    from ..task.context import OperatorContext

_Result = TypeVar("_Result")
_ROWS_AT_ONCE: Final = 8192


@final
class PublishRows:
    """See the module.

    Args:
        address: where subtask 0 listens, `tcp://HOST:PORT`.
        stream: its name: the option `partition` of Spark's reader.
        folder: keeps epochs until Spark has processed them.
        columns: Arrow's name of each column's type. A record is a mapping, a sequence in this order, or of a single
            column its value.
        max_epochs: so many are kept at most.
        consumers: the queries that read it, by their option `consumer`; each epoch is kept until all have processed it.
        retain_bytes: what epochs may have on the disk; with this or `retain_s` the job waits for no query.
        retain_s: how long epochs are kept at most; see `Publisher`.
        secret_file: shared with Spark's reader.

    Raises:
        ConfigError: an address or a type that cannot be.
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
            raise ConfigError(f"address={address!r}: give tcp://HOST:PORT, where Spark finds the first subtask")
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
        self._has_more = False  # than the last epoch
        self._cut: dict[int, int] = {}  # by checkpoint: the epoch behind those it covers
        self._publisher: Publisher | None = None
        self._network: blocking.NetworkEnvironment | None = None

    def open(self, context: OperatorContext) -> None:
        """Learns which subtask it is."""
        self._context = context

    def restore(self, states: Sequence[int]) -> None:
        """Goes on with an epoch.

        Raises:
            CheckpointError: the parallelism has changed.
        """
        if len(states) != 1:
            raise CheckpointError(
                f"{self._context.operator!r} publishes a stream for each subtask, so its parallelism has to stay"
            )
        (self._resume,) = states

    async def process_batch(self, records: Iterable[Any]) -> None:
        """Adds rows to the epoch."""
        self._rows += records
        if len(self._rows) >= _ROWS_AT_ONCE:
            await self._write()

    async def snapshot(self) -> int:
        """Cuts the epoch, if there are rows in it."""
        publisher = await self._write()
        if self._has_more:
            await _in_thread(publisher.cut)
            self._has_more = False
        self._cut[self._context.checkpoint_id] = publisher.epoch
        return publisher.epoch

    async def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Lets Spark read what was cut for it."""
        done = [each for each in self._cut if each <= checkpoint_id]
        before = max((self._cut.pop(each) for each in done), default=0)
        await _in_thread(functools.partial((await self._open()).offer, before=before), waits=True)

    async def finish(self) -> int:
        """Offers the rest, and waits until Spark has processed all. Returns the number of epochs."""
        publisher = await self._write()
        if not publisher.is_ended:
            await _in_thread(functools.partial(publisher.cut, is_last=True))
        await _in_thread(publisher.offer, waits=True)
        await _in_thread(publisher.wait_acknowledged, waits=True)
        return publisher.epoch

    async def close(self) -> None:
        """Spark's readers lose their connections, and try again."""
        if self._network is not None:
            await _in_thread(self._network.close)

    async def _write(self) -> Publisher:
        publisher, rows = await self._open(), self._rows
        self._rows = []
        if rows and not publisher.is_ended:  # else they are there already
            self._has_more = True
            await _in_thread(lambda: publisher.write(self._batch(rows)))
        return publisher

    async def _open(self) -> Publisher:
        if self._publisher is None:
            self._publisher = await _in_thread(self._start)
            await _in_thread(self._publisher.offer, waits=True)  # what is kept is behind a checkpoint
        return self._publisher

    def _start(self) -> Publisher:
        """Not in `open`, where the epoch to go on with is not known yet."""
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
        """Rows as columns.

        Raises:
            RecordError: a record does not fit.
        """
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
    """Calls it in a thread; one that waits for Spark is left behind by a cancellation, and ends with `close`."""
    return await trio.to_thread.run_sync(action, abandon_on_cancel=waits)
