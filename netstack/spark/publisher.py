"""A stream worker's end of a stream that Spark reads: epochs, each readable until Spark has made it its own.

Takes: Arrow batches, and where the worker's checkpoints are. Gives: partitions of a NetworkEnvironment, one an epoch.

An epoch is what lies between two checkpoints of the worker. `cut` ends it: it is on the disk when `cut` returns, with
the number of the next one, which the worker stores with its own state. `offer` then lets it be read. So a worker that
is killed goes on from the state it stored: `resume` is the number it stored, older epochs are read from the disk, and
what was cut after that is dropped, because it will be made again. It is Flink's commit in two phases: the stream
survives the death of either side with nothing lost and nothing twice.

    epoch 17 of "events"   partition "events@17": its subpartitions, and one more with what it holds (`EpochManifest`)
    everything before 17   partition "events.done@17": whoever reads it says that all that was before is processed

Rules: blocking; used by one thread. An epoch that is offered is kept, and can be read again and again, until a consumer
has said that it is done. At most `max_epochs` are kept: `offer` waits, which is back-pressure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from .. import blocking
from ..errors import ConfigError
from ..ids import ResultPartitionType
from ..record.arrow import PIECE_BYTES, slices
from ..runtime.signal import Signal
from .target import TargetSelector

RecordBatch = Any

_FILE: Final = re.compile(r"epoch-(\d{12})(-last)?\.arrow")
_SUBPARTITION: Final = b"subpartition"


@final
@dataclass(frozen=True, slots=True)
class EpochManifest:
    """What an epoch holds.

    Attributes:
        epoch: its number.
        rows: of all its subpartitions.
        is_last: whether the stream ends with it.
    """

    epoch: int
    rows: int
    is_last: bool

    def as_batch(self) -> RecordBatch:
        """As it travels."""
        import pyarrow as pa

        row = {"epoch": self.epoch, "rows": self.rows, "is_last": self.is_last}
        return pa.RecordBatch.from_pylist([row])

    @classmethod
    def from_batch(cls, batch: RecordBatch) -> EpochManifest:
        """The inverse of `as_batch`."""
        (row,) = batch.to_pylist()
        return cls(int(row["epoch"]), int(row["rows"]), bool(row["is_last"]))


def epoch_partition(name: str, epoch: int) -> str:
    """The partition in which an epoch of a stream is read."""
    return f"{name}@{epoch}"


def done_partition(name: str, epoch: int) -> str:
    """The partition that says, when it is read, that all epochs before are processed."""
    return f"{name}.done@{epoch}"


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
        keeps_end: bool = False,
    ) -> None:
        if subpartitions < 1 or max_epochs < 1:
            raise ConfigError(f"subpartitions={subpartitions}, max_epochs={max_epochs}; the least is 1")
        self._network = network
        self._name = name
        self._folder = folder
        self._subpartitions = subpartitions
        self._max_epochs = max_epochs
        self._acknowledged_now = Signal()
        self._done: dict[int, blocking.ResultPartition] = {}
        self._offered: list[int] = []
        self._writer: Any = None
        self._rows = 0
        folder.mkdir(parents=True, exist_ok=True)
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
        self._done_before = self._cut[0] if self._cut else self.epoch
        self._add_done(self._done_before)

    @property
    def acknowledged(self) -> int:
        """All epochs before this one are processed, and forgotten."""
        self._forget()
        return self._done_before

    def write(self, batch: RecordBatch, subpartition: int = 0) -> None:
        """Adds rows to the epoch that is being written.

        Args:
            batch: of the schema of all others.
            subpartition: which of the tasks that read gets them.
        """
        import pyarrow as pa

        if not 0 <= subpartition < self._subpartitions:
            raise ConfigError(f"stream {self._name!r} has no subpartition {subpartition}; it has {self._subpartitions}")
        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self._aside()), batch.schema)
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
        _synchronise(self._aside())
        self._aside().rename(self._path(self.epoch, is_last=is_last))
        _synchronise(self._folder)
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
        for epoch in list(self._cut):
            if (self._offered and epoch <= self._offered[-1]) or (before is not None and epoch >= before):
                continue
            if len(self._offered) >= self._max_epochs:
                self._wait(lambda: len(self._offered) < self._max_epochs, "room for another epoch", timeout_s)
            self._publish(epoch)
            self._offered.append(epoch)
            self._add_done(epoch + 1)
        self._forget()

    def wait_acknowledged(self, *, timeout_s: float | None = None) -> None:
        """Waits until everything that was offered is processed.

        Raises:
            TimeoutError: not within `timeout_s`; call it again.
        """
        self._wait(lambda: not self._offered, "the consumers", timeout_s)

    def _wait(self, is_enough: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        async def until_one() -> None:
            while not any(each.inner.all_acknowledged for each in self._done.values()):
                await self._acknowledged_now.wait()

        self._forget()
        while not is_enough():
            portal = next(iter(self._done.values())).portal
            portal.call(until_one, timeout_s=timeout_s, what=f"stream {self._name!r}: waiting for {what}")
            self._forget()

    def _publish(self, epoch: int) -> None:
        """Makes the partition of an epoch from its file."""
        last = self._path(epoch, is_last=True)
        path = last if last.exists() else self._path(epoch)
        partition = self._network.create_partition(
            epoch_partition(self._name, epoch),
            subpartitions=self._subpartitions + 1,
            kind=ResultPartitionType.BLOCKING,
        )
        selector = TargetSelector()
        writer = blocking.RecordWriter(partition, selector=selector, format="arrow", buffer_timeout_s=None)
        rows = 0
        for target, batch in _batches(path):
            selector.target = target
            for piece in slices(batch, PIECE_BYTES):
                writer.emit_batch(piece)
            rows += batch.num_rows
        selector.target = self._subpartitions
        writer.emit_batch(EpochManifest(epoch, rows, path == last).as_batch())
        writer.finish()

    def _add_done(self, epoch: int) -> None:
        name = done_partition(self._name, epoch)
        partition = self._network.create_partition(name, subpartitions=1)
        blocking.RecordWriter(partition).finish()
        wake = self._acknowledged_now.wake

        async def watch() -> None:
            partition.inner.on_acknowledged = wake

        partition.portal.call(watch, timeout_s=None, what="watching a partition")
        self._done[epoch] = partition

    def _forget(self) -> None:
        """Drops what a consumer said to be done."""
        portal = next(iter(self._done.values())).portal

        async def look() -> list[int]:
            return [epoch for epoch, partition in self._done.items() if partition.inner.all_acknowledged]

        said = portal.call(look, timeout_s=None, what="looking at partitions")
        if not said:
            return
        done = max(said)
        for epoch in [each for each in self._done if each <= done]:
            self._network.release_partition(done_partition(self._name, epoch))
            del self._done[epoch]
        self._add_done(done)  # a consumer that comes back says it again
        self._done_before = max(done, self._done_before)
        for epoch in [each for each in self._cut if each < done]:
            self._network.release_partition(epoch_partition(self._name, epoch))
            for is_last in (False, True):
                self._path(epoch, is_last=is_last).unlink(missing_ok=True)
            self._cut.remove(epoch)
        self._offered = [epoch for epoch in self._offered if epoch >= done]

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


def _batches(path: Path) -> Iterator[tuple[int, RecordBatch]]:
    """(subpartition, rows) of an epoch's file."""
    import pyarrow as pa

    with pa.ipc.open_stream(str(path)) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            yield int(metadata[_SUBPARTITION]), batch


def _synchronise(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
