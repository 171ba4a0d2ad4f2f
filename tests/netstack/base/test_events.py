"""In-band events: their bytes come back, anything else is refused, and each travels under the right type."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import netstack
from netstack.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from netstack.base.events import (
    MAX_EVENT_BYTES,
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
    data_type_of,
    decode_event,
    encode_event,
)

i64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=255).filter(lambda name: len(name.encode()) <= 255)
events: st.SearchStrategy[Event] = st.one_of(
    st.just(EndOfPartition()),
    st.builds(EndOfData, st.booleans()),
    st.builds(CheckpointBarrier, i64, i64, st.sampled_from(Alignment), i64),
    st.builds(CancelCheckpointMarker, i64),
    st.builds(UserEvent, names, st.binary(max_size=300)),
)


@given(events)
def test_bytes_come_back(event: Event) -> None:
    data = encode_event(event)
    assert decode_event(data) == event
    assert decode_event(memoryview(bytearray(data))) == event


@given(st.one_of(st.binary(max_size=40), events.map(lambda event: encode_event(event)[:-1])))
def test_any_bytes_are_an_event_or_malformed(data: bytes) -> None:
    result: Event | RemoteProtocolError
    try:
        result = decode_event(data)
    except RemoteProtocolError as error:
        result = error
    if isinstance(result, RemoteProtocolError):
        assert result.code is ErrorCode.MALFORMED_FRAME
        assert f"{len(data)} bytes" in result.text
    else:
        assert encode_event(result) == data, "two byte strings mean one event"


def test_the_longest_events() -> None:
    event = UserEvent("n" * 255, bytes(MAX_EVENT_BYTES - 2 - 255))
    assert len(encode_event(event)) == MAX_EVENT_BYTES
    with pytest.raises(ValueError, match="16385 bytes; 16384 is the most"):
        encode_event(UserEvent("n" * 255, event.payload + b"x"))
    with pytest.raises(ValueError, match="name of 256 bytes"):
        encode_event(UserEvent("é" * 128))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (CheckpointBarrier("1"), "checkpoint_id='1'.* cannot be sent: .*integer"),  # type: ignore[arg-type]
        (CheckpointBarrier(2**63), "checkpoint_id=9223372036854775808.* cannot be sent"),
        (CheckpointBarrier(1, alignment=7), "7 is not a valid Alignment"),  # type: ignore[arg-type]
        (CancelCheckpointMarker(1.5), "checkpoint_id=1.5.* cannot be sent"),  # type: ignore[arg-type]
        (UserEvent(5), "the name of a UserEvent is str"),  # type: ignore[arg-type]
        (UserEvent("a", "text"), "its payload bytes"),  # type: ignore[arg-type]
        (UserEvent("\ud800"), "surrogates not allowed"),
    ],
)
def test_an_event_that_cannot_be_sent_is_refused(event: Event, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        encode_event(event)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (EndOfPartition(), DataType.END_OF_PARTITION),
        (EndOfData(), DataType.END_OF_DATA),
        (CancelCheckpointMarker(1), DataType.EVENT),
        (UserEvent("x"), DataType.EVENT),
        (CheckpointBarrier(1), DataType.ALIGNED_BARRIER),
        (CheckpointBarrier(1, alignment=Alignment.ALIGNED, aligned_timeout_ns=1), DataType.TIMEOUTABLE_ALIGNED_BARRIER),
        (CheckpointBarrier(1, alignment=Alignment.FORCED_ALIGNED, aligned_timeout_ns=1), DataType.ALIGNED_BARRIER),
        (CheckpointBarrier(1, alignment=Alignment.UNALIGNED), DataType.PRIORITY_EVENT),
        (CheckpointBarrier(1, alignment=Alignment.AT_LEAST_ONCE), DataType.EVENT),
    ],
)
def test_data_types(event: Event, expected: DataType) -> None:
    assert data_type_of(event) is expected
    ends = isinstance(event, EndOfData | EndOfPartition)
    assert data_type_of(event, priority=True) is (expected if ends else DataType.PRIORITY_EVENT)


def test_what_a_type_means() -> None:
    assert [kind for kind in DataType if kind.is_data] == [DataType.DATA]
    assert [kind for kind in DataType if kind.has_priority] == [DataType.PRIORITY_EVENT, DataType.ANNOUNCEMENT]
    assert [kind for kind in DataType if kind.blocks_upstream] == [
        DataType.ALIGNED_BARRIER,
        DataType.TIMEOUTABLE_ALIGNED_BARRIER,
        DataType.BLOCKING_EVENT,
    ]


def test_what_a_reader_yields_is_told_apart_from_records() -> None:
    assert isinstance(UserEvent("watermark"), netstack.Event)
    assert isinstance(CheckpointBarrier(1), netstack.Event)
    assert not isinstance(b"a record", netstack.Event)
