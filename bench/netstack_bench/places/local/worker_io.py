"""The interface between an engine in a worker process and the runner.

The conversation, each line a JSON object with `event`:

    worker -> runner   address (where it listens) · ready · progress (records so far, each 0.25 s) · done (the summary)
                       error (a typed error: kind and text)
    runner -> worker   address (of the other worker) · go (start_ns, CLOCK_MONOTONIC)
                       finish (to the consumer: the producer's summary)

An engine is a module with `produce(spec, io)` and `consume(spec, io)`, both plain or both async; each returns `Facts`:

    def produce(spec, io):                              def consume(spec, io):
        connection = connect(io.peer_address())             listener = listen()
        io.ready()                                          io.publish(listener.address)
        while (span := io.next_span()) is not None:         io.ready()
            send(io.source.records(*span))                  while (records := receive()):
        connection.close()                                      io.verifier.feed(0, records)
        return Facts()                                      return Facts()

Either side may be the one that listens. A trio engine uses the `..._async` variants of blocking methods.
"""

from __future__ import annotations

import json
import os
import queue
import select
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, final

import numpy.typing as npt

from ...arrivals import Int64s, column, warm_ns
from ...generator import INDEX_BYTES, MASK, Source, filler, span_records, word_sum
from ...host import cpu_seconds
from ...pacing import Pacer, Sampler, clock_ns, due_ns
from ...rows import RowSource, RowVerifier
from ...spec import RunSpec
from ...verifier import Delivery, Order, RecordVerifier, Verifier, order_of

if TYPE_CHECKING:
    import pyarrow as pa

HEARTBEAT_S = 0.25
"""Time between progress messages; a worker that sends none counts as dead."""

AnySource: TypeAlias = Source | RowSource
Waited = TypeVar("Waited")

_RUNNER_EXITED = 3  # exit code of a worker whose runner has exited


def _exit() -> None:
    os._exit(_RUNNER_EXITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The report of an engine about its side of a run; None where it has no such figure."""

    buffers: int | None = None  # data buffers sent (producer) or received (consumer)
    wire_bytes: int | None = None  # written to (producer) or read from (consumer) the connection, headers included
    credits: int | None = None  # announced
    average_buffer_fill: float | None = None  # payload bytes in a data buffer as a part of its size, 0 to 1
    congestion_control: str | None = None  # of the TCP connection
    debloated_buffer_bytes: int | None = None  # the last debloated size
    metrics: dict[str, float] | None = None  # of `netstack_bench.run_metrics`, as the timeline
    timeline: list[dict[str, float]] | None = None
    costs: list[dict[str, Any]] | None = None  # time by activity (`netstack_bench.run_metrics`), in profiled runs
    checkpoints: dict[str, Any] = field(
        default_factory=dict
    )  # number and durations (`netstack_bench.cell_checkpoints`)
    verified: bool = True  # False for a bare loop, whose delivery is proven by the count alone
    warnings: tuple[str, ...] = ()


class Link:
    """The connection to the runner; a thread reads messages and sends heartbeats."""

    def __init__(self, read_fd: int, write_fd: int, on_runner_exit: Callable[[], None] = _exit) -> None:
        """Starts the thread. `on_runner_exit` is called when the runner has exited: no worker outlives it."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_runner_exit = on_runner_exit
        self._lock = threading.Lock()
        self._inbox: dict[str, queue.SimpleQueue[dict[str, Any]]] = {
            event: queue.SimpleQueue() for event in ("job", "address", "go", "finish")
        }
        self.progress: Callable[[], int] = int
        self.before_go: Callable[[], object] = int
        """Called when an engine is set up."""
        threading.Thread(target=self._read, name="runner-link", daemon=True).start()

    def send(self, event: str, **fields: Any) -> None:
        """Writes one message."""
        view = memoryview(json.dumps({"event": event, **fields}).encode() + b"\n")
        with self._lock:
            while view:
                view = view[os.write(self._write_fd, view) :]

    def wait(self, event: str) -> dict[str, Any]:
        """Blocks until the runner sends `event`."""
        return self._inbox[event].get()

    def _read(self) -> None:
        pending = b""
        heartbeat = time.monotonic() + HEARTBEAT_S
        while True:
            wait_s = max(0.0, heartbeat - time.monotonic())
            if not select.select([self._read_fd], [], [], wait_s)[0]:
                heartbeat = time.monotonic() + HEARTBEAT_S
                self.send("progress", records=self.progress())
                continue
            chunk = os.read(self._read_fd, 1 << 16)
            if not chunk:
                self._on_runner_exit()
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self._inbox[message["event"]].put(message)


class SideIo:
    """What every worker has; `scratch` is a folder of this run, for sockets."""

    def __init__(self, link: Link, scratch: Path) -> None:
        self.scratch = scratch
        self._link = link

    def watch(self, records: Callable[[], int]) -> None:
        """Counts progress by this function."""
        self._link.progress = records

    def publish(self, address: str) -> None:
        """Sends this worker's address to the other worker."""
        self._link.send("address", address=address)


class WorkerIo(SideIo):
    """The interface of both roles; `start_ns` is the CLOCK_MONOTONIC time at which both start, 0 before the go."""

    def __init__(self, spec: RunSpec, link: Link, scratch: Path) -> None:
        super().__init__(link, scratch)
        self.spec = spec
        self.start_ns = 0
        self._cpu_at_start_s = 0.0

    def peer_address(self) -> str:
        """Waits for the address of the other worker."""
        return str(self._link.wait("address")["address"])

    async def peer_address_async(self) -> str:
        """`peer_address` for trio. Cancellation: the waiting thread ends with the process."""
        return await _in_thread(self.peer_address)

    def ready(self) -> None:
        """Reports that this side is set up, and waits for the go, which sets `start_ns` and starts the CPU count."""
        self._link.before_go()
        self._link.send("ready")
        message = self._link.wait("go")
        self._go(int(message["start_ns"]))
        self._cpu_at_start_s = cpu_seconds()

    async def ready_async(self) -> None:
        """`ready` for trio. Cancellation: the waiting thread ends with the process."""
        await _in_thread(self.ready)

    def cpu_s(self) -> float:
        """CPU seconds of this process since the go."""
        return cpu_seconds() - self._cpu_at_start_s

    def _go(self, start_ns: int) -> None:
        self.start_ns = start_ns


class DueRecords:
    """The records of a source that are due, span by span, and the emit times of sampled ones (`sampler`)."""

    def __init__(self, spec: RunSpec, source: AnySource) -> None:
        self.spec = spec
        self.source = source
        self.sampler = Sampler()
        self.start_ns = 0
        self._pacer: Pacer | None = None

    def begin(self, start_ns: int, *, spins: bool = True) -> None:
        """Sets when record 0 is due, and whether to spin until a record is due."""
        spec, records = self.spec, self.spec.records
        if isinstance(self.source, RowSource) and records is None and spec.seconds is None:
            records = self.source.rows
        self.start_ns = start_ns
        self._pacer = Pacer(
            start_ns=start_ns,
            most=span_records(spec),
            records=records,
            seconds=spec.seconds,
            rate_per_s=spec.rate_per_s,
            spins=spins,
        )

    @property
    def sent_records(self) -> int:
        """Records returned by `next_span` so far."""
        return self._pacer.sent_records if self._pacer else 0

    @property
    def stopped_ns(self) -> int:
        """When `next_span` ended the run."""
        return self._pacer.stopped_ns if self._pacer else 0

    def next_span(self) -> tuple[int, int] | None:
        """Waits until records are due.

        Returns:
            (index of the first, count) to send now, all of them; None when the run is over.
        """
        first = self._prepare()
        assert self._pacer is not None
        return self._sampled(first, self._pacer.next_span())

    async def next_span_async(self) -> tuple[int, int] | None:
        """`next_span` for trio; other tasks run while it waits.

        It is a checkpoint only if it waits. Cancellation: no records were returned.
        """
        first = self._prepare()
        assert self._pacer is not None
        return self._sampled(first, await self._pacer.next_span_async())

    def samples(self) -> tuple[Int64s, Int64s]:
        """(records, emit times); of rows the keys of lanes, because only the source has the lane of each."""
        indexes, times = self.sampler.samples()
        return (self.source.sample_keys(indexes) if isinstance(self.source, RowSource) else indexes), times

    def _prepare(self) -> int:
        """The index of the next record, which is made now if it is not due yet."""
        assert self._pacer is not None, "begin comes first"
        first = self._pacer.sent_records
        is_paced = self.spec.rate_per_s is not None and self.spec.emit == "record"
        if is_paced and isinstance(self.source, Source) and self._pacer.is_early:
            self.source.prepare(first)
        return first

    def _sampled(self, first: int, count: int) -> tuple[int, int] | None:
        if not count:
            return None
        rate_per_s = self.spec.rate_per_s
        if rate_per_s is None and self.spec.emit != "record":
            self.sampler.offer_batch(first, count)
        elif rate_per_s is None:
            self.sampler.offer(first + self._offset(count))
        elif isinstance(self.source, RowSource):  # rows carry no index, so the consumer cannot compute due times
            for index in range(first, first + count):
                self.sampler.offer(index, due_ns(self.start_ns, rate_per_s, index))
        return first, count

    def _offset(self, count: int) -> int:
        """The place of the sampled record in a span of this many."""
        return 0


class ProducerIo(WorkerIo, DueRecords):
    """The interface of a producer."""

    def __init__(self, spec: RunSpec, link: Link, scratch: Path) -> None:
        source = RowSource.of(spec) if spec.input_path else Source(spec.record_bytes, span_records(spec))
        DueRecords.__init__(self, spec, source)
        WorkerIo.__init__(self, spec, link, scratch)
        self.watch(lambda: self.sent_records)

    def _go(self, start_ns: int) -> None:
        self.begin(start_ns)


class ConsumerIo(WorkerIo):
    """The interface of a consumer, which feeds everything that arrives to `verifier`."""

    def __init__(self, spec: RunSpec, link: Link, scratch: Path) -> None:
        super().__init__(spec, link, scratch)
        self.verifier = verifier_of(spec, spec.channels)
        self.watch(lambda: self.verifier.received_records)

    def _go(self, start_ns: int) -> None:
        super()._go(start_ns)
        self.verifier.begin(start_ns, warm_from_ns(self.spec, start_ns))


def verifier_of(spec: RunSpec, lanes: int) -> Verifier:
    """The verifier of what one receiver gets of the records that a source distributes over its lanes."""
    if spec.input_path is not None:
        return RowVerifier(lanes)
    if spec.verify == "sample":
        return SampledVerifier(record_bytes=spec.record_bytes, channels=lanes, order=order_of(spec))
    return RecordVerifier(
        record_bytes=spec.record_bytes, channels=lanes, order=order_of(spec), rate_per_s=spec.rate_per_s
    )


def warm_from_ns(spec: RunSpec, start_ns: int) -> int:
    """The end of the warm-up of a run that starts at this time, for latencies of records with due times."""
    seconds = spec.seconds or 0.0
    if spec.records is not None and spec.rate_per_s is not None:
        seconds = spec.records / spec.rate_per_s
    return warm_ns(start_ns, start_ns + int(seconds * 1e9), spec.warmup_s)


async def _in_thread(wait: Callable[[], Waited]) -> Waited:
    import trio

    return await trio.to_thread.run_sync(wait, abandon_on_cancel=True)


EVERY: Final = 16
"""One of this many deliveries is checked completely."""

_INDEX: Final = struct.Struct("<Q")
_LOG_AT_ONCE: Final = 4096
"""Deliveries that are logged together: a numpy array for each would cost more than reading it."""


@final
class SampledVerifier(RecordVerifier):
    """Checks every byte of one delivery in sixteen, and both ends of the others.

    Proven for everything: the count, and that each channel's records arrive in order and once, by the first and last
    record of each delivery (an array, a list of records, a columnar batch). Lost, repeated or swapped deliveries and
    changed lengths are found. Proven for a sixteenth: every index and the sum of all bytes. Other damage inside a
    delivery is not detected.
    """

    def __init__(self, *, record_bytes: int, channels: int = 1, order: Order = Order.ROUND_ROBIN) -> None:
        super().__init__(record_bytes=record_bytes, channels=channels, order=order)
        self._deliveries = 0
        self._unlogged: list[tuple[int, int, int]] = []
        self._filler_sum = word_sum(filler(record_bytes))
        self.verified = f"1 in {EVERY}"

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed`."""
        if records:
            first, last = (int.from_bytes(records[at][:INDEX_BYTES], "little") for at in (0, -1))
            if self._is_sampled():
                self._look(super().feed, channel, records, first, now_ns)
            elif len(records[-1]) == self._record_bytes:
                self._take_ends(channel, first, last, len(records), now_ns)
            else:
                self._problem(f"channel {channel}: a record of {len(records[-1])} bytes among records of others")

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_array`."""
        count = len(array)
        if count:
            width = self._record_bytes
            if array.nbytes != count * width:
                self._look(super().feed_array, channel, array, int.from_bytes(array[:1].tobytes(), "little"), now_ns)
                return
            (first,) = _INDEX.unpack_from(array.data)
            if self._is_sampled():
                self._look(super().feed_array, channel, array, first, now_ns)
            else:
                (last,) = _INDEX.unpack_from(array.data, (count - 1) * width)
                self._take_ends(channel, first, last, count, now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_arrow`."""
        count = batch.num_rows
        if count:
            index = batch.column(0)
            first = index[0].as_py()
            if self._is_sampled() or batch.num_columns != (2 if self._row_words > 1 else 1):
                self._look(super().feed_arrow, channel, batch, first, now_ns)
            else:
                self._take_ends(channel, first, index[count - 1].as_py(), count, now_ns)

    def delivery(self) -> Delivery:
        """Implements `Verifier.delivery`; sums were compared on arrival."""
        return replace(super().delivery(), checksum=None)

    def _is_sampled(self) -> bool:
        self._deliveries += 1
        return self._deliveries % EVERY == 1

    def _look(self, feed: Any, channel: int, rows: Any, first: int, now_ns: int | None) -> None:
        before, records_before = self._checksum, self.received_records
        feed(channel, rows, now_ns)
        super().finish()
        count = self.received_records - records_before
        wanted = count * first + self._step * count * (count - 1) // 2 + count * self._filler_sum
        if (self._checksum - before - wanted) & MASK:
            self._problem(f"channel {channel}: bytes of the {count} records from {first} on differ from those sent")

    def _take_ends(self, channel: int, first: int, last: int, count: int, now_ns: int | None) -> None:
        now = clock_ns() if now_ns is None else now_ns
        self.arrivals.add(count, now)
        if last != first + (count - 1) * self._step:
            self._problem(f"channel {channel}: {count} records from {first} on end with {last}")
        self._take_run(channel, first, count)
        self._unlogged.append((first, count, now))
        if len(self._unlogged) == _LOG_AT_ONCE:
            self._log_ends()

    def finish(self) -> None:
        """Implements `Verifier.finish`."""
        super().finish()
        self._log_ends()

    def _log_ends(self) -> None:
        if self._unlogged:
            firsts, counts, times = (column(values) for values in zip(*self._unlogged, strict=True))
            self._unlogged.clear()
            self.arrivals.log(self.sample_keys(firsts), counts, times)
