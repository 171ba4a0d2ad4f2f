"""Partitions that one process has written and another one serves: a slot and its supervisor, in one folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter
from netstack.base.errors import PartitionNotFound
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.base.scratch import remove_leftovers
from netstack.base.transport import transport_for
from netstack.exchange.stored.files import FOLDER_PREFIX, SealedFiles, ShuffleFolder, remove_files
from netstack.network.connection.handshake import Handshake
from netstack.network.environment import NetworkEnvironment, network_environment_on
from netstack.network.kept_partitions import KeptTogether

FOLDER = "netstack-shuffle-together"
RECORDS = [b"%05d" % number * 40 for number in range(3000)]


@asynccontextmanager
async def environment(
    folder: Path, prefix: str = "", hand_over: Callable[[PartitionId, SealedFiles], None] | None = None
) -> AsyncIterator[NetworkEnvironment]:
    config = NetworkConfig(shuffle_directory=str(folder), segment_size_bytes=4096, partition_request_timeout_s=0.3)
    address = "tcp://127.0.0.1:0"
    listener = await transport_for(address).listen(address)
    try:
        together = KeptTogether(FOLDER, prefix, hand_over)
        async with network_environment_on(listener, config, Handshake(), together=together) as opened:
            yield opened
    finally:
        listener.close()


async def write(slot: NetworkEnvironment, name: str, subpartitions: int, kind: ResultPartitionType) -> None:
    writer = RecordWriter(slot.create_partition(name, subpartitions=subpartitions, kind=kind))
    for record in RECORDS:
        await writer.emit(record)
    await writer.finish()


async def read(consumer: NetworkEnvironment, producer: str, name: str, subpartitions: int) -> list[bytes]:
    gate = await consumer.open_gate([ChannelDescriptor(producer, name, each) for each in range(subpartitions)])
    reader = RecordReader(gate)
    try:
        return [record async for record in reader]
    finally:
        reader.close()


def names_in(folder: Path) -> list[str]:
    return sorted(file for path in folder.iterdir() for file in os.listdir(path) if file != "lock")


@pytest.mark.parametrize("subpartitions", [2, 5])
@pytest.mark.parametrize("kind", [ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL])
@trio_test
async def test_what_a_slot_sealed_outlives_it(tmp_path: Path, kind: ResultPartitionType, subpartitions: int) -> None:
    """Its supervisor serves it, again and again, until it is released; nothing is left then."""
    sealed: list[tuple[PartitionId, SealedFiles]] = []
    with trio.fail_after(120):
        async with environment(tmp_path) as supervisor, environment(tmp_path, "c-") as consumer:
            async with environment(tmp_path, "s-", lambda *told: sealed.append(told)) as slot:
                await write(slot, "p", subpartitions, kind)
                ((name, files),) = sealed
                supervisor.take_over(name, files)
                supervisor.take_over(name, files)  # told twice
                assert sorted(await read(slot, supervisor.address, "p", subpartitions)) == RECORDS
                assert slot.connections() == (), "it reads its own files"
            for _ in range(2):
                assert sorted(await read(consumer, supervisor.address, "p", subpartitions)) == RECORDS
            assert names_in(tmp_path)
            supervisor.release_partition("p")
            while names_in(tmp_path):  # noqa: ASYNC110 - a thread removes them
                await trio.sleep(0.01)
        assert os.listdir(tmp_path) == []


@trio_test
async def test_files_that_are_gone_are_a_partition_that_is_not_there(tmp_path: Path) -> None:
    """So its producer runs again."""
    with trio.fail_after(120):
        async with environment(tmp_path) as supervisor, environment(tmp_path, "c-") as consumer:
            supervisor.take_over("p", SealedFiles("s-1", 2, True, 100))
            with pytest.raises(PartitionNotFound):
                await read(consumer, supervisor.address, "p", 2)


def replace(folder: Path, suffix: str, kind: str) -> None:
    path = min(folder.glob(f"*/*.{suffix}"))
    if kind == "link":
        path.symlink_to(path.rename(folder / "elsewhere"))
    else:
        path.unlink()
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("suffix", ["index", "data"])
@trio_test
async def test_what_is_no_file_is_not_taken_over(tmp_path: Path, suffix: str, kind: str) -> None:
    """A link may lead anywhere, and whoever opens a pipe waits."""
    sealed: list[tuple[PartitionId, SealedFiles]] = []
    with trio.fail_after(120):
        async with (
            environment(tmp_path) as supervisor,
            environment(tmp_path, "c-") as consumer,
            environment(tmp_path, "s-", lambda *told: sealed.append(told)) as slot,
        ):
            await write(slot, "p", 2, ResultPartitionType.BLOCKING)
            replace(tmp_path, suffix, kind)
            supervisor.take_over(*sealed[0])
            with pytest.raises(PartitionNotFound):
                await read(consumer, supervisor.address, "p", 2)
        assert {*os.listdir(tmp_path)} <= {"elsewhere"}


@trio_test
async def test_what_is_read_once_is_not_handed_over(tmp_path: Path) -> None:
    sealed: list[tuple[PartitionId, SealedFiles]] = []
    async with environment(tmp_path, "s-", lambda *told: sealed.append(told)) as slot:
        await write(slot, "p", 2, ResultPartitionType.HYBRID_SELECTIVE)
    assert sealed == []


@trio_test
async def test_the_last_one_in_a_folder_removes_it(tmp_path: Path) -> None:
    """Whoever leaves earlier takes only what is its own; what is handed over is the other's."""
    sealed: list[tuple[PartitionId, SealedFiles]] = []
    async with AsyncExitStack() as others:
        supervisor = await others.enter_async_context(environment(tmp_path))
        async with environment(tmp_path, "s-", lambda *told: sealed.append(told)) as slot:
            await write(slot, "p", 2, ResultPartitionType.BLOCKING)
            supervisor.take_over(*sealed[0])
            await read(supervisor, supervisor.address, "p", 2)
            slot.create_partition("unfinished", subpartitions=2, kind=ResultPartitionType.BLOCKING)
        assert {name.split(".")[0] for name in names_in(tmp_path)} == {sealed[0][1].name}
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_had_not_handed_over_goes(tmp_path: Path) -> None:
    folder = ShuffleFolder(str(tmp_path), f"{FOLDER}-0")
    folder.make()
    for name in ("s-1.data", "s-1.index", "s-12.0.data", "t-1.data"):
        (tmp_path / f"{FOLDER}-0" / name).touch()
    remove_files(str(tmp_path), FOLDER, "s-", frozenset(["s-1"]))
    assert names_in(tmp_path) == ["s-1.data", "s-1.index", "t-1.data"]
    folder.remove()
    assert os.listdir(tmp_path) == []


def test_a_lock_counts_only_in_the_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before one has its lock, somebody takes the folder for a dead one's, and another one makes it anew."""
    ours, others = (ShuffleFolder(str(tmp_path), FOLDER) for _ in range(2))
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        shutil.rmtree(ours.path)
        others.make()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    ours.make()
    others.close()
    assert remove_leftovers(str(tmp_path), FOLDER_PREFIX) == [], "it is ours"
    ours.remove()
    assert os.listdir(tmp_path) == []
