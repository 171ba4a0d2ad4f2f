"""The netstack engine of `run`: a TaskManager in each process, one partition, one gate, and public calls in between.

Record `i` goes to channel `i % channels`; channel `c` is subpartition `c // connections` of connection `c %
connections`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import trio

from netstack import (
    ArrayReader,
    NetworkEnvironment,
    RecordReader,
    RecordWriter,
    open_network,
)
from netstack.exchange.outbound.selector import ChannelSelector, CustomSelector
from netstack.exchange.record.formats import format_named
from netstack.network.handles import InputGate, ResultPartition

from ..arrivals import warm_ns
from ..endpoints import PARTITION, address_of, config_of, descriptors_of
from ..generator import Source
from ..pacing import Throttle, clock_ns
from ..places.local.worker_io import AnySource, ConsumerIo, Facts, ProducerIo
from ..rows import RowSource
from ..run_metrics import Observation, observing, profiled
from ..spec import RunSpec
from ..verifier import Taker
from .netstack_blocking import consume_blocking, produce_blocking

_Feed = Callable[..., None]  # as `Taker.feed`
_STAMPED_RECORDS: Final = 4096  # at most, and as many bytes, read one by one and verified when the reader waits
_STAMPED_BYTES: Final = 1024 * 1024
TAKE_RECORDS: Final = 1024  # read one by one, then verified together, so that verification is not measured


async def produce(spec: RunSpec, io: ProducerIo) -> Facts:
    """Writes until the run ends, then waits until the consumer has read everything."""
    if spec.connections > 1:
        return await produce_spread(spec, io)
    if spec.write == "blocking":
        return await trio.to_thread.run_sync(produce_blocking, spec, io)
    address = address_of(spec, io.scratch / "netstack.sock")
    async with open_network(address, config_of(spec)) as manager:
        partition = manager.create_partition(PARTITION, subpartitions=spec.channels)
        writer = writer_of(spec, partition, io.source)
        io.publish(manager.address)
        await io.ready_async()
        async with observing(manager, io.start_ns, is_paced=spec.rate_per_s is not None) as observation:
            with profiled("producer", spec.profile) as costs:
                checkpoints = await _emit_between_barriers(spec, io, writer, partition)
        tcp = manager.tcp_facts().get("congestion_control")  # before the connection closes
        congestion_control = None if tcp is None else str(tcp)
        await writer.finish()
        await writer.wait_consumed()
        facts = _producer_facts(spec, manager, partition, congestion_control, observation, checkpoints)
        return facts if costs is None else replace(facts, costs=costs.table(facts.buffers, io.sent_records))


async def consume(spec: RunSpec, io: ConsumerIo) -> Facts:
    """Reads until every channel has ended."""
    if spec.read == "blocking":
        return await trio.to_thread.run_sync(consume_blocking, spec, io)
    address = address_of(spec, io.scratch / "consumer.sock")
    async with open_network(address, config_of(spec)) as manager:
        descriptors = descriptors_of(spec, await io.peer_address_async())
        each_alone = [[each] for each in descriptors] if spec.gates == "each" else [descriptors]
        gates = [await manager.open_gate(channels) for channels in each_alone]
        if spec.emit == "arrow":
            format_named("arrow")  # imports pyarrow, which takes as long as a short run
        await io.ready_async()
        async with observing(manager, io.start_ns, is_paced=spec.rate_per_s is not None) as observation:
            with profiled("consumer", spec.profile) as costs:
                if len(gates) > 1:
                    await _take_each(spec, io.verifier, gates)
                elif spec.checkpoints == "none":
                    await take_all(spec, io.verifier, gates[0])
                else:
                    from ..cell_checkpoints import take_between_barriers  # other runs need no scheduler

                    await take_between_barriers(spec, io.verifier.feed, gates[0], manager, io.scratch)
        facts = _consumer_facts(spec, manager, gates, observation)
        for gate in gates:
            gate.close()
        if costs is None:
            return facts
        return replace(facts, costs=costs.table(facts.buffers, io.verifier.received_records))


class Spans(Protocol):
    """Gives a producer the records that are due (`worker_io.ProducerIo`)."""

    @property
    def source(self) -> AnySource:
        """Makes the records."""

    async def next_span_async(self) -> tuple[int, int] | None:
        """Waits until records are due: (index of the first, count), or None when the run is over."""


async def _emit_between_barriers(
    spec: RunSpec, io: ProducerIo, writer: RecordWriter, partition: ResultPartition
) -> dict[str, Any]:
    if spec.checkpoints == "none":
        await emit_all(spec, io, writer)
        return {}
    from ..cell_checkpoints import Coordinator  # other runs need no scheduler

    from_ns = warm_ns(io.start_ns, io.start_ns + int((spec.seconds or 0.0) * 1e9), spec.warmup_s)
    coordinator = Coordinator(spec, io.scratch, writer, partition, from_ns)
    async with coordinator.running():
        await _produce_records(spec, io, writer, coordinator.emit)
    return coordinator.result()


async def emit_all(spec: RunSpec, io: Spans, writer: RecordWriter) -> None:
    """Emits all records that are due, as records, arrays or columnar batches. Cancellation: see `RecordWriter`."""
    if spec.emit == "record":
        await _produce_records(spec, io, writer, writer.emit)
    else:
        await _produce_batches(spec, io, writer)


async def take_all(spec: RunSpec, verifier: Taker, gate: InputGate) -> None:
    """Reads a gate to its end into a verifier, by record, buffer, array or columnar batch.

    Cancellation: records that were read but not verified are lost.
    """
    throttle = None if spec.consume_rate_per_s is None else Throttle(spec.consume_rate_per_s)
    if spec.emit == "arrow":
        await _consume_columns(spec, verifier, gate, throttle)
    elif spec.emit == "batch" and spec.input_path is None:
        await _consume_arrays(spec, verifier, gate, throttle)
    elif spec.rate_per_s is not None or throttle is not None:
        await _consume_stamped(spec, verifier.feed, gate, throttle)
    elif spec.read == "buffer":
        await _consume_buffers(verifier, gate)
    else:
        await _consume_records(verifier.feed, gate)


async def _take_each(spec: RunSpec, verifier: Taker, gates: Sequence[InputGate]) -> None:
    """Reads gates of one channel each to their ends; each takes its share of the consumer's rate."""
    rate = None if spec.consume_rate_per_s is None else spec.consume_rate_per_s / len(gates)

    async def take(channel: int, gate: InputGate) -> None:
        def feed(_channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
            verifier.feed(channel, records, now_ns)

        if spec.rate_per_s is not None or rate is not None:
            await _consume_stamped(spec, feed, gate, None if rate is None else Throttle(rate))
        else:
            await _consume_records(feed, gate)

    async with trio.open_nursery() as nursery:
        for channel, gate in enumerate(gates):
            nursery.start_soon(take, channel, gate)


async def _produce_records(
    spec: RunSpec, io: Spans, writer: RecordWriter, emit: Callable[[bytes], Awaitable[None]]
) -> None:
    emit_nowait = writer.emit_nowait
    records = io.source.records
    paced = spec.rate_per_s is not None
    while (span := await io.next_span_async()) is not None:
        for record in records(*span):
            try:
                emit_nowait(record)
            except trio.WouldBlock:
                await emit(record)
        if not paced or span[1] > 1:  # a paced producer that waits lets other tasks run; a late one does not wait
            await trio.lowlevel.checkpoint()


async def _produce_batches(spec: RunSpec, io: Spans, writer: RecordWriter) -> None:
    source: Any = io.source
    while (span := await io.next_span_async()) is not None:
        if spec.emit == "arrow":
            for batch in source.arrow(*span):
                await writer.emit_batch(batch)
        elif spec.input_path is not None:
            for record in source.records(*span):
                await writer.emit(record)
            await trio.lowlevel.checkpoint()
        else:
            await writer.emit_batch(source.array(*span))


async def _consume_arrays(spec: RunSpec, verifier: Taker, gate: InputGate, throttle: Throttle | None) -> None:
    feed = verifier.feed_array
    reader = ArrayReader(gate, record_bytes=spec.record_bytes)
    async for array in reader:
        if throttle is None:
            feed(reader.channel_index, array)
        else:
            await _feed_in_turn(throttle, feed, reader.channel_index, array)


async def _consume_columns(spec: RunSpec, verifier: Taker, gate: InputGate, throttle: Throttle | None) -> None:
    feed = verifier.feed_arrow
    reader = RecordReader(gate, format="arrow")
    async for batch in reader:
        if throttle is None:
            feed(reader.channel_index, batch)
        elif spec.input_path is None:
            await _feed_in_turn(throttle, feed, reader.channel_index, batch)
        else:  # rows of a file are verified batch by batch
            await throttle.turn(batch.num_rows)
            feed(reader.channel_index, batch)


async def _feed_in_turn(throttle: Throttle, feed: Callable[[int, Any], None], channel: int, rows: Any) -> None:
    for first in range(0, len(rows), throttle.step_records):
        part = rows[first : first + throttle.step_records]
        await throttle.turn(len(part))
        feed(channel, part)


async def _consume_stamped(spec: RunSpec, feed: _Feed, gate: InputGate, throttle: Throttle | None) -> None:
    """Stamps each record; records are verified while the reader or a held-back consumer waits, not between two."""
    reader = RecordReader[bytes](gate)
    most = 1 if throttle is not None else max(1, min(_STAMPED_RECORDS, _STAMPED_BYTES // spec.record_bytes))
    stamped: list[tuple[int, bytes, int]] = []

    def verify() -> None:
        for channel, record, now_ns in stamped:
            feed(channel, (record,), now_ns)
        stamped.clear()

    while True:
        try:
            records = reader.next_records_nowait()
        except trio.WouldBlock:
            verify()
            records = await reader.next_records()
        if records is None:
            break
        channel = reader.channel_index
        for record in records:
            if throttle is not None:
                await throttle.turn(1)
            stamped.append((channel, record, clock_ns()))
            if len(stamped) >= most:
                verify()
    verify()


async def _consume_records(feed: _Feed, gate: InputGate) -> None:
    reader = RecordReader(gate)
    taken: list[bytes] = []
    channel, left = 0, TAKE_RECORDS
    if gate.channel_count == 1:  # counts no more for each record than the loop of a peer
        async for record in reader:
            taken.append(record)
            left -= 1
            if not left:
                feed(0, taken)
                taken.clear()
                left = TAKE_RECORDS
    else:
        async for record in reader:
            if reader.channel_index != channel or not left:
                feed(channel, taken)
                taken.clear()
                channel, left = reader.channel_index, TAKE_RECORDS
            left -= 1
            taken.append(record)
    if taken:
        feed(channel, taken)


async def _consume_buffers(verifier: Taker, gate: InputGate) -> None:
    feed = verifier.feed
    reader = RecordReader[bytes](gate)
    next_records_nowait = reader.next_records_nowait
    while True:
        try:
            records = next_records_nowait()
        except trio.WouldBlock:
            records = await reader.next_records()
        if records is None:
            return
        feed(reader.channel_index, records)


def selector_of(source: AnySource) -> ChannelSelector | None:
    """The channel selector: rows with keys by key group, everything else round robin."""
    if not isinstance(source, RowSource) or source.lanes is None:
        return None
    lanes = source.lanes.tolist()
    position = -1

    def lane(_key: object, _channels: int) -> int:
        nonlocal position
        position = (position + 1) % len(lanes)
        return int(lanes[position])

    return CustomSelector(lane)


def writer_of(spec: RunSpec, partition: ResultPartition, source: AnySource) -> RecordWriter:
    """The record writer of a source."""
    form = "arrow" if spec.emit == "arrow" else "bytes"
    selector = selector_of(source)
    return RecordWriter(partition, selector=selector, format=form, buffer_timeout_s=spec.buffer_timeout_s)


def _producer_facts(
    spec: RunSpec,
    manager: NetworkEnvironment,
    partition: ResultPartition,
    congestion_control: str | None,
    observation: Observation,
    checkpoints: dict[str, Any],
) -> Facts:
    statistics = partition.statistics()
    capacity = statistics.buffers * spec.segment_size_bytes
    return Facts(
        buffers=statistics.buffers,
        wire_bytes=manager.statistics().bytes_sent,
        average_buffer_fill=statistics.bytes / capacity if capacity else None,
        congestion_control=congestion_control,
        checkpoints=checkpoints,
        metrics=observation.result(),
        timeline=observation.timeline(),
    )


def _consumer_facts(
    spec: RunSpec, manager: NetworkEnvironment, gates: Sequence[InputGate], observation: Observation
) -> Facts:
    statistics = [gate.statistics() for gate in gates]
    channels = [channel for each in statistics for channel in each.channels]
    debloated = [each.debloated_buffer_bytes for each in statistics if each.debloated_buffer_bytes is not None]
    return Facts(
        buffers=sum(channel.buffers for channel in channels),
        wire_bytes=manager.statistics().bytes_received,
        credits=sum(channel.announced_credit for channel in channels) if spec.credit else None,
        debloated_buffer_bytes=round(sum(debloated) / len(debloated)) if debloated else None,
        metrics=observation.result(),
        timeline=observation.timeline(),
    )


async def produce_spread(spec: RunSpec, io: ProducerIo) -> Facts:
    """Writes until the run ends, then waits until the consumer has read everything."""
    count = spec.connections
    async with AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(
                open_network(address_of(spec, io.scratch / f"netstack-{number}.sock"), config_of(spec))
            )
            for number in range(count)
        ]
        partitions = [manager.create_partition(PARTITION, subpartitions=spec.channels // count) for manager in managers]
        writers = [
            RecordWriter(partition, format="bytes", buffer_timeout_s=spec.buffer_timeout_s) for partition in partitions
        ]
        io.publish(" ".join(manager.address for manager in managers))
        await io.ready_async()
        await _emit(spec, io, writers)
        for writer in writers:
            await writer.finish()
        for writer in writers:
            await writer.wait_consumed()
        return Facts(
            buffers=sum(partition.statistics().buffers for partition in partitions),
            wire_bytes=sum(manager.statistics().bytes_sent for manager in managers),
        )


async def _emit(spec: RunSpec, io: ProducerIo, writers: list[RecordWriter]) -> None:
    source = io.source
    assert isinstance(source, Source)
    count = len(writers)
    while (span := await io.next_span_async()) is not None:
        first = span[0]
        if spec.emit == "batch":
            array = source.array(*span)
            for number, writer in enumerate(writers):
                mine = array[(number - first) % count :: count]
                if len(mine):
                    await writer.emit_batch(np.ascontiguousarray(mine))
            continue
        for index, record in enumerate(source.records(*span), first):
            writer = writers[index % count]
            try:
                writer.emit_nowait(record)
            except trio.WouldBlock:
                await writer.emit(record)
        await trio.lowlevel.checkpoint()
