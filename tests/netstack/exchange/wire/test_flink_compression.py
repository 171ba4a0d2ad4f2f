"""Compressed buffers: what is deflated is inflated; lengths that lie, and other compressions, are refused."""

from __future__ import annotations

import struct
import sys

import lzallright
import pytest
from hypothesis import given, strategies as st
from laws.flink_frames import deflate

from netstack.base.errors import ErrorCode, RemoteProtocolError
from netstack.exchange.wire.flink_compression import inflate

DATA = bytes(range(16)) * 64
PACKED = deflate(DATA)


@given(st.binary(min_size=1, max_size=40), st.integers(8, 100))
def test_what_is_deflated_is_inflated(data: bytes, times: int) -> None:
    packed = deflate(data * times)
    assert inflate(memoryview(packed), len(data) * times) == data * times


def lengths(compressed: int, original: int) -> bytes:
    return struct.pack("<II", compressed, original)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "a compressed buffer of 0 bytes"),
        (PACKED[:7], "a compressed buffer of 7 bytes"),
        (PACKED[:-1], "announces"),
        (PACKED + b"x", "announces"),
        (lengths(2**32 - 1, 1024) + PACKED[8:], "announces 4294967295 bytes and has"),
        (lengths(len(PACKED) - 8, 0) + PACKED[8:], "announces 0 decompressed bytes; 1 to 1024"),
        (lengths(len(PACKED) - 8, 1025) + PACKED[8:], "announces 1025 decompressed bytes"),
        (lengths(len(PACKED) - 8, 2**32 - 1) + PACKED[8:], "announces 4294967295 decompressed bytes"),
        (lengths(len(PACKED) - 8, 1023) + PACKED[8:], "LZ4"),
        (lengths(0, 10), "LZ4"),
    ],
)
def test_lengths_that_lie_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        inflate(memoryview(data), 1024)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


def test_fewer_bytes_than_announced() -> None:
    packed = deflate(b"a" * 100)
    with pytest.raises(RemoteProtocolError, match="announces 101 decompressed bytes and has 100"):
        inflate(memoryview(lengths(len(packed) - 8, 101) + packed[8:]), 1024)


def test_zstd_takes_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = bytes.fromhex("28b52ffd6400")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RemoteProtocolError, match=r"pyarrow>=16.*codec: LZ4") as caught:
        inflate(memoryview(lengths(len(frame), 100) + frame), 1024)
    assert caught.value.code is ErrorCode.UNEXPECTED_FRAME


@pytest.mark.parametrize("original", [99, 100, 101])
def test_zstd_of_the_right_length_only(original: int) -> None:
    pa = pytest.importorskip("pyarrow")
    frame = pa.Codec("zstd").compress(b"a" * 100, asbytes=True)
    data = memoryview(lengths(len(frame), original) + frame)
    if original == 100:
        assert inflate(data, 1024) == b"a" * 100
    else:
        with pytest.raises(RemoteProtocolError, match="no ZSTD frame of"):
            inflate(data, 1024)


def test_lzo_is_found_out() -> None:
    block = bytes.fromhex("15 61626364 25 0000 110000")  # four letters, and seven of what is one letter ago
    assert inflate(memoryview(lengths(len(block), 11) + block), 1024) == b"abcd" + b"d" * 7
    with pytest.raises(RemoteProtocolError, match="LZO block of 12 bytes"):
        inflate(memoryview(lengths(len(block), 12) + block), 1024)
    with pytest.raises(RemoteProtocolError, match="nor LZO, nor ZSTD"):
        inflate(memoryview(lengths(len(block) - 1, 11) + block[:-1]), 1024)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=40), st.integers(1, 60))
def test_lzo_blocks_of_another_writer_are_read(parts: list[bytes], times: int) -> None:
    plain = b"".join(parts) * times
    block = lzallright.LZOCompressor().compress(plain)
    assert inflate(memoryview(lengths(len(block), len(plain)) + block), len(plain)) == plain
    with pytest.raises(RemoteProtocolError):
        inflate(memoryview(lengths(len(block), len(plain) + 1) + block), len(plain) + 1)


def test_lzo_takes_lzallright(monkeypatch: pytest.MonkeyPatch) -> None:
    block = bytes.fromhex("15 61626364 25 0000 110000")
    monkeypatch.setitem(sys.modules, "lzallright", None)
    with pytest.raises(RemoteProtocolError, match="LZO, which requires lzallright") as caught:
        inflate(memoryview(lengths(len(block), 11) + block), 1024)
    assert caught.value.code is ErrorCode.UNEXPECTED_FRAME


@given(st.binary(max_size=100), st.integers(0, 3000))
def test_any_bytes_are_inflated_within_bounds_or_refused(block: bytes, original: int) -> None:
    result: bytes | RemoteProtocolError
    try:
        result = inflate(memoryview(lengths(len(block), original) + block), 1024)
    except RemoteProtocolError as error:
        result = error
    if isinstance(result, bytes):
        assert len(result) == original <= 1024
