"""Buffers compressed as Flink does it: two lengths, then an LZ4 block.

Takes: a buffer's bytes. Gives: the others.

Both lengths are little-endian: bytes behind the header, bytes when decompressed. Nothing says which compression it is;
both sides are set alike. LZ4 is what Flink does unless told otherwise, and the only one here.
"""

from __future__ import annotations

import struct
from typing import Final

import lz4.block

from ..errors import ErrorCode, RemoteProtocolError

_LENGTHS: Final = struct.Struct("<II")
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_SETTING: Final = "set taskmanager.network.compression.codec: LZ4 on the producing side"


def deflate(data: bytes | memoryview) -> bytes | None:
    """`data` compressed; None if that makes it no smaller, in which case it travels as it is."""
    block = lz4.block.compress(bytes(data), store_size=False)
    if _LENGTHS.size + len(block) >= len(data):
        return None
    return _LENGTHS.pack(len(block), len(data)) + bytes(block)


def inflate(data: memoryview, max_bytes: int) -> bytes:
    """The bytes of a compressed buffer.

    Args:
        data: one buffer, with its header.
        max_bytes: of a buffer; nothing longer is made, whatever `data` announces.

    Raises:
        RemoteProtocolError: lengths that are wrong, or another compression than LZ4.
    """
    if len(data) < _LENGTHS.size:
        raise _refused(f"a compressed buffer of {len(data)} bytes; its header alone has {_LENGTHS.size}")
    compressed, original = _LENGTHS.unpack_from(data)
    block = data[_LENGTHS.size :]
    if compressed != len(block):
        raise _refused(f"a compressed buffer announces {compressed} bytes and has {len(block)}")
    if not 1 <= original <= max_bytes:
        raise _refused(f"a compressed buffer announces {original} bytes when decompressed; 1 to {max_bytes} can be had")
    if block[: len(_ZSTD_MAGIC)] == _ZSTD_MAGIC:
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"a buffer compressed with ZSTD; {_SETTING}")
    try:
        plain: bytes = lz4.block.decompress(block, uncompressed_size=original)
    except lz4.block.LZ4BlockError as error:
        raise _refused(
            f"a compressed buffer of {compressed} bytes is no LZ4 block, or a damaged one ({error}); if the producer"
            f" compresses with LZO, {_SETTING}"
        ) from error
    if len(plain) != original:
        raise _refused(f"a compressed buffer announces {original} bytes when decompressed and has {len(plain)}")
    return plain


def _refused(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MALFORMED_FRAME, text)
