"""Buffers compressed as Flink does it: two lengths, then an LZ4 block, an LZO block or a ZSTD frame.

Takes: a buffer's bytes. Gives: the others.

Both lengths are little-endian: bytes behind the header, bytes when decompressed. Nothing says which compression it is;
both sides of an exchange between task managers are set alike. Here it is found out: a ZSTD frame has a magic number,
and what is no LZ4 block of just the right length may be an LZO block. What is written is LZ4 (`buffer.stored`). ZSTD
takes pyarrow, LZO lzallright; who never meets them needs neither.
"""

from __future__ import annotations

import struct
from typing import Final

import lz4.block

from ..errors import ErrorCode, RemoteProtocolError

_LENGTHS: Final = struct.Struct("<II")
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_LZO_END: Final = bytes.fromhex("110000")


def compression_header(block_bytes: int, original_bytes: int) -> bytes:
    """What stands before an LZ4 block."""
    return _LENGTHS.pack(block_bytes, original_bytes)


def inflate(data: memoryview, max_bytes: int) -> bytes:
    """The bytes of a compressed buffer.

    Args:
        data: one buffer, with its header.
        max_bytes: of a buffer; nothing longer is made, whatever `data` announces.

    Raises:
        RemoteProtocolError: lengths that are wrong, or a compression that is none of the three; ZSTD without pyarrow,
            LZO without lzallright.
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
        return _inflate_zstd(block, original)
    try:
        plain: bytes = lz4.block.decompress(block, uncompressed_size=original)
    except lz4.block.LZ4BlockError as error:
        if block[-len(_LZO_END) :] == _LZO_END:
            return _inflate_lzo(block, original)
        raise _refused(
            f"a compressed buffer of {compressed} bytes is no LZ4 block, or a damaged one ({error}), and neither LZO"
            " nor ZSTD"
        ) from error
    if len(plain) != original:
        raise _refused(f"a compressed buffer announces {original} bytes when decompressed and has {len(plain)}")
    return plain


def _inflate_lzo(block: memoryview, original: int) -> bytes:
    """An LZO1X block. It is made whole before its length is known: at most 255 times as long as `block`."""
    try:
        import lzallright  # only who meets LZO needs it
    except ImportError as error:
        raise _missing("LZO", "lzallright", "lzallright>=0.2") from error
    try:
        plain: bytes = lzallright.LZOCompressor.decompress(bytes(block), output_size_hint=original)
    except lzallright.LZOError as error:  # its text may hold the rest of the block
        raise _refused(f"a compressed buffer is neither an LZ4 nor an LZO block of {original} bytes") from error
    if len(plain) != original:
        raise _refused(
            f"a compressed buffer is neither an LZ4 nor an LZO block of {original} bytes, but of {len(plain)}"
        )
    return plain


def _inflate_zstd(frame: memoryview, original: int) -> bytes:
    try:
        import pyarrow as pa  # only who meets ZSTD needs it
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
        f"a buffer compressed with {what}, which takes {package}: pip install '{requirement}', or set"
        " taskmanager.network.compression.codec: LZ4 on the producing side",
    )


def _refused(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MALFORMED_FRAME, text)
