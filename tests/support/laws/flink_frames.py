"""Frames of several buffers, as a Flink producer sends them, by our producer's codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import lz4.block

from netstack.base.events import DataType, encode_event
from netstack.exchange.buffer.stored import PART_HEADER, StoredBuffer
from netstack.exchange.wire import flink_events
from netstack.exchange.wire.flink_compression import compression_header
from netstack.exchange.wire.flink_producer import FlinkProducerCodec


def deflate(data: bytes) -> bytes:
    """Compressed as Flink does it."""
    block: bytes = lz4.block.compress(data, store_size=False)
    return compression_header(len(block), len(data)) + block


def composite(
    codec: FlinkProducerCodec,
    channel: int,
    data_type: DataType,
    sequence: int,
    backlog: int,
    parts: Sequence[bytes],
    *,
    is_compressed: bool = False,
    has_sizes: bool = True,
) -> bytes:
    """A whole frame of parts in Flink's bytes."""
    stored = []
    for part in parts:
        if data_type is not DataType.DATA:
            stored.append(memoryview(encode_event(flink_events.to_native(flink_events.decode(part)))))
        elif is_compressed:
            _, original = struct.unpack_from("<II", part)
            stored.append(memoryview(PART_HEADER.pack(original, 0) + part[8:]))
        else:
            stored.append(memoryview(part))
    buffer = StoredBuffer(
        tuple(stored),
        DataType.STORED_DATA if data_type is DataType.DATA else data_type,
        None,
        is_compressed=is_compressed,
        is_glued=has_sizes,
        is_range=False,
    )
    return b"".join(codec.encode_stored(channel, sequence, backlog, buffer))
