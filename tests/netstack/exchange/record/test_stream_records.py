"""Records with Flink's tag and timestamp in front: nine bytes more, the same values, what Flink's own format reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import RecordError
from netstack.exchange.record.flink import ByteArrayFormat, StreamElementFormat, StreamRecord
from netstack.exchange.record.formats import BytesFormat, format_named
from netstack.exchange.record.stream_records import HEAD_BYTES, StreamRecords, with_heads, without_heads

values = {
    "bytes": st.binary(max_size=50),
    "str": st.text(max_size=20),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "msgpack": st.lists(st.integers(0, 9)),
}


@given(st.data(), st.sampled_from(sorted(values)))
def test_values_come_back(data: st.DataObject, name: str) -> None:
    format = StreamRecords(format_named(name))
    records = data.draw(st.lists(values[name], min_size=1, max_size=5))
    encoded = [format.encode(record) for record in records]
    assert [format.decode(memoryview(each)) for each in encoded] == records
    assert [format.decode_owned(memoryview(each)) for each in encoded] == records
    assert b"".join(format.encode_pieces(records[0])) == encoded[0]
    plain = format_named(name).encode(records[0])
    assert len(encoded[0]) == HEAD_BYTES + len(plain)
    same = [each for each in encoded if len(each) == len(encoded[0])]
    rows = np.frombuffer(b"".join(same), np.uint8).reshape(len(same), -1)
    assert format.decode_many(rows) == [format.decode(memoryview(each)) for each in same]


def test_flinks_own_format_reads_them() -> None:
    record = StreamRecords(ByteArrayFormat()).encode(b"value")
    assert StreamElementFormat(ByteArrayFormat()).decode(memoryview(record)) == StreamRecord(b"value", -(2**63))


@pytest.mark.parametrize("wrong", [b"", b"\0" * 8, b"\1" + bytes(20)])
def test_what_has_no_head_is_refused(wrong: bytes) -> None:
    format = StreamRecords(BytesFormat())
    for decode in (format.decode, format.decode_owned):
        with pytest.raises(RecordError, match="has no tag and timestamp"):
            decode(memoryview(wrong))
    with pytest.raises(RecordError, match="no tag"):
        format.decode_many(np.frombuffer(wrong, np.uint8).reshape(1, -1))


def test_rows_get_and_lose_their_heads() -> None:
    rows: Any = np.arange(24, dtype=np.uint8).reshape(3, 8)
    headed = with_heads(rows)
    format = StreamRecords(BytesFormat())
    assert [row.tobytes() for row in headed] == [format.encode(row.tobytes()) for row in rows]
    assert (without_heads(headed) == rows).all()
    assert not len(without_heads(headed[:0]))
