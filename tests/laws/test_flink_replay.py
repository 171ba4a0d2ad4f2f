"""Every whole exchange between two Flink processes, with one of our sides in the place of one of theirs."""

from __future__ import annotations

import functools
import itertools
import math
import shlex
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from laws.flink_peers import (
    ACK,
    BUFFER,
    CANCEL,
    CLOSE,
    DATA_TYPES,
    ERROR,
    REQUEST,
    RESUME,
    RecordedConsumer,
    RecordedProducer,
    parts_of,
)
from laws.flink_vectors import CASES, Vector, channel_ids, frames_in, load, partition_requests
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, PartitionNotFound
from netstack.base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfData,
    Event,
    UserEvent,
    encode_event,
)
from netstack.base.ids import ResultPartitionType
from netstack.base.transport import transport_for
from netstack.cli.consume import ConsumePlan, Consumption
from netstack.cli.exchange import CLOSED_EARLY
from netstack.cli.serve import ServePlan, Serving
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.outbound.selector import BroadcastSelector
from netstack.exchange.record.flink import (
    LongFormat,
    StreamElement,
    StreamElementFormat,
    StreamRecord,
    value_format_named,
)
from netstack.exchange.wire import flink_events
from netstack.network import kept_partitions
from netstack.network.environment import open_network
from netstack.network.writer import RecordWriter

vector_of = functools.lru_cache(load)
numbers = itertools.count()

NOT_FOUND = b"org.apache.flink.runtime.io.network.partition.PartitionNotFoundException"
CUTS = {"whole": (0,), "in pieces": (1, 2, 3, 5, 46, 47, 48, 300)}


async def at_once(work: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return work()


def option(words: str, name: str, default: str = "") -> str:
    """What follows an option."""
    actual = shlex.split(words)
    return actual[actual.index(name) + 1] if name in actual else default


def url() -> str:
    return f"memory://replay-{next(numbers)}"


COMMAND, LIBRARY = "netstack serve", "the library"
RAW_CLIENT = "not replayed: a hand-made client stood there, no consumer of Flink"
REPLAYED = {
    # case: (who is in the producer's place, and why not the command), and why nobody is in the consumer's place
    "aligned-barrier": ((LIBRARY, "an event among the records"), ""),
    "backwards-messages": ((COMMAND, ""), ""),
    "blocking-hash-lz4": ((COMMAND, ""), ""),
    "blocking-lz4-incompressible": ((LIBRARY, "bytes by chance, line ends among them"), ""),
    "blocking-sort": ((COMMAND, ""), ""),
    "blocking-sort-lz4": ((COMMAND, ""), ""),
    "blocking-sort-lzo": ((COMMAND, ""), ""),
    "blocking-sort-zstd": ((COMMAND, ""), ""),
    "broadcast": ((LIBRARY, "every record to both"), ""),
    "buffer-timeout": ((LIBRARY, "a pause after each record"), ""),
    "closed-early-no-reuse": ((COMMAND, ""), ""),
    "empty-partition": ((COMMAND, ""), ""),
    "end-of-partition-only": ((LIBRARY, "no EndOfData"), ""),
    "every-event": ((LIBRARY, "events among the records"), ""),
    "finished-no-reuse": ((COMMAND, ""), ""),
    "flush-every-two": ((LIBRARY, "flushes by hand"), ""),
    "no-drain": ((LIBRARY, "EndOfData without drain"), ""),
    "no-exclusive-buffers": ((COMMAND, ""), ""),
    "one-channel-small": ((COMMAND, ""), ""),
    "partition-not-found": ((COMMAND, ""), ""),
    "partition-registered-late": ((LIBRARY, "created five seconds late"), ""),
    "producer-fails": ((LIBRARY, "stops in the middle"), ""),
    "raw-ack-for-nobody": ((COMMAND, ""), RAW_CLIENT),
    "raw-bad-magic": ((COMMAND, ""), RAW_CLIENT),
    "raw-cancel-for-nobody": ((COMMAND, ""), RAW_CLIENT),
    "raw-credit-for-nobody": ((COMMAND, ""), RAW_CLIENT),
    "raw-no-initial-credit": ((COMMAND, ""), RAW_CLIENT),
    "raw-resume-unblocked": ((COMMAND, ""), RAW_CLIENT),
    "raw-task-event-for-nobody": ((COMMAND, ""), RAW_CLIENT),
    "raw-unknown-kind": ((COMMAND, ""), RAW_CLIENT),
    "stream-elements": ((LIBRARY, "elements around the values"), ""),
    "timeout-barrier": ((LIBRARY, "an event among the records"), ""),
}
PRODUCED = list(REPLAYED)
CONSUMED = [case for case, (_, why_not) in REPLAYED.items() if not why_not]


def test_every_exchange_is_in_the_table() -> None:
    assert sorted(REPLAYED) == CASES
    assert [case for case in CASES if vector_of(case).outcome] == CONSUMED


# Our consumer.

ERRORS = {"partition-not-found": PartitionNotFound, "producer-fails": ConnectionLost}
"""What stands for PartitionNotFoundException and RemoteTransportException."""


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
@pytest.mark.parametrize("case", CONSUMED)
async def test_our_consumer(autojump_clock: MockClock, case: str, cuts: str) -> None:
    if case.endswith("zstd"):
        pytest.importorskip("pyarrow", reason="reads ZSTD")
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
    assert vector.outcome is not None
    for key in ("records", "payload_bytes", "crc32", "events", "buffers", "buffer_bytes", "watermark"):
        assert [channel[key] for channel in document["channels"]] == [c[key] for c in vector.outcome["channels"]], key
    assert document["outcome"] == vector.outcome["outcome"]
    assert type(consumption.error) is ERRORS.get(case, type(None))
    assert not producer.complaints
    message = Counter(producer.kinds())
    recorded = Counter(frame[8] for frame in frames_in(vector.requests))
    assert (message[REQUEST], message[RESUME]) == (recorded[REQUEST], recorded[RESUME])
    is_early = document["outcome"] == CLOSED_EARLY  # then we say that no more is needed, where Flink's only cancels
    assert message[ACK] == sum(is_early or "EndOfData" in channel["events"] for channel in document["channels"])
    if consumption.error is None:
        assert message[CANCEL] == len(document["channels"])
        assert producer.kinds()[-1] == CLOSE


@pytest.mark.parametrize("case", [case for case in CONSUMED if case not in ("every-event", "no-exclusive-buffers")])
async def test_our_consumer_of_a_producer_in_a_hurry(autojump_clock: MockClock, case: str) -> None:
    """In the two that are left out, more follows than a consumer has buffers for."""
    if case.endswith("zstd"):
        pytest.importorskip("pyarrow", reason="reads ZSTD")
    vector = vector_of(case)
    address = url()
    listener = await transport_for(address).listen(address)
    consumption = Consumption(consume_plan(vector, address))
    async with trio.open_nursery() as nursery:

        async def produce() -> None:
            await RecordedProducer(vector, await listener.accept()).blurt()

        nursery.start_soon(produce)
        await consumption.run()
    listener.close()
    assert vector.outcome is not None
    document = consumption.document()
    assert document["outcome"] == vector.outcome["outcome"]
    for key in ("records", "payload_bytes", "crc32", "events", "buffers", "buffer_bytes", "watermark"):
        assert [channel[key] for channel in document["channels"]] == [c[key] for c in vector.outcome["channels"]], key


# Our producer: `netstack serve` where it can do what was asked of Flink's, else the library.


def partition_of(vector: Vector) -> str:
    name: str = vector.producer[0]["partition_id"]
    return name


def serve_config(vector: Vector) -> NetworkConfig:
    words = vector.settings["serve"]
    return NetworkConfig(
        shuffle_compression="lz4" if "--codec" in words else "none",  # LZ4 also where theirs is another
        sort_min_subpartitions=int(option(words, "--sort-min-parallelism", "1")),
        sort_buffer_bytes=64 * 1024,
        dialect="flink-2.3.0",
        segment_size_bytes=vector.segment_size,
        memory_bytes=vector.segment_size * 64,
        partition_request_timeout_s=int(option(vector.settings["serve"], "--listener-timeout-ms", "10000")) / 1000,
    )


def events_asked_for(vector: Vector) -> dict[int, list[tuple[Event, DataType | None]]]:
    """By the number of the record they come before: the event, and its data type if it is not the usual one."""
    words = shlex.split(vector.settings["serve"])
    actual: dict[int, list[tuple[Event, DataType | None]]] = {}
    for name, value in itertools.pairwise(words):
        if name == "--event":
            before, _, text = value.partition(":")
            kind, *fields = text.split(",")
            numbers = {key: int(number) for key, _, number in (field.partition("=") for field in fields)}
            actual.setdefault(int(before), []).append(event_named(kind, numbers))
    return actual


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
    actual = list(elements_in(data, decoder))
    assert sum(isinstance(element, StreamRecord) for element in actual) == records
    yield from actual


def elements_in(data: bytes, format: StreamElementFormat) -> Iterator[StreamElement]:
    while data:
        size = int.from_bytes(data[:4], "big")
        yield format.decode(memoryview(data[4 : 4 + size]))
        data = data[4 + size :]


def bytes_asked_for(vector: Vector) -> Iterator[bytes]:
    """The values of the recorded producer: byte arrays."""
    data = b"".join(b"".join(parts_of(frame)) for frame in frames_in(vector.responses) if frame[41] in DATA_TYPES)
    while data:
        size = int.from_bytes(data[4:8], "big")
        yield data[8 : 8 + size]
        data = data[8 + size :]


async def produce_by_library(vector: Vector, address: str) -> None:
    """What the options of the recorded producer say."""
    words = vector.settings["serve"]
    records = int(option(words, "--records"))
    fail_at = int(option(words, "--fail-at", "-1"))
    flush_every = int(option(words, "--flush-every", "0"))
    end = option(words, "--end", "drain")
    is_elements = "--stream-elements" in words
    async with open_network(address, serve_config(vector)) as manager:
        await trio.sleep(int(option(words, "--register-delay-ms", "0")) / 1000)
        partition = manager.create_partition(
            partition_of(vector),
            subpartitions=int(option(words, "--subpartitions", "1")),
            kind=ResultPartitionType[option(words, "--type", "PIPELINED_BOUNDED")],
        )
        is_bytes = option(words, "--payload") == "bytes"
        format = value_format_named("bytes") if is_bytes else LongFormat()
        writer = RecordWriter(
            partition,
            format=StreamElementFormat(LongFormat()) if is_elements else format,
            selector=BroadcastSelector() if option(words, "--route") == "broadcast" else None,
            buffer_timeout_s=int(milliseconds) / 1000
            if (milliseconds := option(words, "--buffer-timeout-ms", ""))
            else None,
        )
        writer.overdraw()  # the recorded one did not look for room either
        events = events_asked_for(vector)
        values: Iterator[Any] = iter(range(records))
        if is_elements:
            values = elements_asked_for(vector, records)
        elif is_bytes:
            values = bytes_asked_for(vector)
        for index, value in enumerate(values):
            for event, data_type in events.get(index, ()):
                if data_type in (None, DataType.PRIORITY_EVENT):
                    await writer.broadcast_event(event, priority=data_type is not None)
                else:
                    await writer.flush()
                    writer.close()
                    for subpartition in partition._engine.subpartitions:
                        subpartition.add(EventBuffer(encode_event(event), data_type))
                    manager.flush_connections()
            if index == fail_at:
                await writer.flush()
                await trio.sleep(0.5)
                return  # the process ends
            await writer.emit(value)
            await trio.sleep(int(option(words, "--record-pause-us", "0")) / 1e6)
            if flush_every and (index + 1) % flush_every == 0:
                await writer.flush()
                await trio.sleep(0.06)
        if partition._engine.store is not None:
            await writer.finish()
            await trio.sleep(5)
            return
        if end != "no-end-of-data":
            await writer.broadcast_event(EndOfData(drain=end == "drain"))
        if "--await-ack" in words:
            acknowledged = trio.Event()
            engine = partition._engine
            engine.on_acknowledged = lambda: acknowledged.set() if engine.all_acknowledged else None
            await acknowledged.wait()
        partition._engine.finish()
        partition._engine.close()
        manager.flush_connections()
        await trio.sleep(5)


async def produce_by_command(vector: Vector, address: str, serving: list[Serving]) -> None:
    """`netstack serve`, which is stopped when the recorded one was."""
    words = vector.settings["serve"]
    plan = ServePlan(
        address,
        partition_of(vector),
        int(option(words, "--subpartitions", "1")),
        serve_config(vector),
        records=int(option(words, "--records")),
        ack_timeout_s=1.0 if "--await-ack" in words else 0.0,
        type=ResultPartitionType[option(words, "--type", "PIPELINED_BOUNDED")],
    )
    serving.append(Serving(plan, lambda address: None))
    with trio.move_on_after(10 if vector.producer[-1]["stop_requested"] else math.inf):
        await serving[0].run()


@pytest.mark.parametrize("cuts", list(CUTS))
@pytest.mark.parametrize("case", PRODUCED)
async def test_our_producer(autojump_clock: MockClock, case: str, cuts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_partitions, "in_thread", at_once)  # virtual time would not wait for a thread
    vector = vector_of(case)
    address = url()
    serving: list[Serving] = []
    (who, _), _ = REPLAYED[case]
    async with trio.open_nursery() as nursery:
        if who == LIBRARY:
            nursery.start_soon(produce_by_library, vector, address)
        else:
            nursery.start_soon(produce_by_command, vector, address, serving)
        await trio.sleep(0.01)
        consumer = RecordedConsumer(vector, await transport_for(address).connect(address), CUTS[cuts])
        await consumer.play()
    assert not consumer.complaints
    recorded = frames_in(vector.responses)
    received = consumer.heard
    if case == "producer-fails":  # Flink's says nothing
        assert received[-1][8] == ERROR
        received = received[:-1]
    check_errors(received, recorded)
    for channel in channel_ids(vector.requests):
        ours, theirs = (list(of_channel(frames, channel)) for frames in (received, recorded))
        if case == "buffer-timeout":  # who flushed when is chance
            assert contents_of(ours) == contents_of(theirs)
        elif case in ("blocking-sort-lzo", "blocking-sort-zstd"):  # LZ4 fits other numbers of buffers into a frame
            assert stored_contents_of(received, channel) == stored_contents_of(recorded, channel)
        elif case.startswith("blocking"):  # two LZ4s compress the same to different bytes
            assert [stored(frame) for frame in on_channel(received, channel)] == [
                stored(frame) for frame in on_channel(recorded, channel)
            ]
        elif case == "every-event":  # the kinds of savepoints are lost above the codec
            assert list(map(event_name_of, ours)) == list(map(event_name_of, theirs))
        else:
            assert ours == theirs
    if vector.producer[-1]["stop_requested"]:  # long after the consumer has said all: it sees who closes first
        is_request_first = next(is_request for is_request, piece in vector.chunks if not piece)
        assert consumer.has_ended != is_request_first
    if serving:
        check_summary(serving[0], vector)


def of_channel(frames: list[bytes], channel: bytes) -> Iterator[bytes]:
    """The BufferResponses for a channel, without their backlogs: what is queued when is chance."""
    for frame in frames:
        if frame[8] == BUFFER and frame[9:25] == channel:
            yield frame[:37] + frame[41:]


def on_channel(frames: list[bytes], channel: bytes) -> list[bytes]:
    """The BufferResponses for a channel."""
    return [frame for frame in frames if frame[8] == BUFFER and frame[9:25] == channel]


def stored(frame: bytes) -> tuple[bytes, int, int, list[bytes]]:
    """A frame of what was kept in files: subpartition, number of parts and sequence; data type, whether compressed;
    the parts."""
    return frame[25:37], frame[41], frame[42], parts_of(frame)


def stored_contents_of(frames: list[bytes], channel: bytes) -> list[tuple[int, list[bytes]]]:
    """Data, and events, whatever frames they came in."""
    return [
        (data_type, [b"".join(part for frame in run for part in parts_of(frame))])
        for data_type, run in itertools.groupby(on_channel(frames, channel), key=lambda frame: frame[41])
    ]


def contents_of(frames: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Data, and events."""
    data = b"".join(frame[43:] for frame in frames if frame[37] in DATA_TYPES)
    return data, [frame[37:] for frame in frames if frame[37] not in DATA_TYPES]


def event_name_of(frame: bytes) -> object:
    """What stands for a frame whose event may have lost something."""
    if frame[37] in DATA_TYPES:
        return frame
    event = flink_events.decode(frame[43:])
    return (frame[37], event.checkpoint_id) if isinstance(event, flink_events.Barrier) else frame


def check_errors(ours: list[bytes], theirs: list[bytes]) -> None:
    """They concern the same channel, or the connection; a missing partition is of the same class."""
    actual, expected = ([frame for frame in frames if frame[8] == ERROR] for frames in (ours, theirs))
    assert len(actual) == len(expected)
    for our, their in zip(actual, expected, strict=True):
        is_scoped = their[-17] == 1 and their[-16:] in (bytes(range(16)), *channel_ids_in(ours + theirs))
        assert our[-17:] == their[-17:] if is_scoped else our[-1] == their[-1] == 0
        assert (NOT_FOUND in our) == (NOT_FOUND in their)


def channel_ids_in(frames: list[bytes]) -> list[bytes]:
    return [frame[-16:] for frame in frames if NOT_FOUND in frame]


def check_summary(serving: Serving, vector: Vector) -> None:
    document = serving.document()
    (partition,) = vector.producer[-1]["partitions"]
    assert document["outcome"] == partition["outcome"]
    assert document["all_released"] == vector.producer[-1]["all_released"]
    for key in ("records", "payload_bytes", "crc32"):
        assert [channel[key] for channel in document["channels"]] == [c[key] for c in partition["subpartitions"]]
    if serving.is_released:
        assert all(channel["events"] == ["EndOfData", "EndOfPartitionEvent"] for channel in document["channels"])
    events = [line["event"].partition("(")[0] for line in vector.producer if line["kind"] == "task_event"]
    assert document["task_events"] == events
