"""Laws of few read blocks and many readers: all records come, and hardly anything is read twice."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import example, given, settings, strategies as st
from laws.kept_world import NOISE, World

from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.stored import Packaging

RECORDS = 200
kinds = st.sampled_from([ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL])


@settings(max_examples=25)
@given(kinds, st.integers(1, 4), st.integers(2, 12), st.integers(0, 12), st.integers(0, 5))
@example(ResultPartitionType.BLOCKING, 1, 12, 12, 5)  # the smallest of all, with consumers that wake up late
@example(ResultPartitionType.BLOCKING, 4, 8, 0, 0)
def test_law_local_readers_make_progress(
    kind: ResultPartitionType, blocks: int, readers: int, lag: int, idle: int
) -> None:
    """Each consumer runs `lag` turns after it was notified; the idle ones never do."""
    folder = tempfile.mkdtemp()
    try:
        world = World(kind, readers, folder, read_memory_bytes=1 << 20)
        for index in range(RECORDS):
            world.emit(index % readers, 3000, NOISE)
        world.finish()
        reads = world.factory.reads
        reads._unmade = blocks
        for index in range(readers + idle):
            world.open(index % readers, 1, Packaging.PLAIN)
        active = world.readers[idle:]
        polled = 0
        while not all(reader.is_done for reader in active):
            is_working = False
            for _ in range(lag + 1):
                is_working |= world.disk.run()
            for reader in active:
                is_working |= reader.poll()
            polled += 1
            assert is_working, "everybody waits"
            assert reads.reads < 200, f"the readers steal from each other: {polled} times they looked"
        for reader in active:
            world.check(reader)
        needed = max(readers, RECORDS * 3000 // reads.block_bytes)
        assert reads.reads <= (3 + lag.bit_length()) * (needed + idle)
        assert reads.memory_bytes <= blocks * reads.block_bytes
        world.close()
    finally:
        shutil.rmtree(folder)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(2, 6))
def test_law_nobody_waits_for_more_than_one_read_of_each_other_reader(blocks: int, readers: int) -> None:
    """Readers are served in the order in which they ask, wherever in the file each of them reads."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, readers, folder, read_memory_bytes=1 << 20)
        for index in range(RECORDS):
            world.emit(0 if index < RECORDS - readers else index % readers, 3000, NOISE)
        world.finish()
        reads = world.factory.reads
        reads._unmade = blocks
        for _ in range(readers):
            world.open(0, 1, Packaging.PLAIN)
        last = world.open(readers - 1, 1, Packaging.PLAIN)
        assert last is not None
        while not last.is_done:
            world.disk.run()
            for reader in world.readers:
                reader.poll()
            assert last.is_done or reads.reads <= 2 * (readers + 1)
        world.close()
    finally:
        shutil.rmtree(folder)
