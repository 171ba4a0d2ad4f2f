"""Record formats: encode one record to bytes and decode it. The built-in formats, and the protocol for others.

Takes: records, or exactly one record's bytes. Gives: bytes to the serializer, records to the deserializer.

Rules: the framing stores the length, so a format stores none. `decode` receives exactly the bytes of one record, must
use all of them, and keeps no reference to them, because their segment is recycled afterwards. Anything else is a
`RecordError`. Nothing from the network is unpickled or evaluated.

Numbers are little-endian, although the framing's lengths are big-endian: numpy arrays are little-endian on every
supported machine, so batches of numbers are stored and loaded without swapping bytes.
"""

from __future__ import annotations

import abc
import reprlib
import struct
from collections.abc import Callable, Mapping
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import msgpack
import numpy as np

from ...base.errors import ConfigError, RecordError
from ...base.text.safe_text import type_text
from .arrow import ArrowFormat
from .framing import payloads_of, texts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encoded: TypeAlias = "bytes | memoryview"


class RecordFormat(Protocol):
    """Encodes and decodes records; subclass it for a format of your own.

    An object serves one writer or one reader at a time, so it may keep scratch space. Three optional methods are used
    if a format has them: `decode_list(payloads)` decodes a list of small records that the reader has already copied;
    `decode_owned(view)` decodes memory that the record may keep; and, for records that cannot change,
    `encode_many(records)` encodes a list, and raises if a record does not fit.

    Attributes:
        name: its name for `format_named`.
        fixed_width_bytes: the length of every record; None if lengths differ.
        numpy_dtype: dtype of arrays whose elements have exactly the bytes of a record; None if there is none.
    """

    name: str
    fixed_width_bytes: int | None = None
    numpy_dtype: np.dtype[Any] | None = None

    @abc.abstractmethod
    def encode(self, record: Any) -> Encoded:
        """Encodes a record.

        Returns:
            Bytes that do not change when the caller changes its record afterwards.

        Raises:
            RecordError: the record does not fit the format.
        """

    def encode_pieces(self, record: Any) -> list[Encoded]:
        """Encodes a record in pieces, for formats that can lend large parts of it without a copy.

        Returns:
            The pieces in order. A lent piece keeps its memory alive, and the caller must not change the record until
            the pieces are written.

        Raises:
            RecordError: the record does not fit the format.
        """
        return [self.encode(record)]

    @abc.abstractmethod
    def decode(self, view: memoryview) -> Any:
        """Decodes the record in `view`, which holds its bytes and nothing else.

        Args:
            view: contiguous bytes, whose memory is recycled afterwards.

        Raises:
            RecordError: the bytes are malformed, or not all of them are used.
        """

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes the records in `rows`, with the same result as `decode` for each.

        Args:
            rows: k x n bytes, one record per row. The bytes of a row are contiguous, the rows need not be (they may be
            separated by length prefixes).

        Raises:
            RecordError: as `decode`.
        """
        count, width = rows.shape
        flat = np.ascontiguousarray(rows).reshape(-1).data
        return [self.decode(flat[at * width : (at + 1) * width]) for at in range(count)]


@final
class BytesFormat(RecordFormat):
    """Bytes, unchanged."""

    name = "bytes"

    def encode(self, record: Any) -> bytes:
        """Returns `record`; copies a `bytearray` or `memoryview`, whose owner may change it before it is sent."""
        if isinstance(record, bytes):
            return record
        if isinstance(record, bytearray | memoryview):
            return bytes(record)
        raise _misfit(record, self.name, "emit bytes, or choose another format")

    def decode(self, view: memoryview) -> bytes:
        """Copies the bytes."""
        return bytes(view)

    def decode_list(self, payloads: list[bytes]) -> list[bytes]:
        """Returns the payloads, which are the records."""
        return payloads

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Copies every row."""
        return rows_as_bytes(rows)


@final
class StrFormat(RecordFormat):
    """Text as UTF-8."""

    name = "str"

    def encode(self, record: Any) -> bytes:
        """Encodes the text in UTF-8."""
        if not isinstance(record, str):
            raise _misfit(record, self.name, "emit str, or choose another format")
        try:
            return record.encode()
        except UnicodeEncodeError as error:
            raise _misfit(record, self.name, f"{error}; a lone surrogate cannot be encoded in UTF-8") from error

    def encode_many(self, records: list[Any]) -> list[bytes]:
        """Encodes the texts in UTF-8."""
        if not {str}.issuperset(map(type, records)):
            raise TypeError("a record is not exactly of type str")
        return payloads_of(records)

    def decode(self, view: memoryview) -> str:
        """Decodes the bytes as text."""
        try:
            return str(view, "utf-8")
        except UnicodeDecodeError as error:
            raise _malformed(len(view), self.name, error) from error

    def decode_list(self, payloads: list[bytes]) -> list[str]:
        """Decodes every payload as text."""
        try:
            return texts_of(payloads)
        except UnicodeDecodeError as error:
            raise _malformed(len(error.object), self.name, error) from error

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes every row as text."""
        return self.decode_list(rows_as_bytes(rows))


class _NumberFormat(RecordFormat):
    """The common part of the two number formats: eight bytes, little-endian."""

    fixed_width_bytes = 8
    numpy_dtype: np.dtype[Any]
    _struct: struct.Struct
    _accepts: str

    def encode(self, record: Any) -> bytes:
        try:
            return self._struct.pack(record)
        except (struct.error, OverflowError, TypeError) as error:
            raise _misfit(record, self.name, f"{error}; {self._accepts}") from error

    def encode_many(self, records: list[Any]) -> list[bytes]:
        return [*map(self._struct.pack, records)]

    def decode(self, view: memoryview) -> Any:
        if len(view) != 8:
            raise _malformed(len(view), self.name, "it takes exactly 8 bytes")
        return self._struct.unpack(view)[0]

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        if rows.shape[1] != 8 and len(rows):
            raise _malformed(rows.shape[1], self.name, "it takes exactly 8 bytes")
        numbers: list[Any] = rows.view(self.numpy_dtype)[:, 0].tolist() if len(rows) else []
        return numbers


@final
class Int64Format(_NumberFormat):
    """Whole numbers from -2**63 to 2**63 - 1, eight bytes, little-endian."""

    name = "int64"
    numpy_dtype = np.dtype("<i8")
    _struct = struct.Struct("<q")
    _accepts = "emit a whole number from -2**63 to 2**63 - 1"


@final
class Float64Format(_NumberFormat):
    """IEEE 754 double precision, eight bytes, little-endian; a NaN keeps its bits where the machine allows it.

    An int is refused if it would be rounded.
    """

    name = "float64"
    numpy_dtype = np.dtype("<f8")
    _struct = struct.Struct("<d")
    _accepts = "emit a float"

    def encode(self, record: Any) -> bytes:
        """Encodes a number."""
        payload = super().encode(record)
        if isinstance(record, Integral) and int(record) != self._struct.unpack(payload)[0]:
            raise _misfit(record, self.name, "it would be rounded; emit a float, or choose int64")
        return payload

    def encode_many(self, records: list[Any]) -> list[bytes]:
        """Encodes the numbers."""
        is_plain = {float}.issuperset(map(type, records))
        return super().encode_many(records) if is_plain else [*map(self.encode, records)]


@final
class MsgpackFormat(RecordFormat):
    """Values of msgpack: None, bool, int up to 64 bits, float, str, bytes, list, dict, `Timestamp`, `ExtType`.

    A tuple is decoded as a list; as the key of a map, and inside such a key, as a tuple.
    """

    name = "msgpack"

    def __init__(self) -> None:
        # One packer is kept: creating one for each record costs more than packing a small record.
        self._pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack

    def encode(self, record: Any) -> bytes:
        """Encodes the value in msgpack."""
        try:
            return self._pack(record)
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(record, self.name, f"{error}; emit numbers, text, bytes, lists, maps") from error

    def decode(self, view: memoryview) -> Any:
        """Decodes one value; a length inside it cannot allocate more than the bytes hold."""
        try:
            return _unpack(view)
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            raise _malformed(len(view), self.name, error) from error

    def decode_list(self, payloads: list[bytes]) -> list[Any]:
        """Decodes the value of every payload."""
        unpack = msgpack.unpackb
        payload = b""
        try:
            try:
                return [unpack(payload := each, raw=False, strict_map_key=False) for each in payloads]
            except TypeError:  # a map has a list as a key
                return [_unpack(payload := each) for each in payloads]
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            raise _malformed(len(payload), self.name, error) from error

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes the value of every row."""
        return self.decode_list(rows_as_bytes(rows))


FORMATS: Mapping[str, Callable[[], RecordFormat]] = MappingProxyType(
    {
        "bytes": BytesFormat,
        "str": StrFormat,
        "int64": Int64Format,
        "float64": Float64Format,
        "msgpack": MsgpackFormat,
        "arrow": ArrowFormat,
    }
)


def format_named(name: str) -> RecordFormat:
    """Creates a format object for one writer or reader.

    Raises:
        ConfigError: unknown format, or it needs a package that is not installed.
    """
    factory = FORMATS.get(name)
    if factory is None:
        raise ConfigError(f"no record format {name!r}; give one of {', '.join(FORMATS)}")
    return factory()


def as_format(format: RecordFormat | str) -> RecordFormat:
    """Returns a format object; creates one of that name if a name is given.

    Raises:
        ConfigError: as `format_named`, or it is neither a name nor a format object.
    """
    if isinstance(format, str):
        return format_named(format)
    if isinstance(format, type) or not hasattr(format, "decode"):
        raise ConfigError(
            f"format={format!r}; give one of {', '.join(FORMATS)}, or an object of a subclass of RecordFormat"
        )
    return format


def encoder_of(format: RecordFormat) -> Callable[[Any], Encoded]:
    """`format.encode`; that of a format of your own raises RecordError if it returns no bytes."""
    if type(format).__module__.startswith("netstack."):
        return format.encode
    encode: Callable[[Any], object] = format.encode

    def encode_checked(record: Any) -> Any:
        encoded = encode(record)
        if isinstance(encoded, bytes | bytearray) or (isinstance(encoded, memoryview) and encoded.itemsize == 1):
            return encoded
        raise RecordError(f"encode of format {format.name} returned {type_text(encoded)}; it must return bytes")

    return encode_checked


def kind_of(format: RecordFormat) -> str:
    """The name of a format that `exchange/record/fast_path` implements itself, else ""."""
    return format.name if type(format) in (BytesFormat, StrFormat, Int64Format, Float64Format) else ""


def rows_as_bytes(rows: NDArray[np.uint8]) -> list[bytes]:
    """Converts every row of a k x n array to `bytes`; the bytes of a row are contiguous, the rows need not be.

    Viewing a row as one opaque `V{n}` element lets numpy create the objects: 22 ns for each of 8 bytes, where slicing
    takes 100. (`S{n}` is faster still but wrong: it drops trailing zeros.)
    """
    count, width = rows.shape
    if not count or not width:
        return [b""] * count
    records: list[bytes] = rows.view(f"V{width}")[:, 0].tolist()
    return records


def byte_rows(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Views an array of opaque records as k x n bytes: it is that already, or it has items of `V{n}` or `S{n}`.

    Returns:
        The rows, in place if the items are contiguous; None if the elements are not opaque bytes.
    """
    if array.ndim == 2 and array.dtype == np.uint8:
        return array
    if array.ndim == 1 and array.dtype.kind in "VS" and array.dtype.names is None and array.dtype.subdtype is None:
        return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)
    return None


def _unpack(payload: bytes | memoryview) -> Any:
    """Decodes a value of msgpack; a list that is the key of a map becomes a tuple, since a list cannot be one."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except TypeError:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False, object_pairs_hook=_map_of)


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in pairs}


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _misfit(record: Any, name: str, text: str) -> RecordError:
    try:
        label = reprlib.repr(record)  # repr() of a huge or very deep record would take long, or fail
    except ValueError:  # an int of more digits than Python prints
        label = "(too long to show)"
    return RecordError(f"record {label:.60} of type {type(record).__name__} does not fit format {name}: {text}")


def _malformed(size_bytes: int, name: str, cause: object) -> RecordError:
    return RecordError(
        f"{size_bytes} bytes are not a record of format {name}: {cause}; does the producer write the same format?"
    )
