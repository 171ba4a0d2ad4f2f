"""How one record becomes bytes and comes back: the built-in formats, and what a format of one's own offers.

Takes: records, or windows of exactly one record's bytes. Gives: bytes to the serializer, records to the deserializer.

Rules: the framing stores the length, so a format stores none. `decode` is given exactly the bytes of one record and has
to use up all of them; it keeps no reference to them, because their segment is recycled when it returns. Whatever does
not fit is a `RecordError`. Nothing read from the network is unpickled or evaluated.

Numbers are little-endian, although the framing's lengths are big-endian: numpy arrays are little-endian on every
machine we run on, so a batch of numbers is stored and loaded without swapping bytes.
"""

from __future__ import annotations

import abc
import reprlib
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import msgpack
import numpy as np

from ..errors import ConfigError, RecordError
from .arrow import ArrowFormat
from .framing import payloads_of, texts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encoded: TypeAlias = "bytes | memoryview"


class RecordFormat(Protocol):
    """One way to turn records into bytes; subclass it for a format of your own.

    An object serves one writer or one reader at a time: it may keep scratch space. Three more methods are used where a
    format has them: `decode_list(payloads)`, which is `decode` for a list of small records that the reader has copied
    already; `decode_owned(view)`, which is `decode` for memory that the record may keep; and, of a format whose records
    cannot change, `encode_many(records)`, which is `encode` for a list. It raises if one of them does not fit.

    Attributes:
        name: as in `format_named`.
        fixed_width_bytes: the length of every record; None when records differ.
        numpy_dtype: type of an array whose elements have exactly the bytes of a record each; None without one.
    """

    name: str
    fixed_width_bytes: int | None = None
    numpy_dtype: np.dtype[Any] | None = None

    @abc.abstractmethod
    def encode(self, record: Any) -> Encoded:
        """The bytes of a record.

        Returns:
            Bytes that stay as they are even when the caller changes its record afterwards.

        Raises:
            RecordError: the record does not fit the format.
        """

    def encode_pieces(self, record: Any) -> list[Encoded]:
        """The bytes of a record in pieces, for formats that can lend large parts of it without a copy.

        Returns:
            The pieces in order; a lent piece keeps its memory alive, and the caller leaves the record unchanged until
            the pieces are written.

        Raises:
            RecordError: the record does not fit the format.
        """
        return [self.encode(record)]

    @abc.abstractmethod
    def decode(self, view: memoryview) -> Any:
        """The record in `view`, which holds the bytes of this record and nothing else.

        Args:
            view: contiguous bytes; its memory is recycled as soon as this returns.

        Raises:
            RecordError: the bytes are malformed, or not all of them are used.
        """

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """The records of `rows`, exactly as one `decode` each would give them.

        Args:
            rows: k x n bytes, a record a row; the bytes of a row are contiguous, the rows need not be (a payload
                column between length prefixes will do).

        Raises:
            RecordError: as `decode`.
        """
        count, width = rows.shape
        flat = np.ascontiguousarray(rows).reshape(-1).data
        return [self.decode(flat[at * width : (at + 1) * width]) for at in range(count)]


@final
class BytesFormat(RecordFormat):
    """Bytes, as they are."""

    name = "bytes"

    def encode(self, record: Any) -> bytes:
        """`record` itself; a copy of a `bytearray` or `memoryview`, whose owner may change it before it is sent."""
        if isinstance(record, bytes):
            return record
        if isinstance(record, bytearray | memoryview):
            return bytes(record)
        raise _misfit(record, self.name, "emit bytes, or choose another format")

    def decode(self, view: memoryview) -> bytes:
        """A copy of the window."""
        return bytes(view)

    def decode_list(self, payloads: list[bytes]) -> list[bytes]:
        """They are the records."""
        return payloads

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """A copy of every row."""
        return rows_as_bytes(rows)


@final
class StrFormat(RecordFormat):
    """Text as UTF-8."""

    name = "str"

    def encode(self, record: Any) -> bytes:
        """The text in UTF-8."""
        if not isinstance(record, str):
            raise _misfit(record, self.name, "emit str, or choose another format")
        try:
            return record.encode()
        except UnicodeEncodeError as error:
            raise _misfit(record, self.name, f"{error}; a lone surrogate has no bytes in UTF-8") from error

    def encode_many(self, records: list[Any]) -> list[bytes]:
        """The texts in UTF-8."""
        if not {str}.issuperset(map(type, records)):
            raise TypeError("not all of them are plain text")
        return payloads_of(records)

    def decode(self, view: memoryview) -> str:
        """The window as text."""
        try:
            return str(view, "utf-8")
        except UnicodeDecodeError as error:
            raise _malformed(len(view), self.name, error) from error

    def decode_list(self, payloads: list[bytes]) -> list[str]:
        """Every payload as text."""
        try:
            return texts_of(payloads)
        except UnicodeDecodeError as error:
            raise _malformed(len(error.object), self.name, error) from error

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Every row as text."""
        return self.decode_list(rows_as_bytes(rows))


class _NumberFormat(RecordFormat):
    """What the two number formats share: eight bytes, little-endian."""

    fixed_width_bytes = 8
    numpy_dtype: np.dtype[Any]
    _struct: struct.Struct
    _accepts: str

    def encode(self, record: Any) -> bytes:
        try:
            return self._struct.pack(record)
        except (struct.error, OverflowError) as error:
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
    """IEEE 754 double precision, eight bytes, little-endian; a NaN keeps its bits where the machine lets it."""

    name = "float64"
    numpy_dtype = np.dtype("<f8")
    _struct = struct.Struct("<d")
    _accepts = "emit a float"


@final
class MsgpackFormat(RecordFormat):
    """Any value msgpack knows: None, bool, int up to 64 bits, float, str, bytes, list, dict, `Timestamp`, `ExtType`.

    A tuple comes back as a list. Map keys may be of any hashable type.
    """

    name = "msgpack"

    def __init__(self) -> None:
        # One packer is kept: making one for each record costs more than packing a small record does.
        self._pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack

    def encode(self, record: Any) -> bytes:
        """The value in msgpack."""
        try:
            return self._pack(record)
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(record, self.name, f"{error}; emit numbers, text, bytes, lists, maps") from error

    def decode(self, view: memoryview) -> Any:
        """The one value in the window; a length inside it cannot ask for more than the window holds."""
        try:
            return msgpack.unpackb(view, raw=False, strict_map_key=False)
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            raise _malformed(len(view), self.name, error) from error

    def decode_list(self, payloads: list[bytes]) -> list[Any]:
        """The value of every payload."""
        unpack = msgpack.unpackb
        payload = b""
        try:
            return [unpack(payload := each, raw=False, strict_map_key=False) for each in payloads]
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            raise _malformed(len(payload), self.name, error) from error

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """The value of every row."""
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
    """A new format object for one writer or reader.

    Raises:
        ConfigError: no format has this name, or it needs a package that is not installed.
    """
    factory = FORMATS.get(name)
    if factory is None:
        raise ConfigError(f"no record format {name!r}; there are {', '.join(FORMATS)}")
    return factory()


def kind_of(format: RecordFormat) -> str:
    """The name of a format whose records `record/cells` encodes and decodes itself, or ""."""
    return format.name if type(format) in (BytesFormat, StrFormat, Int64Format, Float64Format) else ""


def rows_as_bytes(rows: NDArray[np.uint8]) -> list[bytes]:
    """A `bytes` for every row of a k x n array; the bytes of a row are contiguous, the rows need not be.

    Viewing a row as one opaque `V{n}` element lets numpy make the objects: 22 ns for each of 8 bytes, where slicing
    takes 100. (`S{n}` is faster still and wrong: it drops zeros at the end.)
    """
    count, width = rows.shape
    if not count or not width:
        return [b""] * count
    records: list[bytes] = rows.view(f"V{width}")[:, 0].tolist()
    return records


def byte_rows(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """An array of opaque records as k x n bytes: it is that already, or it holds items of `V{n}` or `S{n}`.

    Returns:
        The rows, in place where the items are contiguous; None when the elements mean more than their bytes.
    """
    if array.ndim == 2 and array.dtype == np.uint8:
        return array
    if array.ndim == 1 and array.dtype.kind in "VS" and array.dtype.names is None and array.dtype.subdtype is None:
        return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)
    return None


def _misfit(record: Any, name: str, text: str) -> RecordError:
    try:
        label = reprlib.repr(
            record
        )  # a plain repr() of a huge or very deep record would take long, or fail in its turn
    except ValueError:  # an int of more digits than Python prints
        label = "(too long to show)"
    return RecordError(f"record {label:.60} of type {type(record).__name__} does not fit format {name}: {text}")


def _malformed(size_bytes: int, name: str, cause: object) -> RecordError:
    return RecordError(
        f"{size_bytes} bytes are not a record of format {name}: {cause}; does the producer write the same format?"
    )
