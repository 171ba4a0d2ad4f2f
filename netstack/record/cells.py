"""Records one by one, the innermost steps: into the memory of an open buffer, and to the task that iterates.

Takes: single records; elements that have come. Gives: framed bytes in memory; awaitables of elements.

This is the reference. `cells.c` beside it does the same, and takes its place where the data path is compiled
(`netstack.build`): there a record costs a fifth. `tests/laws/test_cells.py` compares the two.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, TypeVar, final

from .framing import LENGTH, PREFIX_BYTES, head_of, packer, prefix_of

T = TypeVar("T")

RUN_LIMIT_BYTES: Final = 1024
"""Records up to this are joined a run at a time; longer ones would keep much alive, and copying is what they cost."""

split_cells: Callable[[bytes | memoryview, int, int, str, list[Any]], int] | None = None
"""In machine code: `split_cells(memory, position, most_bytes, kind, elements)` appends the records of the cells from
`position` on, of at most `most_bytes` each, and returns where it stopped: at the end, at a cell that is not whole, at
the head of a run, or at a record that is none of its kind. In Python array operations are faster (`deserializer`)."""

split_run: Callable[[bytes | memoryview, int, int, str, list[Any]], int] | None = None
"""In machine code: `split_run(memory, position, width, kind, elements)` does so for the payloads of a run, as many as
`memory` holds."""

copy_runs: Callable[[memoryview, int, int, memoryview, int], tuple[int, int]] | None = None
"""In machine code: `copy_runs(memory, position, width, rows, row)` copies the payloads of the runs from `position` on
to the places of rows of `width` bytes from `row` on. Returns where it stopped, and how many rows they are. It stops at
the end, at what is no run of that width, and at a run that is not whole or does not fit."""

key_slots: Callable[[list[Any], type | None, list[int], Callable[[Any], int]], list[int] | None] | None = None
"""In machine code: `key_slots(keys, key_type, owners, slowly)` is the owner of the key group of each key
(`keygroups.key_group`), of which there are `len(owners)`. It asks `slowly` for a key that is not text, bytes, None or
an int of 64 bits. None: a key is not exactly of `key_type`, unless that is None."""


@final
class Pen:
    """Writes single records into a buffer, behind what the buffer's owner has committed.

    What it wrote counts when the owner takes it (`settle`), and may not be in memory before. In Python records of one
    length are kept as objects until then and joined, which costs a quarter of writing each.

    Attributes:
        records: how many it has written since it was opened.
        written: their framed bytes.
    """

    __slots__ = ("_at", "_count", "_limit", "_memory", "_start", "most", "run", "size")

    def __init__(self, memory: memoryview) -> None:
        """Writes nothing before it is opened.

        Args:
            memory: of the buffer; one dimension, contiguous, writable, format `B`.
        """
        self._memory = memory
        self._start = self._at = 0
        self._limit = -1
        self._count = 0
        self.run: list[bytes] = []
        """The last records, without their lengths, that are not in memory yet."""
        self.size = -1
        """The length of each of them."""
        self.most = 0
        """How many of them there may be."""

    @property
    def records(self) -> int:
        """What the class says."""
        return self._count + len(self.run)

    @property
    def written(self) -> int:
        """What the class says."""
        return self._at - self._start + len(self.run) * (PREFIX_BYTES + self.size)

    def open(self, payload: bytes | bytearray | memoryview, most: int, start: int, limit: int) -> bool:
        """Writes a first record at byte `start`; what was written before is settled.

        Args:
            payload: of the record.
            most: how many records may be written until `put` is asked again, this one included.
            start: the owner's commit.
            limit: each record ends below this byte, of all that are written until `settle`.

        Returns:
            Whether the record was written. If not, the pen is closed.

        Raises:
            ValueError: there is no such place in the memory.
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
        """Opens it for shares at byte `start`, as `open` without a record; single records ask `put` first."""
        if start < 0 or limit > len(self._memory):
            raise ValueError(f"bytes [{start}, {limit}) of a buffer of {len(self._memory)} bytes")
        self._start = self._at = start
        self._limit = limit
        self._count = 0
        self.most = 0

    def write_share(self, head: bytes, payloads: memoryview, records: int) -> bool:
        """Writes framed records behind what it wrote; for `write_shares`. Returns False where they do not fit."""
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
        self.most = 0  # there is less room now
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
        if size == self.size:  # where lengths vary it would be reckoned for nothing
            self.most = min((self._limit - 1 - end) // (PREFIX_BYTES + size), most - 1)
        else:
            self.size = size if size <= RUN_LIMIT_BYTES else -1
            self.most = 0
        return True

    def settle(self) -> int:
        """What was written is in memory and the owner's from now on; closes the pen. Returns `written`."""
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
    pens: list[Pen],
    kind: str,
    slot: int,
    encode: Callable[[Any], Any],
    select: Callable[[Any], int],
    refused: list[Any],
    again: Callable[[Any], int],
    slowly: Callable[[Any, Any, int], bool],
) -> Callable[[Any], bool]:
    """Writes single records with the pens of a writer, as long as they are open and have room.

    Args:
        pens: by slot; the writer replaces them in this list.
        kind: how records are encoded (`formats.kind_of`), or "".
        slot: where all records go; -1 asks `select`.
        encode: makes bytes of a record; raises what the format raises.
        select: the slot of a record.
        refused: not empty after a record found no buffer: then `again` is asked instead of `select`.
        again: the slot of a record, which may be the one that was refused.
        slowly: called as `slowly(record, payload, slot)` for what no pen takes.
    """
    if kind == "bytes" and slot >= 0:
        return _PlainEmitter(pens, slot, encode, slowly).emit
    return _Emitter(pens, kind, slot, encode, select, refused, again, slowly).emit


@final
class _Emitter:
    __slots__ = ("_again", "_encode", "_is_raw", "_pens", "_refused", "_select", "_slot", "_slowly")

    def __init__(
        self,
        pens: list[Pen],
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
    """The same for bytes that all go to one slot: a fifth less for each in Python."""

    __slots__ = ("_encode", "_pens", "_slot", "_slowly")

    def __init__(
        self, pens: list[Pen], slot: int, encode: Callable[[Any], Any], slowly: Callable[[Any, Any, int], bool]
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
    """Records as cells, those of a slot side by side.

    Args:
        records: what is written; it stays as it is.
        kind: how they are encoded (`formats.kind_of`), or "".
        slots: of each record, or of all.
        channels: every slot is below.
        most_bytes: the longest payload.

    Returns:
        (slot, number of cells, their bytes) of each slot that has records, in the order of their first ones; None where
        a record is not plain: longer, of a type derived from that of its kind, or none of its kind.

    Raises:
        ValueError: a slot that does not exist, or not one for each record.
    """
    plain = _PLAIN.get(kind)
    if plain is None or not {plain}.issuperset(map(type, records)):
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
    if groups and not 0 <= min(groups) <= max(groups) < channels:
        raise ValueError(f"slots {sorted(groups)} of {channels}")
    return [(slot, len(group) // 2, b"".join(group)) for slot, group in groups.items()]


def cells_within(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Where the last cell ends that is whole in front of `stop`, of those from `start` on; and how many there are.

    Raises:
        ValueError: there are no such places in the data.
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
    pens: list[Pen],
    slots: list[int],
    counts: list[int],
    index: int,
    body: bytes | memoryview,
    offset: int,
    width: int,
    has_runs: bool,
) -> tuple[int, int]:
    """Writes the shares of a batch, one after the other, as long as their pens are open and have room.

    Args:
        pens: by slot.
        slots: of each share.
        counts: the number of its records; of none nothing is written.
        index: the first share that is written.
        body: the payloads of all shares; or their cells.
        offset: where those of the first share that is written begin.
        width: bytes of each payload.
        has_runs: whether a share is a run, and `body` has payloads.

    Returns:
        The share that was not written, and where its bytes begin; the number of shares after the last one.

    Raises:
        ValueError: there is no such share, slot or record.
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
    """Like `wait`, a coroutine function that attempts first, and waits where that does not do.

    Machine code attempts without a coroutine, when the result is awaited, and makes one only to wait: then `wait`
    attempts again. Cancellation: as `wait`.
    """
    return wait


@final
class Ready:
    """What has come and was not handed out: what all iterators of one reader share.

    Attributes:
        elements: they, an iterator over a list (so that they can be counted).
    """

    __slots__ = ("elements",)

    def __init__(self) -> None:
        self.elements: Iterator[Any] = iter(())


@final
class Handout:
    """Iterates over what is ready, and over what comes; holds nothing itself, so any number may take turns."""

    __slots__ = ("_ready", "_wait")

    def __init__(self, ready: Ready, wait: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Hands out what is in `ready`.

        Args:
            ready: the elements that have come.
            wait: makes a coroutine that returns the next element of `ready`, and waits for it if there is none; raises
                StopAsyncIteration at the end. It is called when nothing is ready.
        """
        self._ready = ready
        self._wait = wait

    def __aiter__(self) -> Handout:
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next element; no checkpoint while there is one. Cancellation: nothing is lost, ask again."""
        for element in self._ready.elements:
            return element
        return await self._wait()
