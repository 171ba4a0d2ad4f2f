"""Laws of the innermost steps of a record: in C they do what the reference in Python does."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import operator
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from netstack.base import build, compiled
from netstack.base.errors import RecordError
from netstack.exchange.keygroups import key_group
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import RecordFormat, format_named
from netstack.exchange.record.framing import LENGTH, RUN, RUN_FLAG, frame
from netstack.exchange.record.spill import SpillDirectory
from netstack.exchange.record.stream_records import StreamRecords

PACKAGE = Path(build.__file__).parents[1]
NAME = "netstack.exchange.record.fast_path"
KINDS = ("bytes", "str", "int64", "float64")
SPILL = SpillDirectory()


def loaded(path: Path, loader: Any = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYTHON = loaded(PACKAGE / "exchange" / "record" / "fast_path.py")
INSTRUMENTED = os.environ.get("NETSTACK_TEST_FAST_PATH")  # by `test_sanitizer`
MACHINE_CODE = Path(INSTRUMENTED or compiled.compiled_folder(PACKAGE) / f"{NAME}.so")


@pytest.fixture(scope="module", autouse=True)
def machine() -> ModuleType:
    if INSTRUMENTED is None and compiled.current_manifest(PACKAGE)[0] is None:
        pytest.skip("needs the compiled data path: make compiled")
    return loaded(MACHINE_CODE, ExtensionFileLoader(NAME, str(MACHINE_CODE)))


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    try:
        return ("gave", call(*arguments))
    except StopIteration as stop:
        return (StopIteration, stop.value)
    except Exception as error:
        return (type(error), str(error))


# Pens.

MEMORY_BYTES = 24  # little, so that its end is met often
payloads = st.binary(max_size=12).flatmap(lambda data: st.sampled_from([data, bytearray(data), memoryview(data)]))
most = st.integers(1, 4)
pen_calls = st.one_of(
    st.tuples(st.just("put"), payloads, most),
    st.tuples(st.just("open"), payloads, most, st.integers(-1, 8), st.integers(-1, MEMORY_BYTES + 1)),
    st.tuples(st.just("settle")),
)


@given(st.lists(pen_calls, max_size=30))
def test_pens_write_the_same(machine: ModuleType, calls: list[tuple[Any, ...]]) -> None:
    memories = [memoryview(bytearray(MEMORY_BYTES)) for _ in range(2)]
    pens = [module.RecordPen(memory) for module, memory in zip((machine, PYTHON), memories, strict=True)]
    for name, *arguments in calls:
        if name == "open":
            [pen.settle() for pen in pens]  # as its owner has to
        in_c, in_python = (outcome(getattr(pen, name), *arguments) for pen in pens)
        assert in_c == in_python
        assert (pens[0].records, pens[0].written) == (pens[1].records, pens[1].written)
        if name == "settle":
            assert memories[0] == memories[1]


# Emitters.

records = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6),
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(max_size=12).map(bytearray),
)


class Writer:
    """Pens over two buffers, and everything that an emitter asks of the one it writes for."""

    def __init__(self, module: ModuleType, kind: str, slot: int, seed: int) -> None:
        self.memories = [memoryview(bytearray(MEMORY_BYTES)) for _ in range(2)]
        self.at = [0, 0]
        self.pens = [module.RecordPen(memory) for memory in self.memories]
        self.refused: list[Any] = []
        self.told: list[Any] = []
        self.turn = seed
        encode = format_named(kind or "msgpack").encode
        self.emit = module.emitter(self.pens, kind, slot, encode, self.select, self.refused, self.again, self.slowly)

    def select(self, record: Any) -> int:
        self.turn += 1
        if self.turn % 11 == 0:
            raise LookupError("no slot")
        return self.turn % 2

    def again(self, record: Any) -> int:
        self.told.append(("again", record))
        self.refused.clear()
        return 0

    def slowly(self, record: Any, payload: Any, slot: int) -> bool:
        pen = self.pens[slot]
        if pen.put(payload, 2):
            return True
        self.settle(slot)
        if pen.open(payload, 3, self.at[slot], MEMORY_BYTES):
            return True
        self.told.append(("full", record, payload, slot))
        self.at[slot] = 0
        self.refused.append(record)
        return False

    def settle(self, slot: int) -> None:
        self.at[slot] += self.pens[slot].settle()

    def seen(self) -> list[Any]:
        for slot in range(2):
            self.settle(slot)
        return [*self.told, *self.at, *map(bytes, self.memories)]


@given(
    st.sampled_from(["", *KINDS]),
    st.sampled_from([0, 1, -1]),
    st.integers(0, 20),
    st.lists(st.one_of(records, st.just("settle")), min_size=20, max_size=60),
)
def test_emitters_write_the_same(machine: ModuleType, kind: str, slot: int, seed: int, given: list[Any]) -> None:
    in_c, in_python = (Writer(module, kind, slot, seed) for module in (machine, PYTHON))
    for record in given:
        if record == "settle":
            [writer.settle(0) for writer in (in_c, in_python)]
            continue
        assert outcome(in_c.emit, record) == outcome(in_python.emit, record)
    assert repr(in_c.seen()) == repr(in_python.seen())


def test_an_emitter_asks_again_after_as_many_records_as_it_was_granted(machine: ModuleType) -> None:
    for module in (machine, PYTHON):
        asked: list[bytes] = []
        pen = module.RecordPen(memoryview(bytearray(99)))
        emit = module.emitter(
            [pen], "bytes", 0, None, None, [], None, lambda record, payload, slot, asked=asked: asked.append(record)
        )
        assert pen.open(b"-", 1, 0, 99)  # Python wants to see two records of a length before it waits for a third
        assert pen.put(b"0", 3)
        for record in (b"1", b"2", b"3"):
            emit(record)
        assert asked == [b"3"]
        assert pen.put(b"3", 2)
        for record in (b"4", b"5"):
            emit(record)
        assert asked == [b"3", b"5"]


def test_an_emitter_leaves_what_is_no_pen_and_no_slot_to_the_slow_way(machine: ModuleType) -> None:
    for pens, slot in [([], 0), ([None], 0), ([machine.RecordPen(bytearray(9))], 5), ([object()], 1)]:
        seen: list[Any] = []
        emit = machine.emitter(pens, "bytes", slot, bytes, None, [], None, lambda *given, seen=seen: seen.append(given))
        assert emit(b"abc") is None
        assert seen == [(b"abc", b"abc", slot)]


def test_what_cannot_be_is_refused(machine: ModuleType) -> None:
    released = memoryview(bytearray(8))
    released.release()
    held = memoryview(bytearray(8))
    pen = machine.RecordPen(held)
    with pytest.raises(BufferError):
        held.release()
    del pen
    held.release()
    emit = machine.emitter([], "bytes", 0, None, None, [], None, None)
    for error, call, arguments in [
        (ValueError, machine.RecordPen, (released,)),
        (BufferError, machine.RecordPen, (b"read-only",)),
        (TypeError, machine.RecordPen, ()),
        (TypeError, machine.RecordIterator, (None, None)),
        (TypeError, machine.emitter, ((), "bytes", 0, None, None, [], None, None)),
        (TypeError, machine.emitter, ([], 1, 0, None, None, [], None, None)),
        (TypeError, emit, ()),
        (TypeError, emit, (1, 2)),
        (ValueError, machine.split_cells, (b"abcd", 5, 9, "bytes", [], 0)),
        (ValueError, machine.split_cells, (b"abcd", -1, 9, "bytes", [], 0)),
        (ValueError, machine.split_cells, (b"abcd", 0, 9, "bytes", [], -1)),
        (ValueError, machine.split_run, (b"abcd", 0, 0, "bytes", [])),
        (ValueError, machine.split_cells, (released, 0, 9, "bytes", [], 0)),
        (TypeError, machine.split_cells, (b"abcd", 0, 9, "bytes", (), 0)),
    ]:
        with pytest.raises(error):
            call(*arguments)


# Records into memory.


@example("bytes", [(None, 4)], 4, 100, False)
@given(
    st.sampled_from(["", *KINDS]),
    st.lists(st.tuples(records, st.integers(0, 4)), max_size=40),
    st.sampled_from([5, 5, 5, 4, 1000]),
    st.sampled_from([100, 100, 100, 8, 3]),
    st.booleans(),
)
def test_cells_of_a_slice_are_framed_alike(
    machine: ModuleType, kind: str, given: list[tuple[Any, int]], channels: int, most_bytes: int, is_one: bool
) -> None:
    plain = {"bytes": bytes, "str": str, "int64": int, "float64": float}.get(kind, object)
    for asked in ([record for record, _ in given], [record for record, _ in given if type(record) is plain]):
        slots = 3 if is_one else [slot for _, slot in given][: len(asked)]
        in_c, in_python = (
            outcome(module.framed_cells, asked, kind, slots, channels, most_bytes) for module in (machine, PYTHON)
        )
        assert in_c[0] == in_python[0]
        if in_c[0] == "gave":
            assert in_c == in_python
            for slot, cells, data in in_c[1] or ():
                actual = machine.cells_within(data, 0, len(data))
                assert actual == (len(data), cells)
                assert cells == (len(asked) if is_one else slots[: len(asked)].count(slot))


@given(st.lists(st.binary(max_size=300).map(frame), max_size=6).map(b"".join), st.integers(-1, 99), st.integers(-1, 99))
def test_cells_that_fit_are_found_alike(machine: ModuleType, data: bytes, start: int, stop: int) -> None:
    in_c, in_python = (outcome(module.cells_within, data, start, stop) for module in (machine, PYTHON))
    assert in_c == in_python


# Records from memory.


class Unknown(RecordFormat):
    """Another format, none of those that machine code knows, and what it does: the general way."""

    def __init__(self, inner: RecordFormat) -> None:
        self.name = inner.name
        self.encode, self.decode, self.decode_many = inner.encode, inner.decode, inner.decode_many  # type: ignore[method-assign]
        if hasattr(inner, "decode_list"):
            self.decode_list = inner.decode_list

    def encode(self, record: Any) -> bytes: ...

    def decode(self, view: memoryview) -> Any: ...


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    parts = []
    for width, count, way in draw(
        st.lists(
            st.tuples(st.sampled_from([0, 1, 3, 8, 8, 8, 30]), st.integers(1, 40), st.sampled_from("crd")), max_size=5
        )
    ):
        fill = draw(st.sampled_from([b"a", b"\xc3\xa9", b"\xff", b"\x00"]))
        payload = (fill * width)[:width]
        if way == "c" or not width:
            parts.append(frame(payload) * count)
        elif way == "r":
            parts.append(RUN.pack(RUN_FLAG | count, width) + payload * count)
        else:
            parts.append(LENGTH.pack(draw(st.integers(0, 2**32 - 1))))
    return b"".join(parts)


def fed(format: RecordFormat, stream: bytes, cuts: list[int], most_bytes: int) -> list[Any]:
    deserializer = RecordDeserializer(format, spill=SPILL, spill_threshold_bytes=100, max_record_bytes=most_bytes)
    seen: list[Any] = []
    start = 0
    for stop in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        try:
            seen.append(deserializer.feed(memoryview(bytearray(stream[start:stop]))))
        except RecordError as error:
            deserializer.clear()
            return [*seen, str(error)]
        start = stop
    seen.append(deserializer.unconsumed())
    deserializer.clear()
    return seen


@given(st.sampled_from(KINDS), streams(), st.lists(st.integers(0, 600), max_size=5), st.sampled_from([8, 29, 2000]))
def test_known_formats_are_read_as_any_other(kind: str, stream: bytes, cuts: list[int], most_bytes: int) -> None:
    format = format_named(kind)
    known = fed(format, stream, cuts, most_bytes)
    assert repr(known) == repr(fed(Unknown(format), stream, cuts, most_bytes))


headed = st.lists(
    st.tuples(
        st.sampled_from([b"\0", b"\0", b"\0", b"\0", b"\1", b""]),
        st.sampled_from([8, 8, 8, 7]),
        st.sampled_from([0, 1, 8, 8, 30]),
        st.sampled_from([b"a", b"\xff"]),
        st.integers(1, 40),
    ).map(lambda cell: frame(cell[0] + bytes(cell[1]) + cell[3] * cell[2]) * cell[4]),
    max_size=5,
).map(b"".join)


@given(st.sampled_from(KINDS), headed, st.lists(st.integers(0, 900), max_size=5), st.sampled_from([8, 29, 2000]))
def test_records_behind_flinks_heads_are_read_as_any_other(
    kind: str, stream: bytes, cuts: list[int], most_bytes: int
) -> None:
    format = format_named(kind)
    known = fed(StreamRecords(format), stream, cuts, most_bytes)
    assert repr(known) == repr(fed(StreamRecords(Unknown(format)), stream, cuts, most_bytes))


framed = st.lists(st.binary(max_size=8).map(frame), max_size=6).map(b"".join)
damaged = st.tuples(st.one_of(framed, st.binary(max_size=60)), st.integers(1, 60)).map(lambda cut: cut[0][: cut[1]])


@given(
    st.sampled_from(["", *KINDS]),
    damaged,
    st.sampled_from([0, 0, 0, 1, 7]),
    st.one_of(st.integers(1, 9), st.just(2**31 - 1)),
    st.sampled_from([0, 1, 3, 2**62]),
)
def test_no_bytes_make_splitting_leave_the_memory(
    machine: ModuleType, kind: str, data: bytes, position: int, most_bytes: int, head_bytes: int
) -> None:
    position = min(position, len(data))
    for split, heads, more in ((machine.split_cells, 4 + head_bytes, (head_bytes,)), (machine.split_run, 0, ())):
        actual: list[Any] = []
        end = split(data, position, most_bytes, kind, actual, *more)
        assert position <= end <= len(data)
        encoded = [] if not kind else [format_named(kind).encode(record) for record in actual]
        assert sum(map(len, encoded)) + heads * len(actual) == end - position


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_cut_anywhere_stays_in_the_memory(machine: ModuleType, kind: str) -> None:
    for split, most_bytes, cell, more in (
        (machine.split_cells, 9, frame(b"12345678"), (0,)),
        (machine.split_cells, 9, frame(b"\x0012345678"), (1,)),
        (machine.split_run, 8, b"12345678", ()),
    ):
        for size in range(3 * len(cell) + 1):
            actual: list[Any] = []
            whole = size // len(cell)
            assert split((cell * 3)[:size], 0, most_bytes, kind, actual, *more) == whole * len(cell)
            assert len(actual) == whole


# Batches, and their keys.

places_in_memory = st.tuples(st.integers(0, MEMORY_BYTES), st.integers(-1, MEMORY_BYTES))


@given(
    st.lists(places_in_memory, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 4)), max_size=6),
    st.integers(0, 3),
    st.booleans(),
    st.binary(min_size=20, max_size=60),
    st.tuples(st.integers(-1, 3), st.integers(-1, 9)),
)
def test_shares_are_written_alike(
    machine: ModuleType,
    places: list[tuple[int, int]],
    shares: list[tuple[int, int]],
    width: int,
    has_runs: bool,
    body: bytes,
    first: tuple[int, int],
) -> None:
    slots, counts = [slot for slot, _ in shares], [count for _, count in shares]
    seen = []
    for module in (machine, PYTHON):
        memories = [memoryview(bytearray(MEMORY_BYTES)) for _ in places]
        pens = [module.RecordPen(memory) for memory in memories]
        for pen, (start, limit) in zip(pens, places, strict=True):
            pen.begin(start, limit)
        for index, offset in (first, (0, 0)):
            actual = outcome(module.write_shares, pens, slots, counts, index, body, offset, width, has_runs)
            reported = [(pen.records, pen.written) for pen in pens]
            seen.append((actual, reported, [bytes(memory) for memory in memories]))
    assert seen[:2] == seen[2:]


@given(streams(), st.sampled_from([1, 3, 8]), st.integers(0, 99), st.integers(0, 30))
def test_runs_are_copied_as_other_records(
    machine: ModuleType, stream: bytes, width: int, row: int, position: int
) -> None:
    rows = memoryview(bytearray(width * 64))
    if position > len(stream) or row > 64:
        with pytest.raises(ValueError, match="out of range"):
            machine.copy_runs(stream, position, width, rows, row)
        return
    end, count = machine.copy_runs(stream, position, width, rows, row)
    wanted, at = [], position
    while len(stream) - at >= 8:
        records, actual = RUN.unpack_from(stream, at)
        records -= RUN_FLAG
        whole = at + 8 + records * width
        if records < 1 or actual != width or whole > len(stream) or row + len(wanted) + records > 64:
            break
        wanted += [stream[at + 8 + i * width : at + 8 + (i + 1) * width] for i in range(records)]
        at = whole
    assert (end, count) == (at, len(wanted))
    assert bytes(rows) == bytes(width * row) + b"".join(wanted) + bytes(width * (64 - row - count))


int64s = st.integers(-(2**63), 2**63 - 1)
keys = st.one_of(records, st.text(), int64s, st.tuples(st.text(max_size=2), st.integers(0, 9)))


@given(st.lists(st.one_of(keys, st.just("\ud800"))), st.sampled_from([None, str, int]), st.integers(1, 300))
def test_keys_have_the_same_owner_together(
    machine: ModuleType, given: list[Any], key_type: type | None, groups: int
) -> None:
    owners = [(group * 7) % 5 for group in range(groups)]

    def owner(key: Any) -> int:
        return owners[key_group(key, groups)]

    asked: list[Any] = []

    def slowly(key: Any) -> int:
        asked.append(key)
        return owner(key)

    actual = outcome(machine.key_slots, given, key_type, owners, slowly)
    if any(type(key) is not key_type for key in given) and key_type is not None:
        assert actual == ("gave", None) or actual[0] is RecordError
    else:
        assert actual[:2] == outcome(lambda: [owner(key) for key in given])[:2]
    plain = [type(key) in (str, bytes, type(None)) for key in asked]
    assert not any(plain)


# Handing out.


class Source:
    """A reader: what is ready, and what comes, one list a wait; None is the end."""

    def __init__(self, module: ModuleType, lists: list[list[int] | None]) -> None:
        self.ready = module.DecodedRecords()
        self.lists = iter(lists)
        self.iterator = module.RecordIterator(self.ready, self.wait)

    async def wait(self) -> Any:
        for element in self.ready:
            return element
        elements: Any = await Pause()
        elements = next(self.lists, None)
        if elements is None:
            raise StopAsyncIteration
        self.ready.put(elements)
        return next(iter(self.ready))


class Pause:
    def __await__(self) -> Iterator[str]:
        yield "waits"


steps = st.lists(st.tuples(st.sampled_from(["ask", "send", "send", "send", "throw", "close"]), st.integers(0, 3)))


@given(st.lists(st.one_of(st.lists(st.integers(), min_size=1, max_size=3), st.none()), max_size=5), steps)
def test_handouts_give_the_same_in_any_order(
    machine: ModuleType, lists: list[list[int] | None], script: list[tuple[str, int]]
) -> None:
    sources = [Source(module, lists) for module in (machine, PYTHON)]
    pending: list[list[Any]] = [[], []]
    for name, index in script:
        if name == "ask":
            for source, asked in zip(sources, pending, strict=True):
                asked.append(source.iterator.__anext__())
            continue
        if not pending[0]:
            continue
        at = index % len(pending[0])
        arguments = {"send": (None,), "throw": (KeyError("thrown"),), "close": ()}[name]
        in_c, in_python = (outcome(getattr(asked[at], name), *arguments) for asked in pending)
        assert in_c == in_python
        if in_c != ("gave", "waits"):
            for asked in pending:
                asked.pop(at)
    for asked in pending:
        for each in asked:
            each.close()


class Emits:
    """Attempts, and waits: what becomes of each number is told."""

    def __init__(self, module: ModuleType) -> None:
        self.told: list[Any] = []
        self.emit = module.eager(self.attempt, self.wait)

    def attempt(self, number: int) -> bool:
        if number % 5 == 4:
            raise KeyError(number)
        if number % 3 == 0:
            self.told.append(number)
        return number % 3 == 0

    async def wait(self, number: int) -> None:
        if self.attempt(number):
            return
        await Pause()
        self.told.append(("late", number))


@given(steps)
def test_eager_functions_do_the_same_in_any_order(machine: ModuleType, script: list[tuple[str, int]]) -> None:
    both = [Emits(module) for module in (machine, PYTHON)]
    pending: list[list[Any]] = [[], []]
    for name, number in script:
        if name == "ask":
            for each, asked in zip(both, pending, strict=True):
                asked.append(each.emit(number + len(asked)))
        elif pending[0]:
            at = number % len(pending[0])
            arguments = {"send": (None,), "throw": (LookupError("thrown"),), "close": ()}[name]
            in_c, in_python = (outcome(getattr(asked[at], name), *arguments) for asked in pending)
            assert in_c == in_python
            if in_c != ("gave", "waits"):
                for asked in pending:
                    asked.pop(at)
    assert both[0].told == both[1].told
    for asked in pending:
        for each in asked:
            each.close()


def test_an_eager_function_takes_one_record(machine: ModuleType) -> None:
    emits = Emits(machine)
    for call in (lambda: emits.emit(), lambda: emits.emit(1, 2), lambda: emits.emit(other=1)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(StopIteration):
        emits.emit(record=3).send(None)
    assert emits.told == [3]
    forgotten = emits.emit(3)
    assert isinstance(forgotten, Coroutine)
    del forgotten
    with pytest.warns(RuntimeWarning, match="was not written"):
        emits.emit(6).close()


@given(lists=st.lists(st.lists(st.integers(), max_size=5), max_size=4), taken=st.integers(0, 6))
def test_decoded_elements_are_taken_out_once(machine: ModuleType, lists: list[list[int]], taken: int) -> None:
    for module in (machine, PYTHON):
        decoded = module.DecodedRecords()
        assert list(decoded) == []
        for elements in lists:
            decoded.put(list(elements))
            assert list(itertools.islice(decoded, taken)) == elements[:taken]
            assert operator.length_hint(decoded) == len(elements[taken:])
            assert list(decoded) == elements[taken:]
            assert operator.length_hint(decoded) == 0
            assert list(decoded) == []


def test_an_awaitable_is_awaited_once(machine: ModuleType) -> None:
    source = Source(machine, [])
    source.ready.put([1, 2])
    first, second = source.iterator.__anext__(), source.iterator.__anext__()
    assert first is not second
    for awaitable, element in ((second, 1), (first, 2)):
        with pytest.raises(StopIteration) as stopped:
            next(awaitable.__await__())
        assert stopped.value.value == element
        with pytest.raises(RuntimeError, match="already awaited"):
            awaitable.send(None)


@pytest.mark.parametrize("element", [(1, 2), (), KeyError("an element"), StopIteration(3), None])
def test_any_element_comes_as_it_is(machine: ModuleType, element: Any) -> None:
    source = Source(machine, [])

    async def one() -> Any:
        return await source.iterator.__anext__()

    async def by_loop() -> Any:
        async for actual in source.iterator:
            return actual
        return None

    for make in (one, by_loop):
        source.ready.put([element])
        with pytest.raises(StopIteration) as stopped:
            make().send(None)
        assert stopped.value.value is element


def test_nothing_is_left_behind(machine: ModuleType) -> None:
    record = bytearray(b"some record")

    def use() -> None:
        writer = Writer(machine, "", -1, 0)
        writer.cycle = writer  # type: ignore[attr-defined]
        source = Source(machine, [[1, 2]])
        source.cycle = (source, source.iterator, source.iterator.__anext__())  # type: ignore[attr-defined]
        for number in range(20):
            outcome(writer.emit, record)
            outcome(writer.emit, number)
        outcome(next, source.iterator.__anext__())
        for kind in KINDS:
            machine.split_cells(b"\0\0\0\x08" * 20, 0, 8, kind, [], 0)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    use()
    gc.collect()
    held = sys.getrefcount(record)
    before = objects()
    blocks = sys.getallocatedblocks()
    for _ in range(200):
        use()
    assert objects() <= before + 2
    assert sys.getallocatedblocks() < blocks + 100
    assert sys.getrefcount(record) == held
