"""Who gets a blob from whom: eight TaskManagers, of which one at a time reads here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from netstack.base.errors import ConnectionLost
from netstack.cluster.control.codec import Message
from netstack.cluster.control.messages import SLICE_BYTES
from netstack.cluster.control.reports import BlobKept, FetchBlob
from netstack.cluster.jobmanager.blobs import BlobServer
from netstack.cluster.jobmanager.store import JobStore
from netstack.cluster.taskmanager.blob_reader import BlobReader, KeptBlob
from netstack.cluster.taskmanager.blobs import BlobFetcher, BlobPlaces
from netstack.network.waiting.threads import in_thread
from netstack.schedule.descriptors.blob_store import BlobKind, MemoryBlobStore
from netstack.schedule.descriptors.descriptors import BlobKey

DATA = bytes(range(256)) * (4 * SLICE_BYTES // 256) + b"the end"
TASKMANAGERS = 8


class Hosts:
    """A JobManager's blobs, and TaskManagers that read them with their own fetchers; messages are calls."""

    def __init__(self, folder: Path, nursery: trio.Nursery, *, is_shared: bool) -> None:
        self.store = JobStore(folder)
        self.key = BlobKey(f"code-{self.store.put_code(DATA)}")
        self.blobs = MemoryBlobStore()
        self.server = BlobServer(self.store, self.blobs, in_thread, is_shared=is_shared)
        self.readers = [BlobReader(directory=str(folder)) for _ in range(TASKMANAGERS)]
        self.fetchers = [BlobFetcher(self._sender(number), self._places(number)) for number in range(TASKMANAGERS)]
        self.served = [0] * TASKMANAGERS
        self.nursery = nursery

    def _sender(self, number: int):
        def send(message: Message) -> None:
            if isinstance(message, BlobKept):
                self.server.kept(f"tm{number}", f"tcp://{number}", message)
            else:
                assert isinstance(message, FetchBlob)
                self.nursery.start_soon(self._answer, number, message)

        return send

    async def _answer(self, number: int, ask: FetchBlob) -> None:
        self.fetchers[number].part(await self.server.answer(f"tm{number}", ask))

    def _places(self, number: int):
        files = BlobPlaces("", None, 1.0)

        async def read(place: str, blob: KeptBlob) -> None:
            if place.startswith("file://"):
                await files.read(place, blob)
                return
            peer = int(place.removeprefix("tcp://"))
            assert peer != number
            while True:
                part = await self.readers[peer].part_of_kept(FetchBlob(blob.key, blob.size_bytes))
                if part.total < 0:
                    raise ConnectionLost("it is not there")
                blob.write(part.data)
                if blob.size_bytes == part.total:
                    self.served[peer] += 1
                    return

        return read

    async def fetch(self, number: int, key: BlobKey) -> None:
        blob = await self.readers[number].fetch("job", key, self.fetchers[number].fetch)
        assert blob.read() == DATA

    async def fetch_all(self, key: BlobKey) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(TASKMANAGERS):
                nursery.start_soon(self.fetch, number, key)


async def test_a_package_is_read_here_once_for_eight(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=False)
        await hosts.fetch_all(hosts.key)
        assert hosts.server.read_bytes == len(DATA)
        assert sum(hosts.served) == TASKMANAGERS - 1
        assert max(hosts.served) < TASKMANAGERS - 1, "those that have it share the work"
        assert trio.current_time() < 1, "nobody lost patience"


async def test_what_a_scheduler_offloaded_goes_the_same_way(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=False)
        key = hosts.blobs.new_key(BlobKind.SHUFFLE_DESCRIPTORS, DATA, "job")
        hosts.blobs.put("job", key, DATA)
        await hosts.fetch_all(key)
        assert sum(hosts.served) == TASKMANAGERS - 1
        hosts.server.job_left("job")
        assert (await hosts.server.answer("tm9", FetchBlob(key, 0))).total == -1


async def test_who_sees_the_folder_reads_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=True)
        await hosts.fetch(0, hosts.key)
        assert (hosts.server.read_bytes, sum(hosts.served)) == (0, 0)
        path = trio.Path(hosts.store.code_path(hosts.key.removeprefix("code-")))
        await path.write_bytes(DATA[::-1])  # what others see there is something else
        await hosts.fetch(1, hosts.key)
        assert (hosts.server.read_bytes, hosts.served[0]) == (0, 1)


async def test_nobody_waits_for_one_that_says_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It holds the place of who reads here; the others are patient for a while, then one of them reads here as well."""
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=False)
        await hosts.server.answer("tm9", FetchBlob(hosts.key, 0))
        await hosts.fetch_all(hosts.key)
        assert 10 <= trio.current_time() < 20


@pytest.mark.parametrize("how", ["lost", "dropped"])
async def test_one_that_has_it_no_more_is_passed_over(tmp_path: Path, autojump_clock: MockClock, how: str) -> None:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=False)
        await hosts.fetch(0, hosts.key)
        hosts.readers[0] = BlobReader()
        if how == "lost":
            hosts.server.lost("tm0")
        await hosts.fetch(1, hosts.key)
        await hosts.fetch(2, hosts.key)
        assert (hosts.server.read_bytes, hosts.served[1]) == (2 * len(DATA), 1)
        assert trio.current_time() < 1


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(tmp_path, nursery, is_shared=True)
        absent = hashlib.sha256(b"").hexdigest()
        for key, text in (
            (f"code-{absent}", "submit the job again"),
            ("code-x", "not the SHA-256"),
            ("x", "no blob x"),
        ):
            part = await hosts.server.answer("tm0", FetchBlob(key, 0))
            assert part.total == -1
            assert text in part.data.decode()
