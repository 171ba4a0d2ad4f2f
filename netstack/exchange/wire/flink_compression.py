"""Flink's compressed buffers: two lengths, then an LZ4 block, an LZO block or a ZSTD frame.

Takes: a compressed buffer. Gives: its bytes. Or the header for an LZ4 block.

Both lengths are little-endian: bytes behind the header, bytes when decompressed. The header does not contain the
compression; Flink's TaskManagers are configured alike. Here it is detected: a ZSTD frame has a magic number, and what
is not an LZ4 block of exactly the right length may be an LZO block. We write LZ4 (`exchange.buffer.stored`). ZSTD
requires pyarrow and LZO lzallright, only where such buffers are received.
"""

from __future__ import annotations

import struct
from typing import Final

import lz4.block

from ...base.errors import ErrorCode, RemoteProtocolError

_LENGTHS: Final = struct.Struct("<II")
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_LZO_END: Final = bytes.fromhex("110000")


def compression_header(block_bytes: int, original_bytes: int) -> bytes:
    """The header in front of an LZ4 block."""
    return _LENGTHS.pack(block_bytes, original_bytes)


def inflate(data: memoryview, max_bytes: int) -> bytes:
    """Decompresses a buffer.

    Args:
        data: one buffer, with its header.
        max_bytes: size limit of a buffer; a larger announced size is refused before decompression.

    Raises:
        RemoteProtocolError: wrong lengths, an unknown compression, ZSTD without pyarrow, or LZO without lzallright.
    """
    if len(data) < _LENGTHS.size:
        raise _refused(f"a compressed buffer of {len(data)} bytes is shorter than its header, {_LENGTHS.size} bytes")
    compressed, original = _LENGTHS.unpack_from(data)
    block = data[_LENGTHS.size :]
    if compressed != len(block):
        raise _refused(f"a compressed buffer announces {compressed} bytes and has {len(block)}")
    if not 1 <= original <= max_bytes:
        raise _refused(f"a compressed buffer announces {original} decompressed bytes; 1 to {max_bytes} are allowed")
    if block[: len(_ZSTD_MAGIC)] == _ZSTD_MAGIC:
        return _inflate_zstd(block, original)
    try:
        plain: bytes = lz4.block.decompress(block, uncompressed_size=original)
    except lz4.block.LZ4BlockError as error:
        if block[-len(_LZO_END) :] == _LZO_END:
            return _inflate_lzo(block, original)
        raise _refused(
            f"a compressed buffer of {compressed} bytes is neither an intact LZ4 block ({error}), nor LZO, nor ZSTD"
        ) from error
    if len(plain) != original:
        raise _refused(f"a compressed buffer announces {original} decompressed bytes and has {len(plain)}")
    return plain


def _inflate_lzo(block: memoryview, original: int) -> bytes:
    """Decompresses an LZO1X block. Its length is known only afterwards: at most 255 times that of `block`."""
    try:
        import lzallright  # optional: only for LZO
    except ImportError as error:
        raise _missing("LZO", "lzallright", "lzallright>=0.2") from error
    try:
        plain: bytes = lzallright.LZOCompressor.decompress(bytes(block), output_size_hint=original)
    except lzallright.LZOError as error:  # its text may contain the rest of the block
        raise _refused(f"a compressed buffer is neither an LZ4 nor an LZO block of {original} bytes") from error
    if len(plain) != original:
        raise _refused(
            f"a compressed buffer is neither an LZ4 nor an LZO block of {original} bytes: it has {len(plain)}"
        )
    return plain


def _inflate_zstd(frame: memoryview, original: int) -> bytes:
    try:
        import pyarrow as pa  # optional: only for ZSTD
    except ImportError as error:
        raise _missing("ZSTD", "pyarrow", "pyarrow>=16") from error
    try:
        plain: bytes = pa.Codec("zstd").decompress(frame, original, asbytes=True)
    except OSError as error:
        raise _refused(f"a compressed buffer is no ZSTD frame of {original} bytes: {error}") from error
    return plain


def _missing(what: str, package: str, requirement: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ErrorCode.UNEXPECTED_FRAME,
        f"a buffer is compressed with {what}, which requires {package}: pip install '{requirement}', or set"
        " taskmanager.network.compression.codec: LZ4 on the producing side",
    )


def _refused(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MALFORMED_FRAME, text)
