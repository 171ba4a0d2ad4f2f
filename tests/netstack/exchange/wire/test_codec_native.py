"""The native codec: what it writes it reads, and whatever else it is given is a typed error. Vectors: tests/spec."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ErrorCode, RemoteProtocolError
from netstack.base.events import DataType
from netstack.exchange.wire.codec import FrameKind
from netstack.exchange.wire.codec_native import (
    MAGIC,
    MAX_TEXT_BYTES,
    NOT_SENT,
    Kind,
    NativeCodec,
    explain_foreign_bytes,
)
from netstack.exchange.wire.frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    ConnectionFailure,
    ExpectedBuffers,
    Frame,
    Goodbye,
    Hello,
    OpenChannel,
    Ping,
    Pong,
    Resume,
)

CODEC = NativeCodec()
HEADER = CODEC.header_bytes

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
names = st.text(min_size=1, max_size=60).filter(lambda name: len(name.encode()) <= 255)
texts = st.text(max_size=200)
codes = st.sampled_from(ErrorCode)
control_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, u16, u32, u32, names),
    st.builds(OpenChannel, u32, names, u32, u32),
    st.lists(st.tuples(u32, u32), min_size=1, max_size=CODEC.max_credit_pairs).map(
        lambda pairs: AddCredit(tuple(pairs))
    ),
    st.builds(Resume, u32),
    st.builds(Acknowledge, u32),
    st.builds(CancelChannel, u32),
    st.builds(BacklogAnnouncement, u32, u32),
    st.builds(ExpectedBuffers, u32, u32),
    st.builds(ChannelError, u32, codes, texts),
    st.builds(ConnectionFailure, codes, texts),
    st.builds(Ping, u64),
    st.builds(Pong, u64),
    st.just(Goodbye()),
)

ON_THE_WIRE = [data_type for data_type in DataType if data_type not in NOT_SENT]


def decoded(data: bytes) -> Frame:
    kind, length, control_type, channel, *_ = CODEC.parse_header(memoryview(data), 0)
    assert kind is FrameKind.CONTROL
    assert HEADER + length == len(data)
    return CODEC.decode_control(control_type, channel, data[HEADER:])


@given(control_frames)
def test_control_frames_come_back(frame: Frame) -> None:
    data = CODEC.encode_control(frame)
    assert len(data) <= HEADER + CODEC.max_control_bytes
    assert decoded(data) == frame


@given(st.sampled_from(ON_THE_WIRE), u32, u32, u32, u32, u32)
def test_buffer_headers_come_back(
    data_type: DataType, channel: int, sequence: int, backlog: int, length: int, checksum: int
) -> None:
    data = CODEC.encode_buffer_header(channel, data_type, sequence, backlog, length, checksum)
    assert CODEC.parse_header(memoryview(b"xyz" + data), 3) == (
        FrameKind.BUFFER,
        length,
        data_type,
        channel,
        sequence,
        backlog,
        checksum,
    )


def test_sequence_numbers_wrap() -> None:
    first = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, 0, 0)
    assert CODEC.encode_buffer_header(0, DataType.DATA, 2**32, 0, 0, 0) == first


@given(st.integers(0, 255), u32, st.binary(max_size=40))
def test_any_control_payload_is_a_frame_or_malformed(kind: int, channel: int, payload: bytes) -> None:
    result: Frame | RemoteProtocolError
    try:
        result = CODEC.decode_control(kind, channel, payload)
    except RemoteProtocolError as error:
        result = error
    if isinstance(result, RemoteProtocolError):
        assert result.code is ErrorCode.MALFORMED_FRAME
        assert f"type {kind} with {len(payload)} bytes" in result.text
    else:
        # Read again from its own bytes it says the same; only ignored bytes and bad UTF-8 in texts are not kept.
        assert decoded(CODEC.encode_control(result)) == result


@given(st.binary(min_size=HEADER, max_size=HEADER))
def test_any_header_is_parsed_or_malformed(data: bytes) -> None:
    kind, data_type, reserved = struct.unpack_from(">BBH", data, 4)
    is_buffer = kind == Kind.BUFFER and not reserved and data_type in ON_THE_WIRE
    is_compressed = kind == Kind.COMPRESSED and 1 <= reserved <= 1024 and data_type == DataType.DATA
    if is_buffer or is_compressed or kind not in (Kind.BUFFER, Kind.COMPRESSED):
        CODEC.parse_header(memoryview(data), 0)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.parse_header(memoryview(data), 0)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


@pytest.mark.parametrize("data_type", sorted(set(range(12)) - {kind.value for kind in DataType}))
def test_unknown_data_types_are_refused(data_type: int) -> None:
    data = struct.pack(">IBBHIIII", 0, Kind.BUFFER, data_type, 0, 0, 0, 0, 0)
    with pytest.raises(RemoteProtocolError, match=f"data type {data_type}"):
        CODEC.parse_header(memoryview(data), 0)


# Reading what a later version may write.


def test_bytes_behind_the_hello_are_room_for_later_versions() -> None:
    hello = Hello(1, 32768, 0, "netstack 9")
    payload = CODEC.encode_control(hello)[HEADER:]
    assert CODEC.decode_control(Kind.HELLO, 0, payload + b"more") == hello


def test_the_magic_is_checked() -> None:
    payload = CODEC.encode_control(Hello(1, 32768, 0, "x"))[HEADER:]
    assert payload.startswith(MAGIC)
    with pytest.raises(RemoteProtocolError, match="not a netstack hello"):
        CODEC.decode_control(Kind.HELLO, 0, b"NETSTACK" + payload[8:])


def test_an_unknown_error_code_is_internal() -> None:
    assert CODEC.decode_control(Kind.CHANNEL_ERROR, 3, b"\xff\xffnew") == ChannelError(3, ErrorCode.INTERNAL, "new")


def test_bad_utf8_in_a_text_is_replaced() -> None:
    frame = CODEC.decode_control(Kind.CONNECTION_ERROR, 0, b"\x00\x01\xff!")
    assert frame == ConnectionFailure(ErrorCode.NOT_NETSTACK, "\N{REPLACEMENT CHARACTER}!")


# Writing what does not fit.


def test_long_texts_are_cut_between_characters() -> None:
    frame = decoded(CODEC.encode_control(ChannelError(1, ErrorCode.INTERNAL, "é" * MAX_TEXT_BYTES + "x")))
    assert frame == ChannelError(1, ErrorCode.INTERNAL, "é" * (MAX_TEXT_BYTES // 2))
    odd = decoded(CODEC.encode_control(ConnectionFailure(ErrorCode.INTERNAL, "x" + "é" * MAX_TEXT_BYTES)))
    assert odd == ConnectionFailure(ErrorCode.INTERNAL, "x" + "é" * ((MAX_TEXT_BYTES - 1) // 2))


def test_a_text_that_has_no_utf8_is_sent_all_the_same() -> None:
    assert decoded(CODEC.encode_control(ConnectionFailure(ErrorCode.INTERNAL, "\ud800!"))) == ConnectionFailure(
        ErrorCode.INTERNAL, "?!"
    )


def test_a_long_software_name_is_cut() -> None:
    frame = decoded(CODEC.encode_control(Hello(1, 32768, 0, "x" * 300)))
    assert isinstance(frame, Hello)
    assert frame.software == "x" * 255


# Foreign protocols.


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1", "HTTP"),
        (b"HTTP/1.1 400 Bad", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP/2"),
        (b"SSH-2.0-OpenSSH_9", "SSH"),
        (bytes.fromhex("160301020001000001fc"), "TLS"),
        (bytes.fromhex("ff00000000000000017f"), "ZMTP (ZeroMQ)"),
        (bytes.fromhex("0000002abadc0ffe02"), "Flink's network protocol"),
        (b"\x00\x01\x02\x03\x04\x05", "another protocol"),
        (b"", "another protocol"),
    ],
)
def test_foreign_protocols_are_named(first: bytes, name: str) -> None:
    assert explain_foreign_bytes(first) == name
