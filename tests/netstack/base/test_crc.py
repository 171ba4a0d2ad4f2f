"""Who computes CRC-32 makes no difference to files and frames."""

from __future__ import annotations

import zlib

from hypothesis import given, strategies as st

from netstack.base.crc import crc32


@given(st.binary(max_size=5000), st.integers(0, 0xFFFFFFFF), st.integers(0, 64))
def test_it_is_zlib_s(data: bytes, before: int, start: int) -> None:
    memory = memoryview(bytearray(data))[start:]
    assert crc32(memory, before) == zlib.crc32(memory, before)
    assert crc32(bytes(memory)) == zlib.crc32(memory)
