"""Every whole exchange between two Flink processes, with one of our sides in the place of one of theirs."""

from __future__ import annotations

import functools
import itertools
import shlex
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from flink_peers import CANCEL, CLOSE, DATA_TYPES, RecordedConsumer, RecordedProducer
from flink_vectors import CASES, Vector, channel_ids, frames_in, load, partition_requests

from netstack.buffer.elements import EventBuffer
from netstack.cli.consume import Consumption, ConsumePlan, RecordPayloads
from netstack.cli.exchange import ChannelAccount
from netstack.cli.serve import ServePlan, Serving
from netstack.config import NetworkConfig
from netstack.errors import ConnectionLost, PartitionNotFound
from netstack.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfData,
    Event,
    UserEvent,
    encode_event,
)
from netstack.outbound.selector import BroadcastSelector
from netstack.record.flink import LongFormat, StreamElement, StreamElementFormat, StreamRecord
from netstack.runtime.record_writer import RecordWriter
from netstack.runtime.task_manager import open_task_manager
from netstack.transport import transport_for
from netstack.wire import flink_events

vector_of = functools.lru_cache(load)
numbers = itertools.count()

CUTS = {"whole": (0,), "in pieces": (1, 2, 3, 5, 46, 47, 48, 300)}


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; what would hang fails after a virtual hour."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(*arguments, **keywords)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def option(words: str, name: str, default: str = "") -> str:
    """What follows an option."""
    found = shlex.split(words)
    return found[found.index(name) + 1] if name in found else default


def url() -> str:
    return f"memory://replay-{next(numbers)}"


# Our consumer.


def consume_plan(vector: Vector, address: str) -> ConsumePlan:
    options = vector.settings["consume"]
    requests = partition_requests(vector.requests)
    subpartitions = [struct.unpack_from(">i", request, 69)[0] for request in requests]
    floating = int(option(options, "--floating-buffers", "8"))
    kind = option(options, "--payload", "long")
    close_after = option(options, "--close-after-buffers")
    return ConsumePlan(
        address,
        requests[0][9:69].hex(),
        range(subpartitions[0], subpartitions[-1] + 1),
        NetworkConfig(
            dialect="flink-2.3.0",
            segment_size_bytes=vector.segment_size,
            memory_bytes=vector.segment_size * 64,
            exclusive_buffers_per_channel=struct.unpack_from(">i", requests[0], 93)[0],
            floating_buffers_per_gate=floating,
            partition_request_retries=int(option(options, "--retries", "0")),
        ),
        kind,
        limit=int(close_after) * vector.segment_size // 12 if close_after else None,
    )


@pytest.mark.parametrize("cuts", list(CUTS))
@pytest.mark.parametrize("case", [c for c in CASES if vector_of(c).outcome])
@virtual
async def test_our_consumer(case: str, cuts: str) -> None:
    vector = vector_of(case)
    address = url()
    listener = await transport_for(address).listen(address)
    consumption = Consumption(consume_plan(vector, address))
    producer: RecordedProducer | None = None
    async with trio.open_nursery() as nursery:

        async def produce() -> None:
            nonlocal producer
            producer = RecordedProducer(vector, await listener.accept(), CUTS[cuts])
            await producer.play()

        nursery.start_soon(produce)
        await consumption.run()
    listener.close()
    assert producer is not None
    document = consumption.document()
    print(document, producer.kinds())
    assert vector.outcome is not None
    for key in ("records", "payload_bytes", "crc32", "events", "buffers", "buffer_bytes", "watermark"):
        assert [channel[key] for channel in document["channels"]] == [c[key] for c in vector.outcome["channels"]], key
    assert document["outcome"] == vector.outcome["outcome"]
    assert not producer.complaints


# Our producer: `netstack serve` where it can do what was asked of Flink's, else the library.


def partition_of(vector: Vector) -> str:
    name: str = vector.producer[0]["partition_id"]
    return name


def serve_config(vector: Vector) -> NetworkConfig:
    return NetworkConfig(
        dialect="flink-2.3.0",
        segment_size_bytes=vector.segment_size,
        memory_bytes=vector.segment_size * 64,
        partition_request_timeout_s=int(option(vector.settings["serve"], "--listener-timeout-ms", "10000")) / 1000,
    )


def events_asked_for(vector: Vector) -> dict[int, list[tuple[Event, DataType | None]]]:
    """By the number of the record they come before: the event, and its data type if it is not the usual one."""
    words = shlex.split(vector.settings["serve"])
    found: dict[int, list[tuple[Event, DataType | None]]] = {}
    for name, value in zip(words, words[1:], strict=False):
        if name == "--event":
            before, _, text = value.partition(":")
            kind, *fields = text.split(",")
            numbers = {key: int(number) for key, _, number in (field.partition("=") for field in fields)}
            found.setdefault(int(before), []).append(event_named(kind, numbers))
    return found


def event_named(kind: str, fields: dict[str, int]) -> tuple[Event, DataType | None]:
    time_ns = 1_700_000_000_000 * 10**6
    checkpoint_id = fields.get("id", 0)
    match kind:
        case "aligned" | "savepoint" | "full" | "stop-with-savepoint" | "drain-with-savepoint":
            return CheckpointBarrier(checkpoint_id, time_ns), None
        case "timeout":
            return CheckpointBarrier(checkpoint_id, time_ns, Alignment.ALIGNED, fields["ms"] * 10**6), None
        case "at-least-once":
            return CheckpointBarrier(checkpoint_id, time_ns, Alignment.AT_LEAST_ONCE), None
        case "cancel-checkpoint":
            return CancelCheckpointMarker(checkpoint_id), None
        case "watermark-event" | "watermark-event-aligned":
            is_aligned = kind.endswith("aligned")
            payload = b"\0\2wm" + bytes((is_aligned,)) + struct.pack(">iq", 0, fields["value"])
            return UserEvent("WatermarkEvent", payload), DataType.BLOCKING_EVENT if is_aligned else None
        case "connection-descriptor":
            return UserEvent("SubtaskConnectionDescriptor", struct.pack(">ii", 1, 2)), None
        case "recovery-metadata":
            return UserEvent("RecoveryMetadata", struct.pack(">i", 3)), None
        case "end-of-output-channel-state":
            return UserEvent("EndOfOutputChannelStateEvent"), DataType.BLOCKING_EVENT
        case "end-of-segment":
            return UserEvent("EndOfSegmentEvent"), None
        case "end-of-superstep":
            return UserEvent("EndOfSuperstepEvent"), None
        case "ping":
            return UserEvent("FlinkWirePeer$PingEvent", struct.pack(">q", fields["value"])), None
        case "announce":
            barrier = CheckpointBarrier(checkpoint_id, time_ns, Alignment.ALIGNED, 5000 * 10**6)
            announced = flink_events.encode(flink_events.from_native(barrier))
            payload = struct.pack(">i", fields["seq"]) + announced
            return UserEvent("EventAnnouncement", payload), DataType.PRIORITY_EVENT
        case _:
            raise AssertionError(kind)


def elements_asked_for(vector: Vector, records: int) -> Iterator[StreamElement]:
    """As the recorded producer had them: its extras first, watermarks in between, the last one at the end."""
    decoder = StreamElementFormat(LongFormat())
    data = b"".join(frame[47:] for frame in frames_in(vector.responses) if frame[41] in DATA_TYPES)
    found = list(elements_in(data, decoder))
    assert sum(isinstance(element, StreamRecord) for element in found) == records
    yield from found


def elements_in(data: bytes, format: StreamElementFormat) -> Iterator[StreamElement]:
    while data:
        size = int.from_bytes(data[:4], "big")
        yield format.decode(memoryview(data[4 : 4 + size]))
        data = data[4 + size :]


async def produce_by_library(vector: Vector, address: str) -> None:
    """What the options of the recorded producer say."""
    words = vector.settings["serve"]
    records = int(option(words, "--records"))
    fail_at = int(option(words, "--fail-at", "-1"))
    flush_every = int(option(words, "--flush-every", "0"))
    end = option(words, "--end", "drain")
    is_elements = "--stream-elements" in words
    async with open_task_manager(address, serve_config(vector)) as manager:
        await trio.sleep(int(option(words, "--register-delay-ms", "0")) / 1000)
        partition = manager.create_partition(
            partition_of(vector), subpartitions=int(option(words, "--subpartitions", "1"))
        )
        writer = RecordWriter(
            partition,
            format=StreamElementFormat(LongFormat()) if is_elements else LongFormat(),
            selector=BroadcastSelector() if option(words, "--route") == "broadcast" else None,
            buffer_timeout_s=int(option(words, "--buffer-timeout-ms", "1000000")) / 1000,
        )
        events = events_asked_for(vector)
        values = elements_asked_for(vector, records) if is_elements else iter(range(records))
        for index, value in enumerate(values):
            for event, data_type in events.get(index, ()):
                if data_type in (None, DataType.PRIORITY_EVENT):
                    await writer.broadcast_event(event, priority=data_type is not None)
                else:
                    await writer.flush()
                    writer.close()
                    for subpartition in partition.subpartitions:
                        subpartition.add(EventBuffer(encode_event(event), data_type))
                    manager.kick()
            if index == fail_at:
                await writer.flush()
                await trio.sleep(0.5)
                return  # the process ends
            await writer.emit(value)
            await trio.sleep(int(option(words, "--record-pause-us", "0")) / 1e6)
            if flush_every and (index + 1) % flush_every == 0:
                await writer.flush()
                await trio.sleep(0.06)
        if end != "no-end-of-data":
            await writer.broadcast_event(EndOfData(drain=end == "drain"))
        if "--await-ack" in words:
            await writer.wait_consumed()
        partition.finish()
        partition.close()
        manager.kick()
        await trio.sleep(5)


BY_LIBRARY = {
    "aligned-barrier": "an event among the records",
    "broadcast": "every record to both",
    "buffer-timeout": "a pause after each record",
    "end-of-partition-only": "no EndOfData",
    "every-event": "events among the records",
    "flush-every-two": "flushes by hand",
    "no-drain": "EndOfData without drain",
    "partition-registered-late": "created five seconds late",
    "producer-fails": "stops in the middle",
    "stream-elements": "elements around the values",
    "timeout-barrier": "an event among the records",
}


async def produce_by_command(vector: Vector, address: str) -> Serving:
    """`netstack serve`."""
    words = vector.settings["serve"]
    plan = ServePlan(
        address,
        partition_of(vector),
        int(option(words, "--subpartitions", "1")),
        serve_config(vector),
        records=int(option(words, "--records")),
        timeout_s=20,
    )
    serving = Serving(plan, lambda address: None)
    await serving.run()
    return serving


@pytest.mark.parametrize("cuts", list(CUTS))
@pytest.mark.parametrize("case", [c for c in CASES if "BLOCKING" not in vector_of(c).settings["serve"]])
@virtual
async def test_our_producer(case: str, cuts: str) -> None:
    vector = vector_of(case)
    address = url()
    serving: list[Serving] = []
    async with trio.open_nursery() as nursery:

        async def produce() -> None:
            if case in BY_LIBRARY:
                await produce_by_library(vector, address)
            else:
                serving.append(await produce_by_command(vector, address))

        nursery.start_soon(produce)
        await trio.sleep(0.01)
        consumer = RecordedConsumer(vector, await transport_for(address).connect(address), CUTS[cuts])
        await consumer.play()
    print(case, consumer.kinds(), [s.document() for s in serving], consumer.complaints, consumer.events)
    print([len(f) for f in consumer.heard], [len(f) for f in frames_in(vector.responses)])
