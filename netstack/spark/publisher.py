"""A stream worker's end of a stream that Spark reads: epochs, each readable until Spark has made it its own.

Takes: Arrow batches, and where the worker's checkpoints are. Gives: partitions of a NetworkEnvironment, one an epoch.

An epoch is what lies between two checkpoints of the worker. `cut` ends it: it is on the disk when `cut` returns, with
the number of the next one, which the worker stores with its own state. `offer` then lets it be read. So a worker that
is killed goes on from the state it stored: `resume` is the number it stored, older epochs are read from the disk, and
what was cut after that is dropped, because it will be made again. It is Flink's commit in two phases: the stream
survives the death of either side with nothing lost and nothing twice.

A reader asks what there is, and says in the same breath what it has processed: see `stream_state`. One that asks for
rows (`stream_request`) gets a partition of its own, written from the epoch's file: there is no other copy of the rows.

Rules: blocking; used by one thread. An epoch that is offered is kept, and can be read again and again, until each of
the `consumers` has said that it is processed. At most `max_epochs` are kept: `offer` waits, which is
back-pressure; or, with `retain_bytes` or `retain_s`, the oldest go.
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
from ..errors import ConfigError, NetstackError
from ..record.arrow import PIECE_BYTES, slices
from ..runtime.handles import ResultPartition
from ..runtime.record_writer import RecordWriter
from ..wakeup import Signal
from .stream_request import EpochRequest, Question
from .stream_schema import StreamSchema, synchronise
from .stream_state import DEFAULT_CONSUMER, StreamState, check_consumer

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
        network: where partitions are.
        name: of the stream.
        folder: keeps epochs, of this stream alone; made if it is not there.
        subpartitions: how many tasks may read an epoch at once.
        resume: the epoch that is written next, as `cut` told it before the worker's state was stored; None goes on
            behind what the folder has.
        max_epochs: at most so many are kept.
        consumers: who reads it, by the names they give (the option `consumer` of Spark's reader): an epoch is kept
            until all of them have processed it, and nobody else is let in.
        retain_bytes: what epochs may have on the disk together. With this or `retain_s` the worker waits for nobody:
            the oldest epochs go, processed or not, until the rest is within these limits and `max_epochs`. The newest
            stays.
        retain_s: seconds since they were cut; looked at when another one is offered.
        keeps_end: whether a stream that was ended stays so, whatever `resume` says: all its rows are there.

    Attributes:
        is_ended: whether its last epoch is cut; nothing more is written.

    Raises:
        ConfigError: a number that cannot be, or a folder that does not reach as far as `resume`.
    """

    def __init__(
        self,
        network: blocking.NetworkEnvironment,
        name: str,
        folder: Path,
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
            raise ConfigError(f"retain_bytes={retain_bytes}, retain_s={retain_s}: give more than 0, or None")
        if not consumers:
            raise ConfigError(f"stream {name!r} needs a consumer, or its epochs would be kept by nobody")
        if subpartitions < 1 or max_epochs < 1:
            raise ConfigError(f"subpartitions={subpartitions}, max_epochs={max_epochs}; the least is 1")
        self._network = network
        self._name = name
        self._folder = folder
        self._subpartitions = subpartitions
        self._max_epochs = max_epochs
        self._acknowledged_now = Signal()
        self._answering = 0
        self._reading = 0
        self._offered: dict[int, tuple[int, int]] = {}  # rows and bytes of each
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
                self._path(epoch).unlink()  # it was cut, but the state behind it was not stored
        self._cut = [epoch for epoch in kept if resume is None or epoch < resume]
        self.is_ended = bool(self._cut) and self._path(self._cut[-1], is_last=True).exists()
        self.epoch = resume if resume is not None else self._cut[-1] + 1 if self._cut else 0
        """The epoch that is being written."""
        if self._cut and self._cut[-1] != self.epoch - 1:
            raise ConfigError(
                f"stream {name!r}: {folder} ends with epoch {self._cut[-1]}, and the worker goes on at {self.epoch}:"
                " give the folder and the state of one worker"
            )
        self._first = self._cut[0] if self._cut else self.epoch
        self._processed = {check_consumer(each): self._first for each in consumers}

        async def listen() -> None:
            network.portal.inside.answer_requests(name, self._answer)

        network.portal.call(listen, timeout_s=None, what="publishing a stream")

    @property
    def acknowledged(self) -> int:
        """All epochs before this one are processed by every consumer, and forgotten."""
        self._forget()
        return self._first

    def write(self, batch: RecordBatch, subpartition: int = 0) -> None:
        """Adds rows to the epoch that is being written.

        Args:
            batch: with the columns that the stream had from its beginning.
            subpartition: which of the tasks that read gets them.

        Raises:
            RecordError: it has others.
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
        """Ends the epoch that is being written; it is on the disk when this returns, and not yet offered.

        Returns:
            The number of the next: to be stored with the worker's state, then `offer`.

        Raises:
            OSError: it cannot be written; the epoch goes on.
        """
        import pyarrow as pa

        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self._aside()), pa.schema([]))
        self._writer.close()
        self._writer = None
        synchronise(self._aside())
        self._aside().rename(self._path(self.epoch, is_last=is_last))
        synchronise(self._folder)
        self._cut.append(self.epoch)
        self.epoch += 1
        self.is_ended = is_last
        self._rows = 0
        return self.epoch

    def offer(self, *, before: int | None = None, timeout_s: float | None = None) -> None:
        """Lets everything that was cut be read; waits while `max_epochs` are kept.

        Args:
            before: only epochs before this one: the state behind the others is not stored yet.
            timeout_s: to wait at most.

        Raises:
            TimeoutError: consumers did not process enough within `timeout_s`; call it again.
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
        """Waits until everything that was offered is processed.

        Raises:
            TimeoutError: not within `timeout_s`; call it again.
        """
        self._wait(lambda: not self._offered, "the consumers", timeout_s)

    def _wait(self, is_enough: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        async def until_one() -> None:
            while min(self._processed.values()) <= self._first:
                await self._acknowledged_now.wait()

        self._forget()
        while not is_enough():
            what_for = f"stream {self._name!r}: waiting for {what}"
            self._network.portal.call(until_one, timeout_s=timeout_s, what=what_for)
            self._forget()

    @property
    def _retains(self) -> bool:
        return min(self._retain_bytes, self._retain_s) < math.inf

    def _expire(self) -> None:
        """Drops what retention does not keep."""
        now_s = time.time()
        newest, *others = sorted(self._offered, reverse=True) or [-1]
        size = self._offered[newest][1] if others else 0
        for epoch in others:
            size += self._offered[epoch][1]
            if size > self._retain_bytes or now_s - self._path(epoch).stat().st_mtime > self._retain_s:
                self._drop(before=epoch + 1)
                return

    def _forget(self) -> None:
        """Drops what all consumers have processed."""
        self._drop(before=min(self._processed.values()))

    def _drop(self, *, before: int) -> None:
        for epoch in [each for each in self._cut if each < before]:
            self._path(epoch).unlink(missing_ok=True)
            self._cut.remove(epoch)
            del self._offered[epoch]
        self._first = max(self._first, before)

    # In the network's thread.

    def _answer(self, name: str) -> None:
        """Makes the partition that is asked for, as its reader waits; one that gets none asks again."""
        question, wanted = Question.of(name), EpochRequest.of(name)
        if question is not None and self._answering < _MOST_ANSWERS:
            self._answering += 1
            self._network.portal.start_task(partial(self._send_answer, name, self._state_for(question)))
        if wanted is None or wanted.epoch not in self._offered or self._reading >= _MOST_READERS:
            return
        try:
            partition = self._network.portal.inside.create_partition(name, subpartitions=1)
        except NetstackError:
            LOGGER.warning("stream %r: an epoch was not read", self._name, exc_info=True)
            return
        self._reading += 1
        self._network.portal.start_task(partial(self._send_rows, partition, wanted))

    async def _send_rows(self, partition: ResultPartition, wanted: EpochRequest) -> None:
        """Writes rows until there are no more, or the reader has gone."""
        writer = RecordWriter[Any](partition, format="arrow", buffer_timeout_s=None)
        batches = _batches(self._path(wanted.epoch))

        async def write() -> None:
            while (found := await trio.to_thread.run_sync(next, batches, None)) is not None:
                subpartition, batch = found
                for piece in slices(batch, PIECE_BYTES) if subpartition == wanted.subpartition else ():
                    await writer.emit_batch(piece)
            await writer.finish()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await writer.wait_consumed()
                nursery.cancel_scope.cancel()
        except* (NetstackError, OSError):  # it was retired meanwhile
            LOGGER.debug("an epoch of stream %r was not read to its end", self._name, exc_info=True)
        finally:
            batches.close()
            partition.release()
            self._reading -= 1

    def _state_for(self, question: Question) -> StreamState:
        """Takes in what a consumer says, and tells it what there is."""
        offered = dict(self._offered)
        behind = max(offered, default=self._first - 1) + 1
        if question.consumer not in self._processed:
            known = ", ".join(self._processed)
            return StreamState(
                self._first,
                behind,
                self.epoch,
                refusal=f"stream {self._name!r} has the consumers {known}, and not {question.consumer!r}: correct the"
                " option consumer, or name it where the stream is published (consumers=)",
            )
        if self._processed[question.consumer] < question.processed <= behind:
            self._processed[question.consumer] = question.processed
            self._acknowledged_now.wake()
        epochs = sorted(offered)
        rows, sizes = [offered[each][0] for each in epochs], [offered[each][1] for each in epochs]
        return StreamState(min(epochs, default=self._first), behind, self.epoch, rows, sizes)

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
                    LOGGER.debug("a question about stream %r was not answered", self._name, exc_info=True)
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
        found = _FILE.fullmatch(path.name)
        if found is not None:
            yield int(found[1])


def _batches(path: Path) -> Generator[tuple[int, RecordBatch], None, None]:
    """(subpartition, rows) of an epoch's file; rows that nobody looks at are not read."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            yield int(metadata[_SUBPARTITION]), batch
