"""Channel selectors: choose the subpartition of a record, or of each record of an array.

Takes: records, and arrays of records, from a `RecordWriter`. Gives: subpartition indices.

Rules: an array is distributed exactly as its records would be one by one (`records_of` converts it to records). Only
`adaptive.AdaptiveRebalanceSelector`, whose choice depends on timing anyway, deals arrays in larger shares. The writer
calls `setup` once, first; a selector holds the state of one writer. A generator argument makes a run repeatable. What a
selector of the user chooses is checked (`checked`): the index after the last one would send to every consumer.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from ...base.errors import ConfigError, LocalProtocolError, RecordError
from ...base.own_packages import OWN_PACKAGES
from ...base.text.safe_text import safe_repr
from ..keygroups import (
    MAX_PARALLELISM_LIMIT,
    PLAIN_KEYS,
    canonical_key,
    default_max_parallelism,
    group_owners,
    hash_array,
    murmur,
    original_key,
    owner_array,
    stable_hash,
)
from ..record.fast_path import key_slots
from ..record.formats import byte_rows, rows_as_bytes

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from .subpartition import ResultSubpartition

Indices: TypeAlias = "NDArray[np.integer[Any]]"
"""A subpartition index for every record of an array. The selectors of this module use the narrowest unsigned type
(u1, u2, u4), because numpy's stable argsort of one or two bytes counts instead of comparing, several times faster."""


class ChannelSelector(abc.ABC):
    """Chooses the subpartition of each record. Subclass it, or use `CustomSelector`, for another rule.

    Attributes:
        channels: number of subpartitions; 0 before `setup`.
        is_broadcast: every record goes to all of them; `select` is not called.
        is_round_robin: `advance` works: the writer may cut an array into strided slices without computing indices.
    """

    channels: int = 0
    is_broadcast: bool = False
    is_round_robin: bool = False

    def setup(self, channels: int) -> None:
        """Stores the number of subpartitions; called once.

        Raises:
            ConfigError: this selector does not support that number.
        """
        if channels < 1:
            raise ConfigError(f"{type(self).__name__} was set up with {channels} subpartitions; the minimum is 1")
        self.channels = channels

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:  # noqa: B027 - optional
        """Receives the subpartitions, after `setup`, for rules that depend on their load."""

    @abc.abstractmethod
    def select(self, record: Any) -> int:
        """The subpartition of a record, from 0 to `channels` - 1."""

    @abc.abstractmethod
    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The result of `select` for each record of `array` in order.

        Returns:
            One subpartition for the whole array, or an index for each record.
        """

    def select_many(self, records: list[Any]) -> list[int] | None:
        """The result of `select` for each record in order; None: the caller must select one by one.

        Raises:
            Exception: the caller must select one by one, which raises it again. The state has not changed.
        """
        return None

    def advance(self, count: int) -> int:
        """Advances a round robin by `count` records; returns the subpartition of the first.

        Record i belongs to `(first + i) % channels`, so that subpartition c gets the strided slice
        `array[(c - first) % channels :: channels]`.
        """
        raise LocalProtocolError(f"{type(self).__name__} is not a round robin; check is_round_robin first")


class _FirstSelector(ChannelSelector):
    """Always chooses subpartition 0."""

    def select(self, record: Any) -> int:
        return 0

    def select_batch(self, array: NDArray[Any]) -> int:
        return 0


@final
class ForwardSelector(_FirstSelector):
    """Sends every record to the one consumer (pointwise: the partition has one subpartition)."""


@final
class GlobalSelector(_FirstSelector):
    """Sends every record to the first consumer."""


@final
class BroadcastSelector(ChannelSelector):
    """Sends every record to every consumer; the subpartitions share one buffer."""

    is_broadcast = True

    def select(self, record: Any) -> int:
        """Raises: a record has no single subpartition."""
        raise LocalProtocolError("BroadcastSelector has no single subpartition for a record; check is_broadcast first")

    def select_batch(self, array: NDArray[Any]) -> int:
        """Raises: a record has no single subpartition."""
        return self.select(array)


class RoundRobinSelector(ChannelSelector):
    """Sends each record to the subpartition after the previous one."""

    is_round_robin = True

    def __init__(self) -> None:
        self._next = 0

    def select(self, record: Any) -> int:
        """The next subpartition."""
        channel = self._next
        after = channel + 1
        self._next = after if after < self.channels else 0
        return channel

    def select_many(self, records: list[Any]) -> list[int]:
        """The next subpartitions, one for each record."""
        chosen: list[int] = self.next_indices(len(records)).tolist()
        return chosen

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The next subpartitions, one for each record."""
        return 0 if self.channels == 1 else self.next_indices(len(array))

    @final
    def advance(self, count: int) -> int:
        """Advances by `count` records; returns the subpartition of the first."""
        start = self._next
        self._next = (start + count) % self.channels
        return start

    @final
    def next_indices(self, count: int) -> Indices:
        """Advances by `count` records; returns the subpartition of each."""
        start = self.advance(count)
        turns = np.arange(start, start + count, dtype=np.uint32) % np.uint32(self.channels)
        return turns.astype(_index_type(self.channels))


@final
class RebalanceSelector(RoundRobinSelector):
    """Round robin over all consumers, from a random start, so that producers do not all begin with the same consumer.

    Args:
        rng: draws the start; None: subpartition 0.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        super().__init__()
        self._rng = rng

    def setup(self, channels: int) -> None:
        """Draws the start."""
        super().setup(channels)
        self._next = self._rng.randrange(channels) if self._rng is not None else 0


@final
class RescaleSelector(RoundRobinSelector):
    """Round robin over the producer's own part of the consumers (pointwise), from subpartition 0."""


@final
class ShuffleSelector(ChannelSelector):
    """Draws a subpartition at random for each record, all with equal probability.

    Args:
        rng: the generator; an array draws from it exactly what its records would draw one by one.
    """

    def __init__(self, rng: random.Random) -> None:
        self._bits = rng.getrandbits

    def select(self, record: Any) -> int:
        """Draws one."""
        # 32 bits scaled to the range need no retries, so that an array can be drawn at once. The bias is below
        # channels / 2**32.
        return self._bits(32) * self.channels >> 32

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """Draws one for each record."""
        count = len(array)
        # A long draw consists of 32-bit words, the first drawn lowest: the same words as `count` short draws.
        words = np.frombuffer(self._bits(32 * count).to_bytes(4 * count, "little"), "<u4")
        return (words.astype(np.uint64) * np.uint64(self.channels) >> np.uint64(32)).astype(_index_type(self.channels))


KNOWN_KEYS = 1 << 16
KNOWN_LENGTH = 256
KNOWN_ITEMS = 8
"""A writer caches the owners of this many keys, of at most this many characters or bytes, or tuple items."""


class _KnownKeys(dict[Any, int]):
    """Caches the owner of recent keys, by `canonical_key`: a look-up costs a fiftieth of hashing."""

    __slots__ = ("_owners",)

    def __init__(self, owners: list[int]) -> None:
        """Takes the owner of every key group."""
        super().__init__()
        self._owners = owners

    def __missing__(self, form: Any) -> int:
        owner = self._owners[murmur(stable_hash(original_key(form))) % len(self._owners)]
        if _is_small(form):
            if len(self) >= KNOWN_KEYS:
                self.clear()
            self[form] = owner
        return owner


def _is_small(form: Any) -> bool:
    """Whether a key is short enough to be cached."""
    if form.__class__ is tuple:
        return len(form) <= KNOWN_ITEMS and all(map(_is_small, form))
    return not isinstance(form, str | bytes) or len(form) <= KNOWN_LENGTH


@final
class KeyGroupSelector(ChannelSelector):
    """Sends each record to the subpartition that owns its key group: equal keys meet.

    Args:
        key: returns the key of a record, of a type that `stable_hash` supports; None: the record is its own key.
        key_batch: returns the keys of an array of records, as an array; fast. It must agree with `key`, which is called
        for each record of an array where this is None.
        max_parallelism: number of key groups, fixed for the life of the job; None: `default_max_parallelism`.
        key_type: declared type of all keys; a record with another key is refused. None: any type.

    Raises:
        ConfigError: `max_parallelism` out of range, or `key_batch` without `key`.
    """

    def __init__(
        self,
        key: Callable[[Any], Any] | None = None,
        key_batch: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
        max_parallelism: int | None = None,
        key_type: type | None = None,
    ) -> None:
        if key_batch is not None and key is None:
            raise ConfigError(
                "KeyGroupSelector has key_batch without key: give key too, for records emitted one by one"
            )
        if max_parallelism is not None and not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
            raise ConfigError(f"max_parallelism={max_parallelism}; give 1 to {MAX_PARALLELISM_LIMIT}, or None")
        self._key = key
        self._key_batch = key_batch
        self._key_type = key_type
        self._requested_max_parallelism = max_parallelism
        self.max_parallelism = 0
        self._owner_array = np.empty(0, np.uint8)
        self._owners: list[int] = []
        self._known = _KnownKeys([])

    def setup(self, channels: int) -> None:
        """Distributes the key groups among the subpartitions."""
        super().setup(channels)
        self.max_parallelism = self._requested_max_parallelism or default_max_parallelism(channels)
        self._owner_array = group_owners(channels, self.max_parallelism)
        self._owners = self._owner_array.tolist()
        self._known = _KnownKeys(self._owners)

    def select(self, record: Any) -> int:
        """The owner of the record's key group."""
        key = record if self._key is None else self._key(record)
        if key.__class__ is not self._key_type and self._key_type is not None:
            self._check_type(key)
        return self._known[key if key.__class__ in PLAIN_KEYS else canonical_key(key)]

    def select_many(self, records: list[Any]) -> list[int] | None:
        """The owners of the records' key groups; None if a key does not have the declared type."""
        key = self._key
        keys = records if key is None else [key(record) for record in records]
        if key_slots is not None:
            return key_slots(keys, self._key_type, self._owners, self._owner_of)
        types = set(map(type, keys))
        if self._key_type is not None and types != {self._key_type}:
            return None
        if not types <= PLAIN_KEYS:
            keys = [*map(canonical_key, keys)]
        return [*map(self._known.__getitem__, keys)]

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The owner of each record's key group."""
        if self.channels == 1:
            return 0
        if self._key is not None and self._key_batch is None:
            records: list[Any] = records_of(array)
            slots = self.select_many(records)
            return np.array([*map(self.select, records)] if slots is None else slots, self._owner_array.dtype)
        return owner_array(self._hashes(array), self._owner_array)

    def _owner_of(self, key: Any) -> int:
        return self._known[canonical_key(key)]

    def _check_type(self, key: Any) -> None:
        """Accepts values that convert to the declared type, such as numpy's numbers."""
        assert self._key_type is not None
        if canonical_key(key).__class__ is not self._key_type:
            what = getattr(self._key, "__qualname__", "the format of the edge")
            raise RecordError(
                f"{what} declares keys of type {self._key_type.__name__}, but returned {safe_repr(key)} of type"
                f" {type(key).__name__}: equal keys of two types are two keys, so declare the returned type, or none"
            )

    def _hashes(self, array: NDArray[Any]) -> NDArray[np.int32]:
        keys = array
        if self._key_batch is not None:
            keys = np.asarray(self._key_batch(array))
            if len(keys) != len(array):
                raise ConfigError(f"key_batch returned {len(keys)} keys for {len(array)} records; return one for each")
        hashes = hash_array(keys)
        if hashes is None:
            hashes = np.array([stable_hash(key) for key in records_of(keys)], np.int32)
        return hashes


@final
class CustomSelector(ChannelSelector):
    """Calls a function of the user.

    Args:
        partitioner: maps `(key, channels)` to a subpartition.
        key: returns the key of a record; None: the record itself.
        partition_batch: maps `(array, channels)` to one subpartition, or an index for each record. It must agree with
        `partitioner`, which is called for each record of an array where this is None.
    """

    def __init__(
        self,
        partitioner: Callable[[Any, int], int],
        key: Callable[[Any], Any] | None = None,
        partition_batch: Callable[[NDArray[Any], int], int | Indices] | None = None,
    ) -> None:
        self._partitioner = partitioner
        self._key = key
        self._partition_batch = partition_batch

    def select(self, record: Any) -> int:
        """The result of the function.

        Raises:
            ConfigError: the function returned a subpartition that does not exist, or no int.
        """
        chosen = self._partitioner(record if self._key is None else self._key(record), self.channels)
        is_right = chosen.__class__ is int and 0 <= chosen < self.channels
        return chosen if is_right else checked_channel(chosen, self.channels, self)

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The result of the function for each record.

        Raises:
            ConfigError: it returned a subpartition that does not exist, or not one for each record.
        """
        if self._partition_batch is None:
            return np.array([self.select(record) for record in records_of(array)], _index_type(self.channels))
        return checked_channels(self._partition_batch(array, self.channels), len(array), self.channels, self)

    def __str__(self) -> str:
        """Names the function, for errors."""
        return f"custom partitioner {getattr(self._partitioner, '__qualname__', self._partitioner)}"


def checked_channel(chosen: Any, channels: int, rule: object) -> int:
    """Returns the subpartition that a rule of the user chose for a record.

    Raises:
        ConfigError: it is not a whole number from 0 to `channels` - 1.
    """
    try:
        channel = operator.index(chosen)
    except TypeError:
        raise ConfigError(
            f"{rule} returned {safe_repr(chosen)}; return the number of a subpartition, here 0 to {channels - 1}"
        ) from None
    if not 0 <= channel < channels:
        raise ConfigError(f"{rule} chose subpartition {channel}; there are 0 to {channels - 1}")
    return channel


def checked_channels(chosen: Any, count: int, channels: int, rule: object) -> int | Indices:
    """Returns the subpartitions that a rule of the user chose for an array of `count` records.

    Raises:
        ConfigError: it is neither one whole number from 0 to `channels` - 1, nor one for each record.
    """
    indices = np.asarray(chosen)
    if indices.dtype.kind not in "iu" or indices.shape not in ((), (count,)):
        raise ConfigError(
            f"{rule} returned {indices.dtype} of shape {indices.shape} for {count} records;"
            " return one whole number, or one for each"
        )
    for channel in (indices.min(), indices.max()) if indices.size else ():
        checked_channel(channel, channels, rule)
    return indices.astype(_index_type(channels)) if indices.ndim else int(indices)


def records_of(array: NDArray[Any]) -> list[Any]:
    """The records of an array as Python values, or `bytes` for rows of bytes."""
    rows = byte_rows(array)
    if rows is not None:
        return list(rows_as_bytes(np.ascontiguousarray(rows)))
    records: list[Any] = array.tolist()
    return records


def _index_type(channels: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The narrowest unsigned type for indices below `channels`."""
    return np.dtype(np.min_scalar_type(channels - 1))


def checked(selector: ChannelSelector) -> ChannelSelector:
    """Returns the selector, wrapped if its class is not one of this package.

    Raises:
        ConfigError: it is not an object of a subclass of `ChannelSelector`.
    """
    if not isinstance(selector, ChannelSelector):
        raise ConfigError(
            f"selector={selector!r}; give an object of a subclass of ChannelSelector, such as RebalanceSelector(),"
            " or CustomSelector(function)"
        )
    return selector if type(selector).__module__.partition(".")[0] in OWN_PACKAGES else CheckedSelector(selector)


@final
class CheckedSelector(ChannelSelector):
    """Passes on the choices of another selector.

    Every choice raises ConfigError if it is not a whole number from 0 to `channels` - 1.
    """

    def __init__(self, selector: ChannelSelector) -> None:
        self._selector = selector
        self._rule = type(selector).__qualname__
        self.is_broadcast = selector.is_broadcast
        self.is_round_robin = selector.is_round_robin
        self.advance = selector.advance  # type: ignore[method-assign]

    def setup(self, channels: int) -> None:
        """Sets up the other selector too."""
        super().setup(channels)
        self._selector.setup(channels)

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:
        """Lets the other selector observe."""
        self._selector.observe(subpartitions)

    def select(self, record: Any) -> int:
        """The subpartition that the other selector chose."""
        return checked_channel(self._selector.select(record), self.channels, self._rule)

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The subpartitions that the other selector chose."""
        return checked_channels(self._selector.select_batch(array), len(array), self.channels, self._rule)

    def select_many(self, records: list[Any]) -> list[int] | None:
        """The subpartitions that the other selector chose."""
        chosen = self._selector.select_many(records)
        if chosen is None:
            return None
        return [checked_channel(channel, self.channels, self._rule) for channel in chosen]
