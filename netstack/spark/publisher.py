"""`Publisher`: publishes a stream that Spark reads, in epochs, exactly once.

An epoch has the rows between two checkpoints of the stream worker. `cut` ends the epoch: its rows are on the disk when
`cut` returns the number of the next epoch, which the worker stores with its own state. `offer` then makes the epoch
readable. This is Flink's two-phase commit. A worker that was killed restarts from its stored state and passes the
stored number as `resume`: the Publisher keeps the older epochs and deletes the newer ones, which the worker writes
again. Either side may die at any time; no row is lost or duplicated.

Readers poll the Publisher and acknowledge epochs by the protocol of `epoch_protocol`. A reader that requests rows gets
a partition of its own, written from the epoch's file: the rows are on the disk once.

Rules: blocking; used by one thread. An offered epoch is kept, and can be read repeatedly, until all `consumers` have
processed it. At most `max_epochs` are kept: then `offer` blocks, which is back-pressure. With `retain_bytes` or
`retain_s` it deletes the oldest epochs instead.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from .. import blocking
from ..base.errors import ConfigError, NetstackError
from ..base.timing.wakeup import Signal
from ..exchange.record.arrow import PIECE_BYTES, slices
from ..network.handles import ResultPartition
from ..network.writer import RecordWriter
from .epoch_protocol import DEFAULT_CONSUMER, EpochRequest, Poll, StreamState, check_consumer
from .stream_schema import StreamSchema, put_in_place

RecordBatch = Any
LOGGER: Final = logging.getLogger("netstack.spark")

_FILE: Final = re.compile(r"epoch-(\d{12})(-last)?\.arrow")
_SUBPARTITION: Final = b"subpartition"
_MOST_ANSWERS: Final = 64
_MOST_READERS: Final = 256
_ANSWER_S: Final = 10.0


@final
class Publisher:
    """Publishes one stream.

    Args:
        network: serves the partitions.
        folder: stores the epochs of this stream only; created if missing.
        subpartitions: the number of tasks that may read an epoch in parallel.
        resume: the number of the epoch to write next, as `cut` returned it before the worker stored its state; None
            continues after the newest epoch in the folder.
        max_epochs: the most epochs that are kept.
        consumers: the names of the readers (the option `consumer` of Spark's reader). An epoch is kept until all of
            them have processed it. Other readers are refused.
        retain_bytes: the most bytes that the epochs may have on the disk. With this or `retain_s` the worker never
            blocks: the oldest epochs are deleted, processed or not, until the rest is within these limits and
            `max_epochs`. The newest epoch is always kept.
        retain_s: the greatest age of an epoch, in seconds since its cut; checked by `offer`.
        keeps_end: whether a stream whose last epoch was cut stays complete, whatever `resume` is.

    Attributes:
        is_ended: whether the last epoch was cut; nothing more is written.

    Raises:
        ConfigError: a number is out of its range, or the folder ends before `resume`.
    """

    def __init__(
        self,
        network: blocking.NetworkEnvironment,
        name: str,
        folder: str | Path,
        *,
        subpartitions: int = 1,
        resume: int | None = None,
        max_epochs: int = 16,
        consumers: Sequence[str] = (DEFAULT_CONSUMER,),
        retain_bytes: int | None = None,
        retain_s: float | None = None,
        keeps_end: bool = False,
    ) -> None:
        self._retain_bytes = math.inf if retain_bytes is None else retain_bytes
        self._retain_s = math.inf if retain_s is None else retain_s
        if min(self._retain_bytes, self._retain_s) <= 0:
            raise ConfigError(f"retain_bytes={retain_bytes}, retain_s={retain_s}: give a number above 0, or None")
        if not consumers:
            raise ConfigError(f"stream {name!r} has no consumers: name at least one query in consumers=")
        if subpartitions < 1 or max_epochs < 1:
            raise ConfigError(f"subpartitions={subpartitions}, max_epochs={max_epochs}; the least is 1")
        folder = Path(folder)
        self._network = network
        self._name = name
        self._folder = folder
        self._subpartitions = subpartitions
        self._max_epochs = max_epochs
        self._acknowledgement = Signal()
        self._answering = 0
        self._reading = 0
        self._offered: dict[int, tuple[int, int]] = {}  # epoch: (rows, bytes)
        self._writer: Any = None
        self._rows = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._schema = StreamSchema(folder)
        kept = sorted(_epochs(folder))
        self.is_ended = bool(kept) and self._path(kept[-1], is_last=True).exists()
        if self.is_ended and keeps_end:
            resume = kept[-1] + 1
        for epoch in kept:
            if resume is not None and epoch >= resume:
                self._path(epoch).unlink()  # it was cut, but the worker did not store its state after that
        self._cut = [epoch for epoch in kept if resume is None or epoch < resume]
        self.is_ended = bool(self._cut) and self._path(self._cut[-1], is_last=True).exists()
        self.epoch = resume if resume is not None else self._cut[-1] + 1 if self._cut else 0
        """The number of the epoch that is being written."""
        if self._cut and self._cut[-1] != self.epoch - 1:
            raise ConfigError(
                f"stream {name!r}: {folder} ends with epoch {self._cut[-1]}, and the worker continues at {self.epoch}:"
                " give the folder and the state of the same worker"
            )
        self._first = self._cut[0] if self._cut else self.epoch
        self._processed = {check_consumer(each): self._first for each in consumers}

        async def listen() -> None:
            network.portal.inside.answer_requests(name, self._answer)

        network.portal.call(listen, timeout_s=None, what="publishing a stream")

    @property
    def acknowledged(self) -> int:
        """All consumers have processed the epochs before this one, which are deleted."""
        self._forget()
        return self._first

    def write(self, batch: RecordBatch, subpartition: int = 0) -> None:
        """Adds rows to the current epoch.

        Args:
            batch: the rows, with the columns of the stream's first batch.
            subpartition: the subpartition that gets them; one task reads it.

        Raises:
            RecordError: the batch has other columns.
        """
        import pyarrow as pa

        if not 0 <= subpartition < self._subpartitions:
            raise ConfigError(f"stream {self._name!r} has no subpartition {subpartition}; it has {self._subpartitions}")
        if self._writer is None:
            self._schema.keep(batch.schema)
            self._writer = pa.ipc.new_stream(str(self._aside()), batch.schema)
        self._schema.check(batch.schema)
        self._writer.write_batch(batch, custom_metadata={_SUBPARTITION: str(subpartition).encode()})
        self._rows += batch.num_rows

    def cut(self, *, is_last: bool = False) -> int:
        """Ends the current epoch; it is on the disk when this returns, and not yet readable.

        Returns:
            The number of the next epoch. Store it with the worker's state, then call `offer`.

        Raises:
            OSError: the disk does not take the epoch, which stays open.
        """
        import pyarrow as pa

        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self._aside()), pa.schema([]))
        self._writer.close()
        self._writer = None
        put_in_place(self._aside(), self._path(self.epoch, is_last=is_last))
        self._cut.append(self.epoch)
        self.epoch += 1
        self.is_ended = is_last
        self._rows = 0
        return self.epoch

    def offer(self, *, before: int | None = None, timeout_s: float | None = None) -> None:
        """Makes the epochs that were cut readable; blocks while `max_epochs` are kept.

        Args:
            before: offers only epochs before this one: the worker has not stored its state after the others.
            timeout_s: the longest wait.

        Raises:
            TimeoutError: the consumers did not process enough within `timeout_s`; call it again.
        """
        self._forget()
        for epoch in list(self._cut):
            if epoch in self._offered or (before is not None and epoch >= before):
                continue
            if len(self._offered) >= self._max_epochs:
                if self._retains:
                    self._drop(before=min(self._offered) + 1)
                else:
                    self._wait(lambda: len(self._offered) < self._max_epochs, "room for another epoch", timeout_s)
            path = self._path(epoch)
            rows = sum(batch.num_rows for _, batch in _batches(path))
            self._offered[epoch] = (rows, path.stat().st_size)
        if self._retains:
            self._expire()

    def wait_acknowledged(self, *, timeout_s: float | None = None) -> None:
        """Blocks until all consumers have processed every offered epoch.

        Raises:
            TimeoutError: they did not within `timeout_s`; call it again.
        """
        self._wait(lambda: not self._offered, "the consumers", timeout_s)

    def _wait(self, is_enough: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        async def until_one() -> None:
            while min(self._processed.values()) <= self._first:
                await self._acknowledgement.wait()

        self._forget()
        while not is_enough():
            reason = f"stream {self._name!r}: waiting for {what}"
            self._network.portal.call(until_one, timeout_s=timeout_s, what=reason)
            self._forget()

    @property
    def _retains(self) -> bool:
        return min(self._retain_bytes, self._retain_s) < math.inf

    def _expire(self) -> None:
        """Deletes the epochs beyond the limits of retention."""
        now_s = time.time()
        newest, *others = sorted(self._offered, reverse=True) or [-1]
        size = self._offered[newest][1] if others else 0
        for epoch in others:
            size += self._offered[epoch][1]
            if size > self._retain_bytes or now_s - self._path(epoch).stat().st_mtime > self._retain_s:
                self._drop(before=epoch + 1)
                return

    def _forget(self) -> None:
        """Deletes the epochs that all consumers have processed."""
        self._drop(before=min(self._processed.values()))

    def _drop(self, *, before: int) -> None:
        for epoch in [each for each in self._cut if each < before]:
            self._path(epoch).unlink(missing_ok=True)
            self._cut.remove(epoch)
            del self._offered[epoch]
        self._first = max(self._first, before)

    # In the network's thread.

    def _answer(self, name: str) -> None:
        """Creates the partition that a reader waits for. A reader that gets none repeats its request."""
        poll, request = Poll.of(name), EpochRequest.of(name)
        if poll is not None and self._answering < _MOST_ANSWERS:
            self._answering += 1
            self._network.portal.start_task(partial(self._send_answer, name, self._state_for(poll)))
        if request is None or request.epoch not in self._offered or self._reading >= _MOST_READERS:
            return
        try:
            partition = self._network.portal.inside.create_partition(name, subpartitions=1)
        except NetstackError:
            LOGGER.warning("cannot create the partition of an epoch: stream=%r", self._name, exc_info=True)
            return
        self._reading += 1
        self._network.portal.start_task(partial(self._send_rows, partition, request))

    async def _send_rows(self, partition: ResultPartition, request: EpochRequest) -> None:
        """Writes the rows of an epoch until the end, or until the reader disconnects."""
        writer = RecordWriter[Any](partition, format="arrow", buffer_timeout_s=None)
        batches = _batches(self._path(request.epoch))

        try:
            while (entry := await trio.to_thread.run_sync(next, batches, None)) is not None:
                subpartition, batch = entry
                for piece in slices(batch, PIECE_BYTES) if subpartition == request.subpartition else ():
                    await writer.emit_batch(piece)
            await writer.finish()
            await writer.wait_consumed()
        except (NetstackError, OSError):  # the reader left, or the epoch was deleted
            LOGGER.debug("epoch was not read to its end: stream=%r", self._name, exc_info=True)
        finally:
            batches.close()
            partition.release()
            self._reading -= 1

    def _state_for(self, poll: Poll) -> StreamState:
        """Stores the consumer's acknowledgement, and returns the answer."""
        offered = dict(self._offered)
        end = max(offered, default=self._first - 1) + 1
        if poll.consumer not in self._processed:
            refusal = (
                f"stream {self._name!r} has the consumers {', '.join(self._processed)}, and not {poll.consumer!r}:"
                " correct the option consumer, or name it where the stream is published (consumers=)"
            )
            return StreamState(self._first, end, self.epoch, refusal=refusal)
        if self._processed[poll.consumer] < poll.processed <= end:
            self._processed[poll.consumer] = poll.processed
            self._acknowledgement.wake()
        epochs = sorted(offered)
        rows, sizes = [offered[each][0] for each in epochs], [offered[each][1] for each in epochs]
        return StreamState(min(epochs, default=self._first), end, self.epoch, rows, sizes)

    async def _send_answer(self, partition: str, state: StreamState) -> None:
        try:
            network = self._network.portal.inside
            with trio.move_on_after(_ANSWER_S):
                try:
                    writer = RecordWriter[str](network.create_partition(partition, subpartitions=1), format="str")
                    await writer.emit(state.to_text())
                    await writer.finish()
                    await writer.wait_consumed()
                except NetstackError:
                    LOGGER.debug("poll was not answered: stream=%r", self._name, exc_info=True)
            network.release_partition(partition)
        finally:
            self._answering -= 1

    def _path(self, epoch: int, *, is_last: bool | None = None) -> Path:
        if is_last is None and (last := self._path(epoch, is_last=True)).exists():
            return last
        return self._folder / f"epoch-{epoch:012d}{'-last' if is_last else ''}.arrow"

    def _aside(self) -> Path:
        return self._folder / "writing.arrow"


def _epochs(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            yield int(match[1])


def _batches(path: Path) -> Generator[tuple[int, RecordBatch], None, None]:
    """(subpartition, rows) of an epoch's file, memory-mapped: the rows of other subpartitions are not read."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            yield int(metadata[_SUBPARTITION]), batch
