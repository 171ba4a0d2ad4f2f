"""Events of Flink: every one comes back, padded as Flink does; what they are above the codec; bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ErrorCode, RemoteProtocolError
from netstack.base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
)
from netstack.exchange.wire.flink_events import (
    CHECKPOINT,
    FULL_CHECKPOINT,
    NO_TIMEOUT_MS,
    SAVEPOINT,
    SUSPEND_SAVEPOINT,
    TERMINATE_SAVEPOINT,
    Barrier,
    ClassEvent,
    EndOfInputChannelStateEvent,
    EndOfOutputChannelStateEvent,
    EndOfSegmentEvent,
    EndOfSuperstepEvent,
    EventAnnouncement,
    FlinkEvent,
    RecoveryMetadata,
    SubtaskConnectionDescriptor,
    WatermarkEvent,
    decode,
    encode,
    encode_exact,
    flink_name,
    from_native,
    to_native,
)

MS = 1_000_000
START_MS = 1_700_000_000_000

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(min_codepoint=1, max_codepoint=0xD7FF), max_size=60)
locations = st.none() | st.binary(max_size=40)
barriers = st.one_of(
    st.builds(
        Barrier,
        i64,
        i64,
        st.sampled_from([CHECKPOINT, FULL_CHECKPOINT]),
        st.none(),
        locations,
        st.sampled_from(Alignment),
        i64,
    ),
    st.builds(
        Barrier,
        i64,
        i64,
        st.sampled_from([SAVEPOINT, SUSPEND_SAVEPOINT, TERMINATE_SAVEPOINT]),
        st.integers(0, 1),
        locations,
        st.sampled_from(Alignment),
        i64,
    ),
)
events: st.SearchStrategy[FlinkEvent] = st.one_of(
    barriers,
    st.sampled_from(
        [
            EndOfPartition(),
            EndOfData(),
            EndOfData(drain=False),
            EndOfSuperstepEvent(),
            EndOfSegmentEvent(),
            EndOfOutputChannelStateEvent(),
            EndOfInputChannelStateEvent(),
        ]
    ),
    st.builds(CancelCheckpointMarker, i64),
    st.builds(SubtaskConnectionDescriptor, i32, i32),
    st.builds(RecoveryMetadata, i32),
    st.builds(WatermarkEvent, names, st.booleans(), i64 | st.booleans()),
    st.builds(EventAnnouncement, i32, barriers),
)


@given(events)
def test_events_come_back(event: FlinkEvent) -> None:
    assert decode(encode(event)) == event
    assert decode(encode_exact(event)) == event
    assert encode(event).startswith(encode_exact(event)) or isinstance(event, EventAnnouncement)


@given(events, st.binary(max_size=20))
def test_what_follows_an_event_is_ignored(event: FlinkEvent, more: bytes) -> None:
    assert decode(encode_exact(event) + more) == event


@given(names, st.binary(max_size=200))
def test_events_of_any_class_keep_what_follows(name: str, payload: bytes) -> None:
    event = ClassEvent(name, payload)
    assert decode(encode_exact(event)) == event
    padded = encode(event)
    assert len(padded) == max(128, 6 + len(name.encode()) + len(payload))
    assert decode(padded) == ClassEvent(name, payload.ljust(122 - len(name.encode()), b"\0"))


BARRIER = Barrier(1, START_MS, CHECKPOINT, None, None, Alignment.ALIGNED, NO_TIMEOUT_MS)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (BARRIER, "00000001 0000000000000001 0000018bcfe56800 00 ffffffff 01 7fffffffffffffff 00000000"),
        (
            Barrier(1, START_MS, CHECKPOINT, None, None, Alignment.UNALIGNED, NO_TIMEOUT_MS),
            "00000001 0000000000000001 0000018bcfe56800 00 ffffffff 02 7fffffffffffffff 00000000",
        ),
        (
            Barrier(1, START_MS, SAVEPOINT, 0, b"file:/sp", Alignment.ALIGNED, NO_TIMEOUT_MS),
            "00000001 0000000000000001 0000018bcfe56800 01 00 00000008 66696c653a2f7370 01 7fffffffffffffff 000000",
        ),
        (CancelCheckpointMarker(1), "00000004 0000000000000001"),
        (
            EventAnnouncement(7, Barrier(1, START_MS, CHECKPOINT, None, None, Alignment.ALIGNED, 5000)),
            "00000006 00000007 00000001 0000000000000001 0000018bcfe56800 00 ffffffff 01 0000000000001388 00000000",
        ),
        (EndOfData(), "00000008 00"),
        (EndOfData(drain=False), "00000008 01"),
        (EndOfPartition(), "00000000"),
        (WatermarkEvent("wm", False, 42), "0000000b 0002 776d 00 00000000 000000000000002a" + " 00" * 107),
        (SubtaskConnectionDescriptor(1, 2), "00000007 00000001 00000002"),
        (RecoveryMetadata(3), "0000000a 00000003"),
    ],
)
def test_events_in_flinks_bytes(event: FlinkEvent, expected: str) -> None:
    assert encode(event) == bytes.fromhex(expected)


# Above the codec.


@pytest.mark.parametrize(
    "event",
    [
        EndOfPartition(),
        EndOfData(),
        CancelCheckpointMarker(5),
        CheckpointBarrier(7, START_MS * MS),
        CheckpointBarrier(7, START_MS * MS, Alignment.UNALIGNED),
        CheckpointBarrier(7, START_MS * MS, Alignment.ALIGNED, 5000 * MS),
        UserEvent("EndOfSuperstepEvent"),
        UserEvent("RecoveryMetadata", b"\0\0\0\3"),
        UserEvent("de.example.Ping", b"xyz"),
    ],
)
def test_our_events_come_back(event: Event) -> None:
    assert to_native(decode(encode_exact(from_native(event)))) == event


def test_the_age_of_a_barrier_stays_behind_and_timeouts_are_rounded_up() -> None:
    barrier = CheckpointBarrier(1, 5 * MS + 7, Alignment.ALIGNED, 1, elapsed_ns=9)
    assert from_native(barrier) == Barrier(1, 5, CHECKPOINT, None, None, Alignment.ALIGNED, 1)


def test_a_savepoint_is_a_checkpoint() -> None:
    savepoint = Barrier(3, START_MS, TERMINATE_SAVEPOINT, 1, b"file:/sp", Alignment.ALIGNED, NO_TIMEOUT_MS)
    assert to_native(savepoint) == CheckpointBarrier(3, START_MS * MS)


@pytest.mark.parametrize(("timestamp_ms", "timeout_ms"), [(2**62, 0), (-(2**62), 0), (0, -1)])
def test_times_that_do_not_exist(timestamp_ms: int, timeout_ms: int) -> None:
    event = Barrier(1, timestamp_ms, CHECKPOINT, None, None, Alignment.ALIGNED, timeout_ms)
    with pytest.raises(RemoteProtocolError, match=f"{timestamp_ms} ms with a timeout of {timeout_ms} ms"):
        to_native(event)


def test_a_class_with_too_long_a_name() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 255 bytes"):
        to_native(ClassEvent("a" * 256, b""))


def test_characters_java_writes_otherwise() -> None:
    assert decode(encode(ClassEvent("a\0b\U0001f600", b"1"))) == ClassEvent("a?b?", b"1".ljust(118, b"\0"))


def test_the_names_flink_prints() -> None:
    assert [
        flink_name(event)
        for event in (
            EndOfPartition(),
            EndOfData(),
            CheckpointBarrier(1),
            UserEvent("WatermarkEvent"),
            UserEvent("de.example.Peer$Ping"),
        )
    ] == ["EndOfPartitionEvent", "EndOfData", "CheckpointBarrier", "WatermarkEvent", "Ping"]


# Bytes that are no event.


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "an event of 0 bytes"),
        ("0000000d", "no event of type 13"),
        ("ffffffff", "no event of type -1"),
        ("00000001 0000000000000001 0000018bcfe56800 05 ffffffff 01 0000000000000000", "a barrier of kind 5"),
        ("00000001 0000000000000001 0000018bcfe56800 01 02 ffffffff 01 0000000000000000", "2 where 0 or 1"),
        ("00000001 0000000000000001 0000018bcfe56800 00 fffffffe 01 0000000000000000", "location of -2 bytes"),
        ("00000001 0000000000000001 0000018bcfe56800 00 7fffffff 01 0000000000000000", "location of 2147483647"),
        ("00000001 0000000000000001 0000018bcfe56800 00 ffffffff 04 0000000000000000", "4 is not a valid Alignment"),
        ("00000001 0000000000000001 0000018bcfe56800 00 ffffffff 01", "an event of"),
        ("00000003 0005 6161", "a name of 5 bytes"),
        ("00000006 00000001 00000006 00000001 00000000", "announcement of an announcement"),
        ("00000008 02", "2 where 0 or 1"),
        ("0000000b 0001 61 00 00000002 00", "a watermark of kind 2"),
        ("0000000b 0001 61 02 00000001 00", "2 where 0 or 1"),
    ],
)
def test_what_is_no_event_is_refused(data: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        decode(bytes.fromhex(data))
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


@given(st.integers(0, 13), st.binary(max_size=60))
def test_any_bytes_are_an_event_or_malformed(number: int, data: bytes) -> None:
    event: FlinkEvent | RemoteProtocolError
    try:
        event = decode(number.to_bytes(4, "big") + data)
    except RemoteProtocolError as error:
        event = error
    if isinstance(event, RemoteProtocolError):
        assert event.code is ErrorCode.MALFORMED_FRAME
    else:
        assert decode(encode_exact(event)) == event
