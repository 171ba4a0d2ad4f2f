"""What `netstack consume` finds in records; whole exchanges are in test_exchange and in the replays."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from netstack.base.errors import RecordError
from netstack.cli.consume import RecordPayloads
from netstack.cli.exchange import ChannelAccount
from netstack.exchange.record.flink import (
    ByteArrayFormat,
    LatencyMarker,
    LongFormat,
    RecordAttributes,
    StreamElementFormat,
    StreamRecord,
    StringFormat,
    Watermark,
    WatermarkStatus,
)
from netstack.exchange.record.formats import RecordFormat

VALUES: list[tuple[str, RecordFormat, Any, bytes]] = [
    ("long", LongFormat(), -2, (2**64 - 2).to_bytes(8, "big")),
    ("string", StringFormat(), "", b""),
    ("string", StringFormat(), "a\u00fc\U0001f600", "a\u00fc\U0001f600".encode()),
    ("string", StringFormat(), None, b""),
    ("bytes", ByteArrayFormat(), b"", b""),
    ("bytes", ByteArrayFormat(), b"\0\1", b"\0\1"),
]
OTHERS = [
    Watermark(7),
    LatencyMarker(1, bytes(16), 2),
    WatermarkStatus(True),
    WatermarkStatus(False),
    RecordAttributes(False),
]


@pytest.mark.parametrize(("kind", "format", "value", "payload"), VALUES)
def test_values_are_found_with_and_without_elements_around_them(
    kind: str, format: RecordFormat, value: Any, payload: bytes
) -> None:
    elements = StreamElementFormat(format)
    account = ChannelAccount()
    records = [
        format.encode(value),
        elements.encode(StreamRecord(value)),
        elements.encode(StreamRecord(value, 1_700_000_000_000)),
        *map(elements.encode, OTHERS),
    ]
    assert RecordPayloads(kind).take(records, account) == [value] * 3
    assert (account.records, account.payload_bytes, account.watermark) == (3, 3 * len(payload), 7)
    assert account.crc32 == f"{zlib.crc32(payload * 3):08x}"


def test_raw_records_are_counted_as_they_are() -> None:
    account = ChannelAccount()
    assert RecordPayloads("raw").take([b"\1", b"\2\3"], account) == [b"\1", b"\2\3"]
    assert (account.records, account.payload_bytes) == (2, 3)


def test_a_record_of_another_kind() -> None:
    with pytest.raises(RecordError, match=r"stream element .*--as raw"):
        RecordPayloads("long").take([b"\7\7\7"], ChannelAccount())


def test_rows_of_flinks_sql_are_dictionaries() -> None:
    """With their kinds; a watermark belongs to its channel."""
    row = bytes((2, 2)) + bytes(6) + (5).to_bytes(8, "little") + bytes(8)
    record = len(row).to_bytes(4, "big") + row
    first, second = ChannelAccount(), ChannelAccount()
    payloads = RecordPayloads("rows", "id BIGINT NOT NULL, name STRING")
    watermark = StreamElementFormat(LongFormat()).encode(Watermark(7))
    actual = payloads.take([b"\1" + record, watermark, b"\0" + bytes(8) + record], first)
    assert actual == [{"op": "+U", "id": 5, "name": None}] * 2
    assert (first.records, first.watermark, first.crc32) == (2, 7, f"{zlib.crc32(row * 2):08x}")
    assert payloads.take([b"\1" + record], second) == actual[:1]
    assert second.watermark is None
