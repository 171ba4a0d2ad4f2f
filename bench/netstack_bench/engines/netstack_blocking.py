"""Producer or consumer in a thread that blocks (`netstack.blocking`) instead of a trio task."""

from __future__ import annotations

from netstack.blocking import RecordReader, RecordWriter, open_network

from ..endpoints import PARTITION, address_of, config_of, descriptors_of
from ..pacing import clock_ns
from ..places.local.worker_io import ConsumerIo, Facts, ProducerIo
from ..spec import RunSpec

TAKE_RECORDS = 1024  # read one by one, then verified together


def produce_blocking(spec: RunSpec, io: ProducerIo) -> Facts:
    """Writes until the run ends, then waits until the consumer has read everything; runs in a thread of its own."""
    with open_network(address_of(spec, io.scratch / "netstack.sock"), config_of(spec)) as manager:
        partition = manager.create_partition(PARTITION, subpartitions=spec.channels)
        writer = RecordWriter(partition, buffer_timeout_s=spec.buffer_timeout_s)
        io.publish(manager.address)
        io.ready()
        emit = writer.emit
        while (span := io.next_span()) is not None:
            for record in io.source.records(*span):
                emit(record)
        writer.finish()
        writer.wait_consumed()
        wrote = partition.statistics()
        return Facts(buffers=wrote.buffers, wire_bytes=manager.statistics().bytes_sent)


def consume_blocking(spec: RunSpec, io: ConsumerIo) -> Facts:
    """Reads until every channel has ended; runs in a thread of its own."""
    with open_network(address_of(spec, io.scratch / "consumer.sock"), config_of(spec)) as manager:
        gate = manager.open_gate(descriptors_of(spec, io.peer_address()))
        io.ready()
        reader = RecordReader(gate)
        if spec.rate_per_s is not None:
            _take_stamped(io, reader)
        else:
            _take(io, reader)
        buffers = sum(channel.buffers for channel in gate.statistics().channels)
        facts = Facts(buffers=buffers, wire_bytes=manager.statistics().bytes_received)
        gate.close()
    return facts


def _take_stamped(io: ConsumerIo, reader: RecordReader) -> None:
    feed = io.verifier.feed
    for record in reader:
        feed(reader.channel_index, (record,), clock_ns())


def _take(io: ConsumerIo, reader: RecordReader) -> None:
    feed = io.verifier.feed
    channel, left = 0, TAKE_RECORDS
    taken: list[bytes] = []
    for record in reader:
        if reader.channel_index != channel or not left:
            feed(channel, taken)
            taken.clear()
            channel, left = reader.channel_index, TAKE_RECORDS
        left -= 1
        taken.append(record)
    if taken:
        feed(channel, taken)
