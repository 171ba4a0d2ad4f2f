"""Producers that attack a consumer over real TCP: what fails is one channel or the stream, everybody else goes on."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from system.hostile_rig import (
    ALIGNED,
    ANY_PORT,
    BACKLOG,
    BUFFER,
    CANCEL,
    CHANNEL_ERROR,
    CONFIG,
    CREDIT,
    DATA,
    END_OF_DATA,
    END_OF_PARTITION,
    EVENT,
    GOODBYE,
    HEADER,
    HELLO,
    OPEN,
    PRIORITY,
    RECORDS,
    SEGMENT,
    Raw,
    buffer,
    dialled,
    frame,
    hello,
    lent,
    opening,
    read,
    record,
    server,
    until,
    victim,
    write,
)

from netstack import (
    ChannelDescriptor,
    ChannelFailed,
    CheckpointBarrier,
    ConnectionLost,
    EndOfData,
    ErrorCode,
    NetworkConfig,
    NetworkEnvironment,
    PartitionNotFound,
    ProducerFailed,
    RecordReader,
    RemoteProtocolError,
    UserEvent,
    open_network,
)
from netstack.base.events import encode_event
from netstack.exchange.inbound.channel import EVENT_OVERHEAD_BYTES, MAX_WAITING_EVENT_BYTES
from netstack.network.handles import InputGate

pytestmark = pytest.mark.usefixtures("every_descriptor_back")


class Attacked(NamedTuple):
    """A victim that reads the channels 0 and 1 of a raw producer."""

    raw: Raw
    manager: NetworkEnvironment
    gate: InputGate
    reader: RecordReader
    address: str

    async def record_of(self, channel: int) -> Any:
        item = await anext(self.reader)
        assert self.reader.channel_index == channel
        return item

    async def other_channel_goes_on(self, sequence: int = 0) -> None:
        await self.raw.send(buffer(1, sequence, record(b"still here")))
        assert await self.record_of(1) == b"still here"

    async def channel_fails(self, kind: type[ChannelFailed] = ChannelFailed) -> ChannelFailed:
        with pytest.raises(kind) as caught:
            await anext(self.reader)
        assert f"channel 0 ('p' subpartition 0 at {self.address})" in str(caught.value)
        return caught.value


@asynccontextmanager
async def attacked(config: NetworkConfig = CONFIG, features: int = 1) -> AsyncIterator[Attacked]:
    async with victim(config) as manager, server() as hostile:
        before = lent(manager)
        gates: list[InputGate] = []

        async def open_gate() -> None:
            gates.append(
                await manager.open_gate([ChannelDescriptor(hostile.address, "p", number) for number in range(2)])
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_gate)
            raw = await hostile.accept()
            await raw.send(hello(features=features))
            await raw.expect(HELLO)
            for number in range(2):
                got = await raw.expect(OPEN, number)
                assert got.payload == struct.pack(">IIIB", number, 1, CONFIG.exclusive_buffers_per_channel, 1) + b"p"
        async with raw.stream:
            reader = RecordReader(gates[0])
            yield Attacked(raw, manager, gates[0], reader, hostile.address)
            reader.close()
            await raw.until_closed()
        await until(lambda: lent(manager) == before)


async def test_data_without_credit() -> None:
    async with attacked() as rig:
        # More than there are buffers: exclusive ones, floating ones, and those read meanwhile.
        await rig.raw.send(*(buffer(0, number, record(b"%d" % number)) for number in range(40)))
        delivered = []

        async def read_on() -> None:
            while True:
                delivered.append(await rig.record_of(0))

        with pytest.raises(ChannelFailed, match=r"channel 0 \('p' subpartition 0 at ") as caught:
            await read_on()
        assert caught.value.code is ErrorCode.CREDIT_VIOLATION
        assert f"(sequence {len(delivered)})" in caught.value.text
        assert delivered == [b"%d" % number for number in range(len(delivered))], "what had a buffer is delivered"
        assert len(delivered) >= CONFIG.exclusive_buffers_per_channel
        await rig.raw.expect(CANCEL, 0)
        await rig.raw.send(*(buffer(0, 40 + number, bytes(SEGMENT)) for number in range(20)))  # dropped
        await rig.other_channel_goes_on()


@pytest.mark.parametrize("second", [0, 2, 2**32 - 1], ids=["repeated", "skipped", "far off"])
@pytest.mark.parametrize("data_type", [DATA, EVENT], ids=["data", "event"])
async def test_a_sequence_gap(second: int, data_type: int) -> None:
    async with attacked() as rig:
        payload = record(b"x") if data_type == DATA else encode_event(UserEvent("x"))
        await rig.raw.send(buffer(0, 0, payload, data_type), buffer(0, second, payload, data_type))
        await rig.record_of(0)
        error = await rig.channel_fails()
        assert error.code is ErrorCode.SEQUENCE_GAP
        assert f"expected buffer 1, got {second}" in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.other_channel_goes_on()


async def test_sequence_numbers_wrap() -> None:
    async with attacked() as rig:
        rig.gate._engine.channels[0]._expected_sequence = 2**32 - 1  # type: ignore[attr-defined]  # 4 billion buffers later
        await rig.raw.send(buffer(0, 2**32 - 1, record(b"last")), buffer(0, 0, record(b"first")))
        assert [await rig.record_of(0) for _ in range(2)] == [b"last", b"first"]
        rig.gate._engine.channels[1]._expected_sequence = 2**32 - 1  # type: ignore[attr-defined]
        event = encode_event(UserEvent("x"))
        await rig.raw.send(buffer(1, 2**32 - 1, event, EVENT), buffer(1, 0, event, EVENT))
        assert [await rig.record_of(1) for _ in range(2)] == [UserEvent("x")] * 2


@pytest.mark.parametrize("asks", ["consumer", "producer"])
async def test_a_wrong_checksum(asks: str) -> None:
    config = replace(CONFIG, checksum=asks == "consumer")
    async with attacked(config, features=1 if asks == "consumer" else 0x0001_0001) as rig:
        good = record(b"good")
        await rig.raw.send(buffer(0, 0, good, checksum=zlib.crc32(good)))
        assert await rig.record_of(0) == b"good"
        await rig.raw.send(buffer(0, 1, record(b"bad!"), checksum=zlib.crc32(good)))
        error = await rig.channel_fails()
        assert error.code is ErrorCode.CHECKSUM_MISMATCH
        assert f"CRC-32 {zlib.crc32(record(b'bad!')):08x}" in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.raw.send(buffer(1, 0, good, checksum=zlib.crc32(good)))
        assert await rig.record_of(1) == b"good"


async def test_checksums_are_not_looked_at_unless_both_know_them() -> None:
    async with attacked(replace(CONFIG, checksum=True), features=0) as rig:
        await rig.raw.send(buffer(0, 0, record(b"x"), checksum=1234))
        assert await rig.record_of(0) == b"x"


GARBAGE = {
    "nothing": (b"", EVENT, "type -1, 0 bytes"),
    "unknown type": (b"\x63", EVENT, "type 99, 1 bytes"),
    "cut short": (encode_event(CheckpointBarrier(1))[:-1], ALIGNED, "type 1 with 33 bytes"),
    "priority": (b"\x63", PRIORITY, "type 99"),
    "an end that is a barrier": (
        encode_event(CheckpointBarrier(1)),
        END_OF_DATA,
        "CheckpointBarrier came under data type",
    ),
    "the wrong end": (encode_event(EndOfData()), END_OF_PARTITION, "EndOfData came under data type END_OF_PARTITION"),
    "a hidden end": (b"\x00", EVENT, "EndOfPartition came under data type EVENT"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_events(name: str) -> None:
    payload, data_type, hint = GARBAGE[name]
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"before")), buffer(0, 1, payload, data_type))
        assert await rig.record_of(0) == b"before"
        error = await rig.channel_fails()
        assert error.code is ErrorCode.MALFORMED_FRAME
        assert hint in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.other_channel_goes_on()


async def test_a_flood_of_events_that_nobody_reads() -> None:
    """Events cost no credit: a bound of their own stands between a producer and the consumer's memory."""
    large = UserEvent("x", bytes(16_000))
    event = encode_event(large)
    most = MAX_WAITING_EVENT_BYTES // (len(event) + EVENT_OVERHEAD_BYTES)
    async with attacked() as rig:
        await rig.raw.send(*(buffer(0, number, event, EVENT) for number in range(20)))
        for _ in range(20):
            assert await rig.record_of(0) == large
        kinds = EVENT, PRIORITY
        await rig.raw.send(*(buffer(0, 20 + number, event, kinds[number % 2]) for number in range(most + 1)))
        await rig.raw.expect(CANCEL, 0)
        for _ in range(most):
            await rig.record_of(0)
        error = await rig.channel_fails()
        assert error.code is ErrorCode.CREDIT_VIOLATION
        assert "bytes of events" in error.text
        await rig.other_channel_goes_on()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FAILED, ProducerFailed),
        (ErrorCode.PARTITION_NOT_FOUND, PartitionNotFound),
        (ErrorCode.INTERNAL, ChannelFailed),
        (999, ChannelFailed),
    ],
)
async def test_the_producer_s_error_reaches_its_reader(code: int, kind: type[ChannelFailed]) -> None:
    async with attacked() as rig:
        await rig.raw.send(frame(CHANNEL_ERROR, code.to_bytes(2, "big") + b"division by zero", channel=0))
        error = await rig.channel_fails(kind)
        assert error.code == (code if code < 999 else ErrorCode.INTERNAL)
        assert error.text == "division by zero"
        await rig.other_channel_goes_on()


async def test_frames_for_channels_that_are_gone_or_never_were() -> None:
    """Errors and backlogs of nobody's channel change nothing."""
    async with attacked() as rig:
        for number in (0, 99):
            await rig.raw.send(
                frame(CHANNEL_ERROR, b"\x00\x0c!", channel=number), frame(BACKLOG, bytes(4), channel=number)
            )
        await rig.channel_fails()
        await rig.raw.send(buffer(0, 0, record(b"too late")), buffer(0, 77, b"\x63", EVENT))
        await rig.other_channel_goes_on()


async def granted(raw: Raw) -> int:
    """Credits for channel 0 in the next CREDIT frame."""
    pairs = list(struct.iter_unpack(">II", (await raw.expect(CREDIT)).payload))
    assert {number for number, _ in pairs} == {0}
    return sum(count for _, count in pairs)


@pytest.mark.parametrize("backlog", [1000, 2**32 - 1])
async def test_a_promise_that_is_too_large_gets_what_there_is(backlog: int) -> None:
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"x"), backlog=backlog), frame(BACKLOG, b"\xff" * 4, channel=0))
        assert await rig.record_of(0) == b"x"
        assert CONFIG.floating_buffers_per_gate <= await granted(rig.raw) <= CONFIG.floating_buffers_per_gate + 1
        await rig.other_channel_goes_on()


async def test_empty_buffers_return_their_credit() -> None:
    """Nobody reads them, and still a producer that keeps to its credit is never stuck."""
    async with attacked() as rig:
        left = CONFIG.exclusive_buffers_per_channel
        for number, payload in enumerate([b""] * 20 + [record(b"x")]):
            while not left:
                left += await granted(rig.raw)
            await rig.raw.send(buffer(0, number, payload))
            left -= 1
        assert await rig.record_of(0) == b"x"


BROKEN = {
    "a buffer too long": (HEADER.pack(SEGMENT + 1, BUFFER, DATA, 0, 0, 0, 0, 0), ErrorCode.FRAME_TOO_LARGE),
    "a buffer of a channel never opened": (buffer(2, 0, b"x"), ErrorCode.UNKNOWN_CHANNEL),
    "an event of a channel never opened": (buffer(2, 0, b"\0", END_OF_PARTITION), ErrorCode.UNKNOWN_CHANNEL),
    "a consumer's frame": (opening(0, "p"), ErrorCode.UNEXPECTED_FRAME),
    "an unknown data type": (buffer(0, 0, b"x", 8), ErrorCode.MALFORMED_FRAME),
    "hello again": (hello(), ErrorCode.UNEXPECTED_FRAME),
    "another protocol all of a sudden": (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", ErrorCode.FRAME_TOO_LARGE),
}


@pytest.mark.parametrize("before", [[], [bytes(SEGMENT)]], ids=["small", "bulk"])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_stream_fails_every_channel_on_it(name: str, before: list[bytes]) -> None:
    data, expected = BROKEN[name]
    async with attacked() as rig:
        # An unfinished record of zeros: nothing to read yet, but the assembler expects full buffers now.
        start = record(bytes(2 * SEGMENT))[:SEGMENT] if before else b""
        await rig.raw.send(*([buffer(0, 0, start)] if before else []), data)
        for _ in range(2):
            with pytest.raises(ConnectionLost) as caught:
                await anext(rig.reader)
            assert rig.address in str(caught.value)
            assert isinstance(caught.value.__cause__, RemoteProtocolError)
            assert caught.value.__cause__.code is expected
        code, _ = await rig.raw.connection_error()
        assert code is expected


@pytest.mark.whole
@pytest.mark.parametrize("cut", [1, 24, 25, 24 + SEGMENT - 1, 24 + SEGMENT, 24 + SEGMENT + 1, 2 * (24 + SEGMENT) - 1])
@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_producer_that_vanishes(cut: int, how: str) -> None:
    stream = buffer(0, 0, record(bytes(2 * SEGMENT))[:SEGMENT]) + buffer(1, 0, bytes(SEGMENT))
    async with attacked() as rig:
        await rig.raw.send(stream[:cut])
        if how == "end":
            await rig.raw.stream.send_eof()
        else:
            await until(lambda: rig.manager.statistics().dialled[-1].connection.bytes_received >= len(hello()) + cut)
            rig.raw.reset()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"subpartition [01] at tcp"):
                await anext(rig.reader)
        if how == "reset":
            rig.raw.stream.socket.close()


async def test_a_producer_that_leaves_properly_without_ending_its_channels() -> None:
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"x")), frame(GOODBYE))
        await rig.raw.stream.send_eof()
        assert await rig.record_of(0) == b"x"
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="was closed"):
                await anext(rig.reader)
        assert (await rig.raw.expect(GOODBYE)).payload == b""


async def test_a_producer_s_goodbye_is_answered() -> None:
    async with attacked() as rig:
        await rig.raw.send(frame(GOODBYE))
        assert [got.kind for got in await rig.raw.until_closed()] == [GOODBYE]


async def test_a_producer_that_shuts_down_says_what_became_of_its_channels() -> None:
    """The last frames of a closing TaskManager come before its goodbye."""
    async with victim() as manager:
        async with open_network(ANY_PORT, CONFIG) as leaving:
            leaving.create_partition("p", subpartitions=1)
            gate = await manager.open_gate([ChannelDescriptor(leaving.address, "p")])
            await until(lambda: any(actual.channels for actual in leaving.statistics().accepted))
        with pytest.raises(PartitionNotFound, match="partition 'p' was released"), contextlib.closing(gate):
            await anext(RecordReader(gate))


async def test_reading_and_writing_in_the_same_instant_as_an_attack() -> None:
    """A flood of rubbish from ten peers while honest data flows through the same TaskManager."""
    async with victim() as manager, open_network(ANY_PORT, CONFIG) as honest, trio.open_nursery() as nursery:
        gate = await honest.open_gate([ChannelDescriptor(manager.address, "busy")])
        done = trio.Event()

        async def rubbish(seed: int) -> None:
            chance = random.Random(seed)
            while not done.is_set():
                async with dialled(manager, hello() * chance.randrange(2), chance.randbytes(100)) as raw:
                    with contextlib.suppress(trio.BrokenResourceError):
                        await raw.stream.send_eof()
                    await raw.until_closed()

        for seed in range(10):
            nursery.start_soon(rubbish, seed)
        async with trio.open_nursery() as inner:
            inner.start_soon(write, manager, "busy", RECORDS * 10)
            assert await read(gate) == RECORDS * 10
        done.set()
