"""Formats of Flink 2.3.0's serializers: longs, strings, byte arrays, and the stream elements around them.

Takes: values or elements. Gives: the bytes of one record (without the length in front, see `framing`), and back.

| first byte | element | followed by |
|---|---|---|
| 0 | record with a timestamp | long timestamp, value |
| 1 | record | value |
| 2 | watermark | long timestamp |
| 3 | latency marker | long time, operator (16 bytes), int subtask |
| 4 | watermark status | int: 0 active, -1 idle |
| 5 | record attributes | byte: backlog |
| 6 | watermark of one subpartition | int subpartition, long timestamp |

Rules: big-endian. A format receives exactly one record and must use all of its bytes; anything else is a `RecordError`.
Records of batch jobs are values; those of streaming jobs are elements.
"""

from __future__ import annotations

import reprlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never, final

import numpy as np

from ...base.errors import ConfigError, RecordError
from .formats import RecordFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_MARKER: Final = struct.Struct(">q16si")
_SUBPARTITION: Final = struct.Struct(">iq")
_MAX_UNIT: Final = 0xFFFF
_ACTIVE: Final = 0
_IDLE: Final = -1


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A value, with or without its timestamp in milliseconds."""

    value: Any
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """Announces that no later record is older than this, in milliseconds."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Measures the latency of records by travelling with them.

    Attributes:
        marked_ms: when it left its source.
        operator_id: 16 bytes.
        subtask: subtask index of that source.
    """

    marked_ms: int
    operator_id: bytes
    subtask: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether the consumer must wait for watermarks of this channel."""

    is_active: bool


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """Whether the following records are a backlog."""

    is_backlog: bool


@dataclass(frozen=True, slots=True)
class SubpartitionWatermark:
    """A watermark of one subpartition, of several in a channel."""

    subpartition: int
    timestamp: int


StreamElement: TypeAlias = (
    StreamRecord | Watermark | LatencyMarker | WatermarkStatus | RecordAttributes | SubpartitionWatermark
)


@final
class LongFormat(RecordFormat):
    """Whole numbers from -2**63 to 2**63 - 1."""

    name = "flink-long"
    fixed_width_bytes = 8
    numpy_dtype = np.dtype(">i8")

    def encode(self, record: Any) -> bytes:
        """Encodes eight bytes."""
        try:
            return _LONG.pack(record)
        except (struct.error, OverflowError) as error:
            raise _misfit(record, self.name, f"{error}; give a whole number from -2**63 to 2**63 - 1") from error

    def decode(self, view: memoryview) -> int:
        """Decodes the number."""
        if len(view) != _LONG.size:
            raise _malformed(view, self.name, f"it takes exactly {_LONG.size} bytes")
        number: int = _LONG.unpack(view)[0]
        return number

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes the number in every row."""
        if not len(rows):
            return []
        if rows.shape[1] != _LONG.size:
            raise _malformed(rows[0].data, self.name, f"it takes exactly {_LONG.size} bytes")
        numbers: list[Any] = rows.view(self.numpy_dtype)[:, 0].tolist()
        return numbers


@final
class ByteArrayFormat(RecordFormat):
    """Bytes behind their length."""

    name = "flink-bytes"

    def encode(self, record: Any) -> bytes:
        """Encodes the length and the bytes."""
        if not isinstance(record, bytes | bytearray | memoryview):
            raise _misfit(record, self.name, "give bytes")
        return _INT.pack(len(record)) + bytes(record)

    def decode(self, view: memoryview) -> bytes:
        """Copies the bytes."""
        if len(view) < _INT.size or _INT.unpack_from(view)[0] != len(view) - _INT.size:
            raise _malformed(view, self.name, "its length field does not match")
        return bytes(view[_INT.size :])


@final
class StringFormat(RecordFormat):
    """Text, or None: the number of UTF-16 units plus one, then each unit, all in groups of seven bits."""

    name = "flink-string"

    def encode(self, record: Any) -> bytes:
        """Encodes one byte for a character of ASCII, up to three for any other unit."""
        if record is None:
            return b"\0"
        if not isinstance(record, str):
            raise _misfit(record, self.name, "give str or None")
        if record.isascii():
            return _number(len(record) + 1) + record.encode("ascii")
        raw = record.encode("utf-16-be", "surrogatepass")
        units = [unit for (unit,) in struct.iter_unpack(">H", raw)]
        return _number(len(units) + 1) + b"".join(map(_number, units))

    def decode(self, view: memoryview) -> str | None:
        """Decodes the text."""
        raw = bytes(view)
        count, position = self._read(raw, 0)
        if count == 0 and len(raw) == position:
            return None
        count -= 1
        text = raw[position:]
        if len(text) == count and text.isascii():
            return text.decode("ascii")
        if count < 0 or count > len(text):  # a unit has at least one byte
            raise _malformed(view, self.name, f"it announces {count} characters")
        units = bytearray()
        for _ in range(count):
            unit, position = self._read(raw, position)
            if unit > _MAX_UNIT:
                raise _malformed(view, self.name, f"a character {unit}")
            units += unit.to_bytes(2, "big")
        if position != len(raw):
            raise _malformed(view, self.name, f"{len(raw) - position} bytes follow its {count} characters")
        return units.decode("utf-16-be", "surrogatepass")

    def _read(self, raw: bytes, position: int) -> tuple[int, int]:
        """Reads a number at `position`; returns it and where it ends."""
        value = 0
        for shift in range(0, 35, 7):
            if position >= len(raw):
                break
            byte = raw[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise _malformed(memoryview(raw), self.name, f"a number that does not end before byte {position}")


@final
class StreamElementFormat(RecordFormat):
    """Stream elements around values of another format."""

    name = "flink-elements"

    def __init__(self, values: RecordFormat) -> None:
        """Takes the format of the values in records."""
        self._values = values

    def encode(self, record: Any) -> bytes:
        """Encodes an element."""
        element: StreamElement = record
        try:
            match element:
                case StreamRecord(value, None):
                    return b"\1" + self._values.encode(value)
                case StreamRecord(value, timestamp):
                    return b"\0" + _LONG.pack(timestamp) + self._values.encode(value)
                case Watermark(timestamp):
                    return b"\2" + _LONG.pack(timestamp)
                case LatencyMarker(marked_ms, operator_id, subtask):
                    if len(operator_id) != 16:
                        raise _misfit(record, self.name, "an operator's id has 16 bytes")
                    return b"\3" + _MARKER.pack(marked_ms, operator_id, subtask)
                case WatermarkStatus(is_active):
                    return b"\4" + _INT.pack(_ACTIVE if is_active else _IDLE)
                case RecordAttributes(is_backlog):
                    return b"\5" + bytes((is_backlog,))
                case SubpartitionWatermark(subpartition, timestamp):
                    return b"\6" + _SUBPARTITION.pack(subpartition, timestamp)
                case _:
                    assert_never(element)
        except (struct.error, AssertionError) as error:
            raise _misfit(record, self.name, f"{error}; give a StreamRecord, a Watermark, ...") from error

    def decode(self, view: memoryview) -> StreamElement:
        """Decodes an element."""
        if not view:
            raise _malformed(view, self.name, "an element has a tag")
        tag, rest = view[0], view[1:]
        try:
            match tag:
                case 0:
                    (timestamp,) = _LONG.unpack_from(rest)
                    return StreamRecord(self._values.decode(rest[_LONG.size :]), timestamp)
                case 1:
                    return StreamRecord(self._values.decode(rest))
                case 2:
                    return Watermark(*_LONG.unpack(rest))
                case 3:
                    return LatencyMarker(*_MARKER.unpack(rest))
                case 4:
                    return WatermarkStatus({_ACTIVE: True, _IDLE: False}[_INT.unpack(rest)[0]])
                case 5:
                    return RecordAttributes({b"\0": False, b"\1": True}[bytes(rest)])
                case 6:
                    return SubpartitionWatermark(*_SUBPARTITION.unpack(rest))
                case _:
                    raise _malformed(view, self.name, f"there is no element with tag {tag}")
        except (struct.error, KeyError) as error:
            raise _malformed(view, self.name, f"the bytes behind tag {tag} do not fit it: {error}") from error


def value_format_named(name: str) -> RecordFormat:
    """Creates the format of values for `long`, `string` or `bytes`.

    Raises:
        ConfigError: unknown format.
    """
    made: dict[str, type[RecordFormat]] = {"long": LongFormat, "string": StringFormat, "bytes": ByteArrayFormat}
    if name not in made:
        raise ConfigError(f"unknown value format {name!r}; give one of {', '.join(made)}")
    return made[name]()


def _number(value: int) -> bytes:
    """Encodes a number in groups of seven bits, low ones first; the high bit marks that more follow."""
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _misfit(record: object, name: str, why: str) -> RecordError:
    return RecordError(f"{type(record).__name__} {reprlib.repr(record)} does not fit the format {name!r}: {why}")


def _malformed(view: memoryview, name: str, why: str) -> RecordError:
    return RecordError(f"{len(view)} bytes are not a record of format {name!r} ({bytes(view[:16]).hex()}): {why}")
