"""Key groups: assigns keys to subpartitions with Flink's arithmetic, one key or a whole array at a time.

Takes: keys. Gives: hashes that are equal in every process, key groups, the subpartition that owns each group, and the
canonical form of a key, which defines key equality for placement and for state.

The hash of a key is Java's `hashCode` of the corresponding type, because Python's `hash` differs between processes. The
murmur of that hash selects one of `max_parallelism` key groups. Each subpartition owns a contiguous range of groups, so
a change of parallelism moves whole groups. Keys that are equal in Python but have different types (1, 1.0, True) are
different keys, as in Java; so are 0.0 and -0.0. All NaNs are one key (`Double.equals`).

The functions named `..._array` return the results of the plain functions for each element, at a few nanoseconds an
element.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import ConfigError, RecordError
from .record.formats import byte_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_DEFAULT_MAX_PARALLELISM = 128
MAX_PARALLELISM_LIMIT = 32_768
"""Flink's limit, so that a key group fits 15 bits."""

PLAIN_KEYS = frozenset({int, str, bytes, type(None)})
"""Keys of exactly these types are their own canonical form, because Python's `==` distinguishes them as Java does."""

_FORM = object()  # the first item of every canonical form that differs from its key
_NAN_BITS = bytes.fromhex("000000000000f87f")
_MASK = 0xFFFFFFFF
_FLOAT = struct.Struct("<d")
_HALVES = struct.Struct("<II")
_TRUE_HASH, _FALSE_HASH = 1231, 1237  # Java's Boolean
_NAN_HASH = 0x7FF80000  # Java hashes every NaN alike
_UTF_16 = f"utf-16-{sys.byteorder[0]}e"  # in the machine's byte order, to be read as numbers

# Keys hashed at a time: murmur makes twenty passes, and a chunk of 64 KiB stays in the cache. Smaller chunks would pay
# numpy's fixed cost of a call too often.
_CHUNK_KEYS = 16_384


def stable_hash(key: object) -> int:
    """The 32-bit hash of a key, equal in every process and on every machine.

    int: the value itself if it fits 32 bits (Java's Integer), otherwise the xor of its halves (Long). str: String, over
    UTF-16 units. bytes: Arrays.hashCode. float: Double. bool: Boolean. None: 0. tuple: Flink's Tuple, from the hashes
    of its items. A numpy scalar counts as the Python value it holds.

    Returns:
        A signed 32-bit number.

    Raises:
        RecordError: the type has no stable hash, or an int does not fit 64 bits.
    """
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, str):
        if key.isascii():
            return _signed(_polynomial(0, key.encode()))
        return _signed(_polynomial(0, memoryview(key.encode(_UTF_16, "surrogatepass")).cast("H")))
    if isinstance(key, bool):
        return _TRUE_HASH if key else _FALSE_HASH
    if isinstance(key, int):
        if -(1 << 31) <= key < 1 << 31:
            return key
        if -(1 << 63) <= key < 1 << 63:
            return _signed((key ^ (key >> 32)) & _MASK)
        raise RecordError(
            f"an int key of {key.bit_length()} bits and a sign does not fit 64 bits; use its text as the key"
        )
    if isinstance(key, bytes):
        return _signed(_polynomial(1, memoryview(key).cast("b")))
    if isinstance(key, float):
        if key != key:
            return _NAN_HASH
        low, high = _HALVES.unpack(_FLOAT.pack(key))
        return _signed(low ^ high)
    if isinstance(key, tuple):
        return _signed(_polynomial(0, map(stable_hash, key)))
    if key is None:
        return 0
    raise _no_key(key)


def canonical_key(key: Any) -> Any:
    """Returns the dict key that represents a key: equal in Python exactly if two keys are the same key.

    Type and value identify a key: 1, 1.0 and True are three keys, 0.0 and -0.0 are two, and every NaN is the same key.
    A tuple is identified by its items. Numpy scalars, and subclasses of int, str, bytes, float or tuple, count as the
    value they hold.

    Returns:
        The key itself if its type is in `PLAIN_KEYS` or it is a tuple of such keys; a canonical form is returned
        unchanged. Otherwise a form that `original_key` converts back.

    Raises:
        RecordError: the type has no stable hash.
    """
    kind = key.__class__
    if kind in PLAIN_KEYS or (kind is tuple and PLAIN_KEYS.issuperset(map(type, key))):
        return key
    if kind is float and key and key == key:  # only zeros and NaN are represented by their bits
        return (_FORM, float, key)
    if isinstance(key, np.generic):
        key = key.item()
        if key.__class__ in PLAIN_KEYS:
            return key
    if isinstance(key, float):
        if key and key == key:
            return (_FORM, float, float(key))
        return (_FORM, float, _FLOAT.pack(key) if key == key else _NAN_BITS)
    if isinstance(key, tuple):
        if key and key[0] is _FORM:
            return key
        forms = tuple(map(canonical_key, key))
        if not all(each.__class__ in PLAIN_KEYS or original_key(each) is each for each in forms):
            return (_FORM, tuple, forms)
        return key if kind is tuple and all(map(is_, forms, key)) else forms
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bool):
        return (_FORM, bool, key)
    if isinstance(key, int):
        return int.__int__(key)
    if isinstance(key, bytes):
        return bytes(key)
    raise _no_key(key)


def original_key(form: Any) -> Any:
    """Returns the key of a canonical form, as a plain Python value."""
    if form.__class__ is not tuple or not form or form[0] is not _FORM:
        return form
    _, kind, value = form
    if kind is tuple:
        return tuple(map(original_key, value))
    return _FLOAT.unpack(value)[0] if value.__class__ is bytes else value


def murmur(value: int) -> int:
    """Flink's murmur of a 32-bit hash: spreads neighbouring hashes; never negative."""
    x = value * 0xCC9E2D51 & _MASK
    x = (x << 15 | x >> 17) * 0x1B873593 & _MASK
    x = ((x << 13 | x >> 19) * 5 + 0xE6546B64) & _MASK ^ 4
    x = (x ^ x >> 16) * 0x85EBCA6B & _MASK
    x = (x ^ x >> 13) * 0xC2B2AE35 & _MASK
    x ^= x >> 16
    if x < 0x80000000:
        return x
    return -x & 0x7FFFFFFF  # negative in Java: negated; Java's least int has no positive counterpart and gives 0


def key_group(key: object, max_parallelism: int) -> int:
    """The key group of a key, from 0 to `max_parallelism` - 1.

    Raises:
        RecordError: the key's type has no stable hash.
    """
    return murmur(stable_hash(key)) % max_parallelism


def operator_index(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subpartition that owns a key group."""
    return group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Flink's default: 1.5 times the parallelism, rounded up to a power of two, from 128 to 32,768."""
    with_room = parallelism + parallelism // 2
    return min(max(1 << (with_room - 1).bit_length(), MIN_DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Checks the arguments of the formulas above.

    Raises:
        ConfigError: not 1 <= parallelism <= max_parallelism <= 32,768.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(f"max_parallelism={max_parallelism}; give 1 to {MAX_PARALLELISM_LIMIT}")
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigError(
            f"{parallelism} subpartitions cannot share {max_parallelism} key groups; give 1 to {max_parallelism}"
            " subpartitions, or a larger max_parallelism"
        )


def hash_array(keys: NDArray[Any]) -> NDArray[np.int32] | None:
    """`stable_hash` of every element, for integers, floats, bools, and rows of bytes.

    Args:
        keys: a one-dimensional array of numbers, or bytes as `byte_rows` accepts them.

    Returns:
        The hashes; None for other arrays, whose elements have to be hashed one by one.

    Raises:
        RecordError: an unsigned number does not fit 63 bits.
    """
    rows = byte_rows(keys)
    if rows is not None:
        return _hash_rows(rows)
    if keys.ndim != 1:
        return None
    kind = keys.dtype.kind
    if kind in "iu":
        if keys.dtype.itemsize < 4 or keys.dtype == np.int32:
            return keys.astype(np.int32)
        if kind == "u" and keys.dtype.itemsize == 8 and len(keys) and int(keys.max()) >= 1 << 63:
            raise RecordError(f"an unsigned key of {int(keys.max())} does not fit 63 bits; use its text as the key")
        return _fold(keys, narrow_is_itself=True)
    if kind == "f" and keys.dtype.itemsize <= 8:
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            numbers = keys.astype(np.float64)
        hashes = _fold(numbers.view(np.int64), narrow_is_itself=False)
        hashes[np.isnan(numbers)] = _NAN_HASH
        return hashes
    if kind == "b":
        return np.where(keys, np.int32(_TRUE_HASH), np.int32(_FALSE_HASH))
    return None


def murmur_array(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """`murmur` of every hash."""
    x = hashes.astype(np.uint32)
    scratch = np.empty_like(x)
    x *= np.uint32(0xCC9E2D51)
    _rotate_left(x, 15, scratch)
    x *= np.uint32(0x1B873593)
    _rotate_left(x, 13, scratch)
    x *= np.uint32(5)
    x += np.uint32(0xE6546B64)
    x ^= np.uint32(4)
    x ^= np.right_shift(x, 16, out=scratch)
    x *= np.uint32(0x85EBCA6B)
    x ^= np.right_shift(x, 13, out=scratch)
    x *= np.uint32(0xC2B2AE35)
    x ^= np.right_shift(x, 16, out=scratch)
    signed = x.view(np.int32)
    np.absolute(signed, out=signed)  # the least number stays negative; its lower bits are 0
    x &= np.uint32(0x7FFFFFFF)
    return signed


def key_group_array(hashes: NDArray[np.int32], max_parallelism: int) -> NDArray[np.uint16]:
    """The key group of every hash."""
    return (murmur_array(hashes).view(np.uint32) % np.uint32(max_parallelism)).astype(np.uint16)


def group_owners(parallelism: int, max_parallelism: int) -> NDArray[np.unsignedinteger[Any]]:
    """The subpartition of every key group, as u1 or u2, because numpy sorts these types by counting.

    Raises:
        ConfigError: as `check_parallelism`.
    """
    check_parallelism(parallelism, max_parallelism)
    owners = np.arange(max_parallelism) * parallelism // max_parallelism
    return owners.astype(np.min_scalar_type(parallelism - 1))


def owner_array(
    hashes: NDArray[np.int32], owners: NDArray[np.unsignedinteger[Any]]
) -> NDArray[np.unsignedinteger[Any]]:
    """The subpartition of every hash, from a table of `group_owners`."""
    indices = np.empty(len(hashes), owners.dtype)
    groups = len(owners)
    for at in range(0, len(hashes), _CHUNK_KEYS):
        chunk = slice(at, at + _CHUNK_KEYS)
        np.take(owners, key_group_array(hashes[chunk], groups), out=indices[chunk], mode="clip")
    return indices


def _no_key(key: object) -> RecordError:
    return RecordError(
        f"key of type {type(key).__name__} has no stable hash;"
        " give an int, str, bytes, float, bool, None, or a tuple of these"
    )


def _signed(unsigned: int) -> int:
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def _polynomial(start: int, units: Iterable[int]) -> int:
    """Java's 31 * h + unit over all units, as an unsigned 32-bit number."""
    value = start
    for unit in units:
        value = 31 * value + unit & _MASK
    return value & _MASK


def _fold(words: NDArray[Any], *, narrow_is_itself: bool) -> NDArray[np.int32]:
    """Xors the halves of every 64-bit word; with `narrow_is_itself`, words that fit 32 bits are kept."""
    folded = np.empty(len(words), np.int32)
    for at in range(0, len(words), _CHUNK_KEYS):
        chunk = words[at : at + _CHUNK_KEYS].astype(np.int64, copy=False)
        low = chunk.astype(np.int32)  # wraps on purpose
        high = (chunk >> 32).astype(np.int32)
        if narrow_is_itself:
            high[high == low >> 31] = 0
        np.bitwise_xor(low, high, out=folded[at : at + _CHUNK_KEYS])
    return folded


def _hash_rows(rows: NDArray[np.uint8]) -> NDArray[np.int32]:
    hashes = np.ones(len(rows), np.int32)
    for column in rows.view(np.int8).T:
        hashes *= np.int32(31)
        hashes += column
    return hashes


def _rotate_left(x: NDArray[np.uint32], bits: int, scratch: NDArray[np.uint32]) -> None:
    np.right_shift(x, 32 - bits, out=scratch)
    x <<= bits
    x |= scratch
