"""The specification and the implementation say the same: every block of SPEC.md runs, in both directions.

This file is also the start of a conformance suite: nothing in `SPEC.md` is repeated here, so a change of the page is a change of
the test.
"""

from __future__ import annotations

import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack import events as in_band
from netstack.buffer.buffer import BufferSource, Notify
from netstack.buffer.pool import NetworkBufferPool
from netstack.buffer.segment import Segment, allocate_segments
from netstack.errors import ChannelFailed, ErrorCode, RemoteProtocolError
from netstack.events import Alignment, DataType, Event, decode_event, encode_event
from netstack.ids import PartitionId, ResultPartitionType
from netstack.inbound.channel import RemoteInputChannel
from netstack.inbound.gate import SingleInputGate
from netstack.inbound.receiver import ChannelReceiver
from netstack.outbound.partition import ResultPartition
from netstack.outbound.sender import ChannelSender
from netstack.record.formats import format_named
from netstack.record.framing import frame as framed
from netstack.wire import frames
from netstack.wire.assembler import FrameAssembler
from netstack.wire.codec_native import MAX_TEXT_BYTES, PROTOCOL_VERSION, Kind, NativeCodec
from netstack.wire.connection import FEATURE_CHECKSUM, Connection
from netstack.wire.frames import Frame, Goodbye, Hello

ROOT = Path(__file__).resolve().parents[2]
SPEC = (ROOT / "netstack/wire/SPEC.md").read_text(encoding="utf-8")
SEGMENT_BYTES = 32 * 1024  # of the vectors
CODEC = NativeCodec()


def blocks(language: str) -> Iterator[list[str]]:
    """The lines of every fenced block of this language, without those that are only a comment."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL):
        yield [line for line in found[1].splitlines() if not line.startswith(";")]


def unhex(lines: Iterable[str]) -> bytes:
    return b"".join(bytes.fromhex(line.partition(";")[0]) for line in lines)


class Buffer(NamedTuple):
    """A BUFFER frame as the sink sees it."""

    channel: int
    data_type: DataType
    sequence: int
    backlog: int
    checksum: int
    payload: bytes


class Vector(NamedTuple):
    name: str
    meaning: Frame | Buffer | Event
    data: bytes


def vector(lines: list[str]) -> Vector:
    fields: dict[str, Any] = json.loads(lines[0])
    data = unhex(lines[1:])
    kind, name = next(iter(fields.items()))
    del fields[kind]
    if "payload" in fields:
        fields["payload"] = bytes.fromhex(fields["payload"])
    if kind == "buffer":
        fields["checksum"] = zlib.crc32(fields["payload"]) if fields["checksum"] else 0
        return Vector(name, Buffer(data_type=DataType[name], **fields), data)
    if kind == "event":
        if "alignment" in fields:
            fields["alignment"] = Alignment[fields["alignment"]]
        return Vector(name, getattr(in_band, name)(**fields), data)
    if "code" in fields:
        fields["code"] = ErrorCode[fields["code"]]
    if "pairs" in fields:
        fields["pairs"] = tuple(tuple(pair) for pair in fields["pairs"])
    return Vector(name, getattr(frames, name)(**fields), data)


VECTORS = [vector(lines) for lines in blocks("vector")]
EVENTS = [found for found in VECTORS if isinstance(found.meaning, Event.__value__ if hasattr(Event, "__value__") else tuple(
    getattr(in_band, name.strip()) for name in str(Event).split("|")
))]
