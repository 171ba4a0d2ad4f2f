"""A blob travels once to a TaskManager; memory first, its own store second, the link last."""

from __future__ import annotations

from typing import final

import pytest
import trio

from netstack.errors import ConfigError
from netstack.schedule.descriptors.blob_store import BlobError, MemoryBlobStore
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress
from netstack.taskmanager.blob_reader import BlobReader
from netstack.taskmanager.blob_tracker import BlobTracker

LIST = compress(
    ShuffleDescriptors.of(
        "job", "words", [TaskManagerLocation("a", "tcp://a:1")], index=[0], partition=[0], attempt=[0], taskmanager=[0]
    ).serialised()
)
KEY = BlobKey("shuffle-0")


@final
class Link:
    """Brings the list, after some failures, when it is let."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.reads = 0

    async def fetch(self, key: BlobKey) -> bytes:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        if self.reads <= self.failures:
            raise BlobError("try again")
        return LIST


def descriptors(reader: BlobReader, link: Link, now_s: float, *, job: str = "job") -> ShuffleDescriptors:
    fetched = trio.run(reader.fetch_all, job, [KEY], link.fetch)
    return reader.shuffle_descriptors(job, KEY, fetched, now_s)


def test_the_second_task_finds_the_value() -> None:
    link, reader = Link(), BlobReader(MemoryBlobStore())
    first = descriptors(reader, link, 0.0)
    assert descriptors(reader, link, 299.0) is first
    again = descriptors(reader, link, 700.0)
    assert again is not first
    assert link.reads == 1
    reader.job_left("job")
    descriptors(reader, link, 700.0)
    assert link.reads == 2


def test_a_list_that_came_inline_is_read_once_for_all_consumers() -> None:
    reader = BlobReader(MemoryBlobStore())
    first = reader.shuffle_descriptors("job", LIST, {}, 0.0)
    assert reader.shuffle_descriptors("job", bytes(bytearray(LIST)), {}, 0.0) is first


def test_a_fetch_is_repeated() -> None:
    assert trio.run(BlobReader(MemoryBlobStore()).fetch, "job", KEY, Link(5).fetch) == LIST
    link = Link(7)
    with pytest.raises(BlobError, match="again"):
        trio.run(BlobReader(MemoryBlobStore()).fetch, "job", KEY, link.fetch)
    assert link.reads == 6
    with pytest.raises(ConfigError, match="retries=-1"):
        BlobReader(MemoryBlobStore(), retries=-1)


def test_those_who_ask_at_one_time_share_one_journey_and_a_cancelled_one_is_taken_over() -> None:
    link, reader = Link(), BlobReader(MemoryBlobStore())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scopes = []

            async def read() -> None:
                with trio.CancelScope() as scope:
                    scopes.append(scope)
                    assert await reader.fetch("job", KEY, link.fetch) == LIST

            for _ in range(10):
                nursery.start_soon(read)
            while not link.reads:
                await trio.lowlevel.checkpoint()
            scopes[0].cancel()

    trio.run(main)
    assert link.reads <= 2


def test_files_make_room() -> None:
    files, link = MemoryBlobStore(), Link()
    reader = BlobReader(files, tracker=BlobTracker(2 * len(LIST)))
    for number in (0, 1, 0, 2):
        trio.run(reader.fetch, "job", BlobKey(f"shuffle-{number}"), link.fetch)
    assert sorted(files.keys("job")) == ["shuffle-0", "shuffle-2"]


def test_a_file_that_vanished_is_fetched_again() -> None:
    files, link = MemoryBlobStore(), Link()
    reader = BlobReader(files)
    trio.run(reader.fetch, "job", KEY, link.fetch)
    files.delete("job", KEY)
    assert trio.run(reader.fetch, "job", KEY, link.fetch) == LIST
    assert files.keys("job") == [KEY]
