"""A task of an exchange: sends each row to the task that owns its key, and yields the rows that it owns.

A task listens, exchanges addresses once, and opens its input gate. Then this thread yields the received rows when Spark
requests them, and a second thread reads Spark's input and writes it to the channels, so neither blocks the other. A
task whose rows Spark does not consume holds back its producers by credit. trio runs in a third thread
(`netstack.blocking`).

Rules: rows travel as columns, in large pieces by owner. An error before the exchange of addresses is exchanged with
them, so that every task raises the same one. A task that only lost a peer waits a moment before it raises: Spark shall
get the peer's own error first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, final

from .. import blocking
from ..base import build
from ..base.causes import cause_text, is_secondary, root_cause
from ..base.config import NetworkConfig
from ..base.errors import ConfigError, ErrorCode, NetstackError, RemoteProtocolError
from ..base.ids import ChannelDescriptor
from ..cluster.control.build import own_build
from ..exchange.buffer.requirements import GatePlan, PartitionPlan, required_buffers
from ..exchange.keygroups import default_max_parallelism, group_owners
from ..exchange.outbound.selector import ChannelSelector
from ..exchange.record.arrow import slices
from ..network.connection.authentication import Secret
from .barrier import BarrierTask
from .exchange_statistics import ExchangeTask, channels_of
from .keys import owners_of
from .ports import open_on_free_port

RecordBatch = Any

_BLAME_S: Final = 1.5  # by then Spark has the error of a peer that failed
_GATHER_AT_MOST_BYTES: Final = 32 * 1024 * 1024
_SPARE_SEGMENTS: Final = 16
_HELD_S: Final = 0.02  # a piece that took longer waited for a network buffer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeJob:
    """The settings of all tasks.

    Attributes:
        into: the number of tasks that get rows; None is all of them.
        max_parallelism: the number of key groups; None is Flink's default for `into`.
        buffer_timeout_s: the longest time a row waits for its network buffer to fill; None waits for full buffers.
        batch_bytes: the approximate size of the batches on the channels.
        network: settings of `NetworkConfig`, without the memory.
        ports: first and last port a task may listen on; None is any port.
        setup_timeout_s: the longest time to open the gate.
        build: `own_build` of the driver, which every task must run; empty disables the check.
    """

    keys: tuple[str, ...]
    into: int | None = None
    max_parallelism: int | None = None
    buffer_timeout_s: float | None = 0.1
    batch_bytes: int = 256 * 1024
    network: dict[str, Any] = field(default_factory=dict)
    token: bytes = b""
    ports: tuple[int, int] | None = None
    setup_timeout_s: float = 30.0
    build: str = ""

    def config(self, tasks: int, into: int, *, has_gate: bool) -> NetworkConfig:
        """Returns the settings of a task's network, with memory for every buffer it may use."""
        config = NetworkConfig(**self.network)
        gates = {"in": GatePlan(tasks, local=1)} if has_gate else {}
        plan = required_buffers(
            gates=gates, partitions={"out": PartitionPlan(into)}, connections=tasks - 1, config=config
        )
        assert plan.maximum is not None, "an exchange writes a bounded partition"
        segments = plan.maximum + _SPARE_SEGMENTS
        return dataclasses.replace(config, memory_bytes=segments * config.segment_size_bytes)


@final
class TargetSelector(ChannelSelector):
    """Selects the subpartition that was set before."""

    target = 0

    def select(self, record: Any) -> int:
        """Returns `target`."""
        return self.target

    def select_batch(self, array: Any) -> int:
        """Returns `target`, for the whole array."""
        return self.target


def ignore_statistics(rows: list[Any]) -> None:
    """Drops the statistics of an exchange that has no `ExchangeStatistics`."""


def exchange_batches(
    job: ExchangeJob, report: Callable[[list[Any]], None], batches: Iterable[RecordBatch]
) -> Iterator[RecordBatch]:
    """Runs a task; the function that `mapInArrow` gets.

    Args:
        job: the settings of all tasks.
        report: receives the statistics when the task has succeeded.
        batches: the partition's rows.
    """
    yield from Exchanger(job, BarrierTask.current(), report).run(batches)


@final
class Exchanger:
    """A task of an exchange.

    Args:
        task: the rank and address of this task.
        report: receives the statistics when the task has succeeded.
    """

    def __init__(self, job: ExchangeJob, task: BarrierTask, report: Callable[[list[Any]], None]) -> None:
        self._job = job
        self._task = task
        self._report = report
        self._into = job.into or task.tasks
        self._attempt = 0
        self._rows_in = 0
        self._held_up_s = [0.0] * self._into
        self._failure: BaseException | None = None
        self._stopped = threading.Event()

    def run(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yields the rows that this task owns, as they arrive.

        Raises:
            ConfigError: the settings do not fit the stage.
            NetstackError: a task failed; the root cause of several errors.
        """
        with ExitStack() as stack:
            network, peers = self._meet(stack)
            try:
                yield from self._exchange(network, peers, batches)
            except BaseException as error:
                root = root_cause(error if self._failure is None else self._failure)  # the reader ends with the feeder
                if _is_of_peer(root):
                    time.sleep(_BLAME_S)
                else:
                    with contextlib.suppress(NetstackError):  # the partition may be closed by now
                        self._partition.fail(cause_text(root))
                        network.close()  # after the failure has been sent
                raise root from None

    def _meet(self, stack: ExitStack) -> tuple[blocking.NetworkEnvironment, Sequence[str]]:
        """Listens, and exchanges addresses with all tasks."""
        network: blocking.NetworkEnvironment | None = None
        hello: dict[str, Any] = {
            "host": self._task.host,
            "address": "",
            "attempt": self._task.attempt,
            "error": self._problem(),
        }
        if not hello["error"]:
            try:
                network = stack.enter_context(self._listen())
                hello["address"] = network.address
                self._partition = network.create_partition(f"exchange-{self._task.rank}", subpartitions=self._into)
            except (NetstackError, OSError) as error:
                hello["error"] = f"cannot listen at {self._task.host}: {cause_text(error)}"
        peers = self._task.meet(hello)
        for rank, peer in enumerate(peers):
            if peer["error"]:
                raise ConfigError(f"exchange: task {rank} on {peer['host']}: {peer['error']}")
        assert network is not None
        self._attempt = max(int(peer["attempt"]) for peer in peers)
        return network, [str(peer["address"]) for peer in peers]

    def _problem(self) -> str:
        if self._into > self._task.tasks:
            return (
                f"into={self._into}, and the stage has {self._task.tasks} tasks, one for each partition of the"
                " DataFrame: lower into"
            )
        if self._job.build and own_build() != self._job.build:
            return (
                f"it runs build {own_build()} of netstack, the driver {self._job.build}: the archive that the driver"
                " sends must come first in the path of the worker's Python"
            )
        return ""

    def _listen(self) -> blocking.NetworkEnvironment:
        config = self._job.config(self._task.tasks, self._into, has_gate=self._task.rank < self._into)
        return open_on_free_port(self._task.host, self._job.ports, config, Secret(self._job.token))

    def _exchange(
        self, network: blocking.NetworkEnvironment, peers: Sequence[str], batches: Iterable[RecordBatch]
    ) -> Iterator[RecordBatch]:
        task, began_s = self._task, time.monotonic()
        selector = TargetSelector()
        writer = blocking.RecordWriter(
            self._partition, selector=selector, format="arrow", buffer_timeout_s=self._job.buffer_timeout_s
        )
        gate = reader = None
        if task.rank < self._into:
            channels = [ChannelDescriptor(address, f"exchange-{rank}", task.rank) for rank, address in enumerate(peers)]
            gate = network.open_gate(channels, timeout_s=self._job.setup_timeout_s)
            reader = blocking.RecordReader(gate, format="arrow")
        feeder = threading.Thread(
            target=self._feed, args=(batches, writer, selector, reader), name="netstack feeder", daemon=True
        )
        feeder.start()
        counts = [[0, 0] for _ in peers]
        try:
            while reader is not None and (received := reader.next_records()) is not None:
                count = counts[reader.channel_index]
                for batch in received:
                    count[0] += batch.num_rows
                    count[1] += 1
                    yield batch
            feeder.join()
            if self._failure is not None:
                raise self._failure
            writer.wait_consumed()
        finally:
            self._stopped.set()
        gate_statistics = None if gate is None else gate.statistics()
        output, totals = self._partition.statistics(), network.statistics()
        rows: list[Any] = [
            ExchangeTask(
                stage=task.stage,
                attempt=self._attempt,
                task=task.rank,
                host=task.host,
                build=build.describe(),
                rows_in=self._rows_in,
                rows_out=sum(rows for rows, _ in counts),
                seconds=time.monotonic() - began_s,
                soft_backpressured_s=output.soft_backpressured.total_s,
                hard_backpressured_s=output.hard_backpressured.total_s,
                idle_s=0.0 if gate_statistics is None else gate_statistics.idle.total_s,
                held_up_s=tuple(self._held_up_s),
                memory_bytes=network.config.memory_bytes,
                peak_process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                bytes_sent=totals.bytes_sent,
                bytes_received=totals.bytes_received,
            )
        ]
        if gate_statistics is not None:
            pairs = [(rows_of, batches_of) for rows_of, batches_of in counts]
            rows += channels_of(gate_statistics, task.stage, self._attempt, task.rank, pairs)
        self._report(rows)

    def _feed(
        self,
        batches: Iterable[RecordBatch],
        writer: blocking.RecordWriter,
        selector: TargetSelector,
        reader: blocking.RecordReader | None,
    ) -> None:
        """Writes the partition's rows, in a thread of its own."""
        try:
            blamed_s = 0.0
            for owner, piece in self._pieces(batches):
                selector.target = owner
                began_s = time.monotonic()
                writer.emit_batch(piece)
                if time.monotonic() - began_s > _HELD_S:
                    blamed_s = self._blame(blamed_s)
            writer.finish()
        except BaseException as error:
            if _is_of_peer(root_cause(error)):
                self._stopped.wait(_BLAME_S)  # the reader, if it can, learns why the peer failed
            if self._stopped.is_set():
                return  # the task has ended and closed the partition
            self._failure = error
            try:
                self._partition.fail(cause_text(root_cause(error)))
                if reader is not None:
                    reader.close()
            except NetstackError:
                pass  # closed in the meantime

    def _blame(self, blamed_s: float) -> float:
        """Attributes the writer's waits to the consumer with the longest queue. Returns the attributed seconds."""
        output = self._partition.statistics()
        waited_s = output.soft_backpressured.total_s + output.hard_backpressured.total_s
        queues = [each.queued_bytes for each in output.subpartitions]
        self._held_up_s[queues.index(max(queues))] += waited_s - blamed_s
        return waited_s

    def _pieces(self, batches: Iterable[RecordBatch]) -> Iterator[tuple[int, RecordBatch]]:
        """Yields (owner, rows) in pieces of about `batch_bytes`, the rows of an owner in order."""
        import numpy as np
        import pyarrow as pa

        into, size = self._into, self._job.batch_bytes
        owners = group_owners(into, self._job.max_parallelism or default_max_parallelism(into))
        for batch in _gathered(batches, min(size * into, _GATHER_AT_MOST_BYTES)):
            self._rows_in += batch.num_rows
            if into == 1:
                yield from ((0, piece) for piece in slices(batch, size))
                continue
            chosen = owners_of([_column(batch, key) for key in self._job.keys], owners)
            order = np.argsort(chosen, kind="stable")
            sorted_rows = batch.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))
            ends = np.cumsum(np.bincount(chosen, minlength=into)).tolist()
            for owner, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if end > start:
                    yield from ((owner, piece) for piece in slices(sorted_rows.slice(start, end - start), size))


def _is_of_peer(error: BaseException) -> bool:
    """Whether the error follows from the failure of a peer."""
    is_cut = isinstance(error, RemoteProtocolError) and error.code is ErrorCode.TRUNCATED_STREAM
    return is_cut or is_secondary(error)


def _column(batch: RecordBatch, key: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    index = batch.schema.get_field_index(key)
    assert index >= 0, "the driver has checked the key"
    column = batch.column(index)
    # Java's hashes of 0.0 and -0.0 differ, but Spark groups and joins them as one value.
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _gathered(batches: Iterable[RecordBatch], size_bytes: int) -> Iterator[RecordBatch]:
    """Combines batches to about that size; the last one may be smaller."""
    import pyarrow as pa

    waiting: list[RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= size_bytes:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, waiting_bytes = [], 0
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
