"""The innermost steps for single records: into the memory of an open buffer, and to the iterating task.

Takes: single records; received elements. Gives: framed bytes in memory; awaitables of elements.

This is the reference. `fast_path.c` implements the same and replaces it where the data path is compiled
(`netstack.build`); a record then costs a fifth. `tests/laws/test_fast_path.py` compares the two.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, TypeVar, final

from .framing import LENGTH, PREFIX_BYTES, head_of, packer, prefix_of

T = TypeVar("T")

RUN_LIMIT_BYTES: Final = 1024
"""Longer records are copied at once: joining them saves little, and would keep much memory alive."""

split_cells: Callable[[bytes | memoryview, int, int, str, list[Any], int], int] | None = None
"""Only compiled: `split_cells(memory, position, most_bytes, kind, elements, head_bytes)` appends the records of the
cells from `position` on, each of at most `most_bytes` and without its first `head_bytes`, of which the first must be 0
(`stream_records`). It returns where it stopped: at the end, at a partial cell, at the head of a run, or at a record
that does not fit its kind. In Python array operations are faster (`deserializer`)."""

split_run: Callable[[bytes | memoryview, int, int, str, list[Any]], int] | None = None
"""Only compiled: `split_run(memory, position, width, kind, elements)` does the same for the payloads of a run, as many
as `memory` holds."""

copy_runs: Callable[[memoryview, int, int, memoryview, int], tuple[int, int]] | None = None
"""Only compiled: `copy_runs(memory, position, width, rows, row)` copies the payloads of the runs from `position` on to
rows of `width` bytes from `row` on. Returns where it stopped, and the number of copied rows. It stops at the end, at
anything but a run of that width, and at a run that is partial or does not fit."""

key_slots: Callable[[list[Any], type | None, list[int], Callable[[Any], int]], list[int] | None] | None = None
"""Only compiled: `key_slots(keys, key_type, owners, slowly)` returns the owner of the key group of each key
(`keygroups.key_group`); there are `len(owners)` key groups. It calls `slowly` for a key other than str, bytes, None or
an int of 64 bits. Returns None if a key is not exactly of `key_type`, unless that is None."""


@final
class RecordPen:
    """Writes single records into a buffer, behind the bytes that the buffer's owner has committed.

    Written records count when the owner calls `settle`, and may not be in memory before. In Python, records of equal
    length are kept as objects until then and joined, which costs a quarter of writing each.

    Attributes:
        records: number of records written since it was opened.
        written: their framed bytes.
    """

    __slots__ = ("_at", "_count", "_limit", "_memory", "_start", "most", "run", "size")

    def __init__(self, memory: memoryview) -> None:
        """Starts closed.

        Args:
            memory: memory of the buffer; one dimension, contiguous, writable, format `B`.
        """
        self._memory = memory
        self._start = self._at = 0
        self._limit = -1
        self._count = 0
        self.run: list[bytes] = []
        """The last records, without lengths, which are not in memory yet."""
        self.size = -1
        """The length of each record in `run`."""
        self.most = 0
        """The maximum number of records in `run`."""

    @property
    def records(self) -> int:
        """Number of records written since it was opened."""
        return self._count + len(self.run)

    @property
    def written(self) -> int:
        """Framed bytes written since it was opened."""
        return self._at - self._start + len(self.run) * (PREFIX_BYTES + self.size)

    def open(self, payload: bytes | bytearray | memoryview, most: int, start: int, limit: int) -> bool:
        """Writes a first record at byte `start`; earlier records must be settled.

        Args:
            payload: the record's bytes.
            most: number of records to write before the next `put`, this one included.
            start: the owner's commit.
            limit: every record written until `settle` must end below this byte.

        Returns:
            Whether the record was written; otherwise the pen is closed.

        Raises:
            ValueError: the range is outside the memory.
        """
        if start < 0 or limit > len(self._memory):
            raise ValueError(f"bytes [{start}, {limit}) of a buffer of {len(self._memory)} bytes")
        self._start = self._at = start
        self._limit = limit
        self._count = 0
        if self.put(payload, most):
            return True
        self._limit = -1
        return False

    def begin(self, start: int, limit: int) -> None:
        """Opens the pen for shares at byte `start`, without a record; the first single record takes the slow path."""
        if start < 0 or limit > len(self._memory):
            raise ValueError(f"bytes [{start}, {limit}) of a buffer of {len(self._memory)} bytes")
        self._start = self._at = start
        self._limit = limit
        self._count = 0
        self.most = 0

    def write_share(self, head: bytes, payloads: memoryview, records: int) -> bool:
        """Writes framed records behind the previous ones, for `write_shares`. Returns False if they do not fit."""
        if self.run:
            self._join()
        start = self._at + len(head)
        end = start + len(payloads)
        if end >= self._limit:
            return False
        self._memory[self._at : start] = head
        self._memory[start:end] = payloads
        self._at = end
        self._count += records
        self.most = 0  # the room has shrunk
        return True

    def put(self, payload: bytes | bytearray | memoryview, most: int) -> bool:
        """Writes one more record. Returns False if it does not fit or the pen is closed; `most` as in `open`."""
        if self.run:
            self._join()
        at = self._at
        size = len(payload)
        end = at + PREFIX_BYTES + size
        if end >= self._limit:
            return False
        if type(payload) is not bytes:
            payload = bytes(payload)
        packer(size).pack_into(self._memory, at, size, payload)
        self._at = end
        self._count += 1
        if size == self.size:  # where lengths vary, the result would not be used
            self.most = min((self._limit - 1 - end) // (PREFIX_BYTES + size), most - 1)
        else:
            self.size = size if size <= RUN_LIMIT_BYTES else -1
            self.most = 0
        return True

    def settle(self) -> int:
        """Passes the written bytes, now in memory, to the owner, and closes the pen. Returns their number."""
        if self.run:
            self._join()
        written = self._at - self._start
        self._start = self._at
        self._limit = -1
        self._count = 0
        self.most = 0
        return written

    def _join(self) -> None:
        run = self.run
        prefix = LENGTH.pack(self.size)
        at = self._at
        self._at = end = at + len(run) * (PREFIX_BYTES + self.size)
        self._memory[at : at + PREFIX_BYTES] = prefix
        self._memory[at + PREFIX_BYTES : end] = prefix.join(run)
        self._count += len(run)
        self.most = 0
        run.clear()


def emitter(
    pens: list[RecordPen],
    kind: str,
    slot: int,
    encode: Callable[[Any], Any],
    select: Callable[[Any], int],
    refused: list[Any],
    again: Callable[[Any], int],
    slowly: Callable[[Any, Any, int], bool],
) -> Callable[[Any], bool]:
    """Creates a function that writes single records with the pens of a writer, while these are open and have room.

    Args:
        pens: the pen of each slot; the writer replaces them in this list.
        kind: encoding of the records (`formats.kind_of`), or "".
        slot: the slot of all records; -1: call `select`.
        encode: encodes a record; raises the format's errors.
        select: returns the slot of a record.
        refused: not empty after a record found no buffer; `again` is then called instead of `select`.
        again: returns the slot of a record that may be the refused one.
        slowly: called as `slowly(record, payload, slot)` for records that no pen takes.
    """
    if kind == "bytes" and slot >= 0:
        return _PlainEmitter(pens, slot, encode, slowly).emit
    return _Emitter(pens, kind, slot, encode, select, refused, again, slowly).emit


@final
class _Emitter:
    __slots__ = ("_again", "_encode", "_is_raw", "_pens", "_refused", "_select", "_slot", "_slowly")

    def __init__(
        self,
        pens: list[RecordPen],
        kind: str,
        slot: int,
        encode: Callable[[Any], Any],
        select: Callable[[Any], int],
        refused: list[Any],
        again: Callable[[Any], int],
        slowly: Callable[[Any, Any, int], bool],
    ) -> None:
        self._pens = pens
        self._is_raw = kind == "bytes"
        self._slot = slot
        self._encode = encode
        self._select = select
        self._refused = refused
        self._again = again
        self._slowly = slowly

    def emit(self, record: Any, /) -> bool:
        payload = record
        if not self._is_raw or type(record) is not bytes:
            payload = self._encode(record)
        slot = self._slot
        if slot < 0:
            slot = self._again(record) if self._refused else self._select(record)
        pen = self._pens[slot]
        if len(payload) == pen.size:
            run = pen.run
            if len(run) < pen.most:
                run.append(payload if type(payload) is bytes else bytes(payload))
                return True
        return self._slowly(record, payload, slot)


@final
class _PlainEmitter:
    """The same for bytes that all go to one slot, at a fifth less cost in Python."""

    __slots__ = ("_encode", "_pens", "_slot", "_slowly")

    def __init__(
        self, pens: list[RecordPen], slot: int, encode: Callable[[Any], Any], slowly: Callable[[Any, Any, int], bool]
    ) -> None:
        self._pens = pens
        self._slot = slot
        self._encode = encode
        self._slowly = slowly

    def emit(self, record: Any, /) -> bool:
        if type(record) is bytes:
            pen = self._pens[self._slot]
            if len(record) == pen.size:
                run = pen.run
                if len(run) < pen.most:
                    run.append(record)
                    return True
            return self._slowly(record, record, self._slot)
        return self._slowly(record, self._encode(record), self._slot)


_PLAIN: Final[Mapping[str, type]] = MappingProxyType({"bytes": bytes, "str": str, "int64": int, "float64": float})
_NUMBERS: Final = MappingProxyType({"int64": struct.Struct("<q").pack, "float64": struct.Struct("<d").pack})


def framed_cells(
    records: list[Any], kind: str, slots: list[int] | int, channels: int, most_bytes: int
) -> list[tuple[int, int, bytes]] | None:
    """Frames records as cells, grouped by slot.

    Args:
        records: the records, which are not changed.
        kind: encoding of the records (`formats.kind_of`), or "".
        slots: the slot of each record, or of all.
        channels: the number of slots.
        most_bytes: the longest payload.

    Returns:
        (slot, number of cells, their bytes) of each slot with records, in the order of their first records. None if a
        record is too long, or not exactly of the type of its kind.

    Raises:
        ValueError: a slot out of range, or not one for each record.
    """
    plain = _PLAIN.get(kind)
    if plain is None:
        return None
    used = {slots} if isinstance(slots, int) else {*slots}
    if records and not 0 <= min(used) <= max(used) < channels:
        raise ValueError(f"slots {sorted(used)} of {channels}")
    if not {plain}.issuperset(map(type, records)):
        return None
    try:
        if plain is str:
            payloads = [record.encode() for record in records]
        else:
            payloads = records if plain is bytes else [*map(_NUMBERS[kind], records)]
    except (UnicodeEncodeError, struct.error):
        return None
    if max(map(len, payloads), default=0) > most_bytes:
        return None
    groups: dict[int, list[bytes]] = {}
    for slot, payload in zip(repeat(slots, len(records)) if isinstance(slots, int) else slots, payloads, strict=True):
        group = groups.get(slot)
        if group is None:
            group = groups[slot] = []
        group.append(prefix_of(payload))
        group.append(payload)
    return [(slot, len(group) // 2, b"".join(group)) for slot, group in groups.items()]


def cells_within(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Returns where the last complete cell between `start` and `stop` ends, and the number of complete cells.

    Raises:
        ValueError: the range is outside the data.
    """
    if not 0 <= start <= stop <= len(data):
        raise ValueError(f"bytes [{start}, {stop}) of {len(data)}")
    count = 0
    while stop - start >= PREFIX_BYTES:
        (size,) = LENGTH.unpack_from(data, start)
        if size > stop - start - PREFIX_BYTES:
            break
        start += PREFIX_BYTES + size
        count += 1
    return start, count


def write_shares(
    pens: list[RecordPen],
    slots: list[int],
    counts: list[int],
    index: int,
    body: bytes | memoryview,
    offset: int,
    width: int,
    has_runs: bool,
) -> tuple[int, int]:
    """Writes the shares of a batch one after another, while their pens are open and have room.

    Args:
        pens: the pen of each slot.
        slots: the slot of each share.
        counts: the number of records of each share; 0 writes nothing.
        index: the first share to write.
        body: the payloads of all shares, or their cells.
        offset: where the first share to write begins in `body`.
        width: bytes of each payload.
        has_runs: whether shares are written as runs; `body` then has payloads, else cells.

    Returns:
        The first share that was not written, and where its bytes begin; or the number of shares, and the end.

    Raises:
        ValueError: a share, slot or record out of range.
    """
    view = memoryview(body)
    unit = width if has_runs else width + PREFIX_BYTES
    if not (0 <= index <= len(slots) == len(counts) and 0 <= offset <= len(view) and width >= has_runs):
        raise ValueError("give a slot and a number of records for each share, and their bytes")
    for share in range(index, len(slots)):
        slot, count = slots[share], counts[share]
        end = offset + count * unit
        if not (0 <= slot < len(pens) and offset <= end <= len(view)):
            raise ValueError("give a slot and a number of records for each share, and their bytes")
        if count:
            if not pens[slot].write_share(head_of(count, width) if has_runs else b"", view[offset:end], count):
                return share, offset
            offset = end
    return len(slots), offset


def eager(
    attempt: Callable[[T], bool], wait: Callable[[T], Coroutine[Any, Any, None]]
) -> Callable[[T], Coroutine[Any, Any, None]]:
    """Returns a function like `wait`, a coroutine function that first calls `attempt`, and waits if that returns False.

    Compiled code attempts without a coroutine when the result is awaited, and creates one only to wait; `wait` then
    attempts again. Cancellation: as `wait`.
    """
    return wait


@final
class DecodedRecords:
    """Received elements that were not delivered, shared by all iterators of one reader; iterating takes them out."""

    __slots__ = ("_elements",)

    def __init__(self) -> None:
        self._elements: Iterator[Any] = iter(())

    def put(self, elements: list[Any]) -> None:
        """Replaces the elements; the caller gives the list away."""
        self._elements = iter(elements)

    def __iter__(self) -> Iterator[Any]:
        """The elements that are left."""
        return self._elements

    def __length_hint__(self) -> int:
        """How many are left."""
        return operator.length_hint(self._elements)


@final
class RecordIterator:
    """Iterates over received elements, and waits for more. Without state: several iterators may alternate."""

    __slots__ = ("_decoded", "_wait")

    def __init__(self, decoded: DecodedRecords, wait: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Iterates over `decoded`.

        Args:
            decoded: the received elements.
            wait: creates a coroutine that returns the next element of `decoded`, waits for it if there is none, and
                raises StopAsyncIteration at the end. Called only when no element is ready.
        """
        self._decoded = decoded
        self._wait = wait

    def __aiter__(self) -> RecordIterator:
        """Returns itself."""
        return self

    async def __anext__(self) -> Any:
        """The next element; no checkpoint while one is ready. Cancellation: nothing is lost, call again."""
        for element in self._decoded._elements:
            return element
        return await self._wait()
