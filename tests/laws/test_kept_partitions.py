"""What is kept is read as it was written: any kind, any sizes, any ranges, by readers that come and go at any time.

The disk is a list of jobs that are done when the law says so; the files are real.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, strategies as st
from laws.kept_world import HEAD, KINDS, NOISE, SEGMENT, World

from netstack.base.errors import ErrorCode
from netstack.base.events import UserEvent
from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.stored import Packaging

packagings = st.sampled_from(Packaging)
fills = st.sampled_from(
    [b"a", b"abc", bytes(range(256)), os.urandom(0) or bytes((i * i * 7 + i * 13) & 255 for i in range(4096))]
)
sizes = st.one_of(st.integers(0, 100), st.integers(0, 3 * SEGMENT), st.integers(50_000, 150_000))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    step = st.one_of(
        st.tuples(st.just("emit"), st.integers(0, 999), sizes, fills, st.integers(1, 40)),
        st.tuples(st.just("emit"), st.integers(0, 999), sizes, fills, st.integers(1, 40)),
        st.tuples(st.just("event"), st.integers(0, 999)),
        st.tuples(st.just("disk"), st.integers(0, 9)),
        st.tuples(st.just("open"), st.integers(0, 999), st.integers(1, 9), packagings),
        st.tuples(st.just("poll"), st.integers(0, 9), st.integers(1, 20), st.booleans()),
        st.tuples(st.just("grant"), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(st.just("give back"), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("squeeze")),
    )
    return draw(st.lists(step, max_size=40))


@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 3, 5, 9, 40, 200]),
    steps(),
    steps(),
    st.sampled_from(["auto", "lz4", "none"]),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_what_is_read_is_what_was_written(
    kind: ResultPartitionType,
    subpartitions: int,
    before: list[tuple[Any, ...]],
    after: list[tuple[Any, ...]],
    compression: str,
    sort_min: int,
    broadcast: bool,
) -> None:
    folder = tempfile.mkdtemp()
    try:
        world = World(
            kind,
            subpartitions,
            folder,
            shuffle_compression=compression,
            sort_min_subpartitions=sort_min,
            broadcast=broadcast and subpartitions < 10,
        )
        events = 0
        for is_finished, step in [
            *((False, one) for one in before),
            (False, ("finish",)),
            *((True, one) for one in after),
        ]:
            match step:
                case ("finish",):
                    world.finish()
                    is_finished = True
                case ("emit", where, size, fill, times) if not is_finished:
                    for _ in range(times if size < 1000 else 1):
                        world.emit(where % subpartitions, size, fill)
                case ("event", number) if not is_finished:
                    world.writer.broadcast_event(UserEvent(str(number)))
                    events += 1
                case ("disk", index):
                    world.disk.run(index)
                case ("open", first, count, packaging):
                    first %= subpartitions
                    world.open(first, min(count, subpartitions - first), packaging)
                case ("poll", index, times, keep) if world.readers:
                    reader = world.readers[index % len(world.readers)]
                    for _ in range(times):
                        if reader.has_left or not reader.poll(keep=keep and len(reader.held) < 3):
                            break
                case ("grant", index, count) if world.readers:
                    world.readers[index % len(world.readers)].credit.available += count
                case ("give back", index) if world.readers:
                    world.readers[index % len(world.readers)].give_back()
                case ("leave", index) if world.readers:
                    world.readers[index % len(world.readers)].leave()
                case ("squeeze",):
                    world.squeeze()
        framed = [sum(len(record) + 4 for record in written) for written in world.written]
        assert list(world.partition.bytes_per_subpartition) == framed
        if not kind.is_blocking and not kind.is_reconsumable:
            taken = {i for reader in world.readers for i in range(reader.first, reader.first + reader.count)}
            for index in set(range(subpartitions)) - taken:
                world.open(index, 1, Packaging.COMPRESSED)
        else:
            world.open(0, subpartitions, Packaging.COMPRESSED)
            world.open(subpartitions // 2, 1, Packaging.PLAIN)
        for reader in world.readers:
            if not reader.has_left:
                world.read_out(reader)
                world.check(reader)
                assert len(reader.events) == events * reader.count
        assert world.readable == 1
        world.close()
    finally:
        shutil.rmtree(folder)


@given(
    st.sampled_from([1, 3, 8]),
    st.lists(st.tuples(st.integers(0, 999), sizes, fills), min_size=1, max_size=30),
    st.sampled_from(["auto", "lz4", "none"]),
    st.sampled_from([1, 4]),
    st.lists(
        st.tuples(st.sampled_from(["flip", "cut", "fill"]), st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1
    ),
    st.booleans(),
)
@example(
    8, [(0, 0, b"a")], "lz4", 1, [("cut", 503, 1), ("flip", 89, 10)], True
)  # a number of regions beyond all memory
def test_what_was_damaged_is_never_taken_for_what_was_written(
    subpartitions: int,
    records: list[tuple[int, int, bytes]],
    compression: str,
    sort_min: int,
    damages: list[tuple[str, int, int]],
    of_index: bool,
) -> None:
    folder = tempfile.mkdtemp()
    try:
        world = World(
            ResultPartitionType.BLOCKING,
            subpartitions,
            folder,
            shuffle_compression=compression,
            sort_min_subpartitions=sort_min,
        )
        for where, size, fill in records:
            world.emit(where % subpartitions, size, fill)
        world.finish()
        actual = sorted(Path(folder).glob("*.index" if of_index else "*.data"))
        for how, place, value in damages:
            damage(actual[place % len(actual)], how, place, value)
        for first, count in [(0, subpartitions), *((index, 1) for index in range(subpartitions))]:
            for packaging in Packaging:
                reader = world.open(first, count, packaging)
                assert reader is not None
                while not (reader.is_done or reader.view.is_released):
                    reader.credit.available = 2
                    if not reader.poll():
                        assert world.disk.run()
                if reader.is_done:
                    world.check(reader)
                else:
                    assert reader.view.failure_code is ErrorCode.PARTITION_DAMAGED
                    assert folder in str(reader.view.failure)
                reader.leave()
        world.close()
    finally:
        shutil.rmtree(folder)


def damage(path: Path, how: str, place: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    place %= len(data)
    if how == "flip":
        data[place] ^= value
    elif how == "fill":
        data[place : place + value] = bytes(len(data[place : place + value]))
    else:
        del data[place:]
    path.write_bytes(data)


def test_a_pool_that_shrinks_by_what_is_written_does_not_leave_its_writer_waiting() -> None:
    """The writer waits in a record for the region that is being written, and another pool gets its memory."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 1, folder)
        while not world.disk.waiting:
            world.emit(0, 1000, b"a")
        slot, write = world.writer.plan_record(HEAD.pack(0, next(world.numbers)) + bytes(100_000))
        assert not world.tries(write.advance)
        world.squeeze()
        while not world.tries(write.advance):
            while not world.is_told:
                assert world.disk.run(), "the writer waits for memory, and nothing is under way that would bring any"
        world.writer.buffers.after_write(slot)
        world.finish()
        world.close()
    finally:
        shutil.rmtree(folder)


def test_who_waits_for_a_block_gets_that_of_a_reader_whose_credit_is_used_up() -> None:
    """It was refused while the others had credit; then they send what they may, and everybody waits."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 1, folder, read_memory_bytes=1 << 20)
        for start in range(0, 20_000, 1000):
            world.emit(0, 1000, NOISE[start : start + 1000])
        world.finish()
        while len(world.readers) < 20 and (not world.readers or world.readers[-1].told):
            world.open(0, 1, Packaging.COMPRESSED)
            world.disk.run_all()
        *others, last = world.readers
        assert 2 <= len(others) < 19
        for reader in others:
            while reader.poll():
                pass
        assert not last.told
        world.disk.run_all()
        assert last.told
        assert last.poll()
        world.close()
    finally:
        shutil.rmtree(folder)


def test_where_room_is_scarce_what_gets_smaller_is_compressed() -> None:
    """By its clock writing costs nothing; yet more than twice the quota finds room, and is read again."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 4, folder, jumps=False, shuffle_disk_bytes=1_000_000)
        for index in range(190):
            world.emit(index % 4, 12_000, b"abc")
            world.disk.run_all()
        world.finish()
        data, compressed, stored = world.partition.kept_bytes
        assert data == 190 * (12_000 + HEAD.size + 4)
        assert 0.5 < compressed / data < 0.75
        assert stored == world.factory.quota.used_bytes < 1_000_000
        reader = world.open(0, 4, Packaging.GLUED)  # some frames of compressed buffers, some of others
        assert reader is not None
        world.read_out(reader)
        world.check(reader)
        world.close()
    finally:
        shutil.rmtree(folder)


@given(st.sampled_from([2, 9]), st.integers(1, 4))
def test_readers_who_take_nothing_keep_nobody_from_reading(subpartitions: int, stalled: int) -> None:
    """Two blocks for all: whoever has read ahead and takes nothing gives it up, and reads it again."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, subpartitions, folder, read_memory_bytes=1 << 20)
        for index in range(600):
            world.emit(index % subpartitions, 3000, NOISE)
        world.finish()
        world.factory.reads._unmade = 2
        for index in range(stalled):
            reader = world.open(index % subpartitions, 1, Packaging.COMPRESSED)
            assert reader is not None
            while world.disk.run():
                pass
            reader.credit.available = 0
        last = world.open(0, subpartitions, Packaging.COMPRESSED)
        assert last is not None
        for reader in (last, *world.readers[:-1]):
            world.read_out(reader)
            world.check(reader)
        assert world.factory.reads.memory_bytes <= 2 * world.factory.reads.block_bytes
        world.close()
    finally:
        shutil.rmtree(folder)
