"""A blob travels once to a TaskManager; memory first, files second, the shared store last."""

from __future__ import annotations

import pytest

from netstack.errors import ConfigError
from netstack.schedule.descriptors.blob_store import BlobError, BlobStore, MemoryBlobStore
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


class CountingStore(BlobStore):
    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.reads = 0

    def put(self, job: str, key: BlobKey, data: bytes) -> None:
        raise AssertionError(key)

    def get(self, job: str, key: BlobKey) -> bytes:
        self.reads += 1
        if self.reads <= self.failures:
            raise BlobError("try again")
        return LIST

    def delete(self, job: str, key: BlobKey) -> None:
        raise AssertionError(key)

    def keys(self, job: str) -> list[BlobKey]:
        return []


def test_the_second_task_finds_the_value() -> None:
    shared = CountingStore()
    reader = BlobReader(shared, MemoryBlobStore())
    first = reader.shuffle_descriptors("job", KEY, 0.0)
    assert reader.shuffle_descriptors("job", KEY, 299.0) is first
    again = reader.shuffle_descriptors("job", KEY, 700.0)
    assert again is not first
    assert shared.reads == 1
    reader.job_left("job")
    reader.shuffle_descriptors("job", KEY, 700.0)
    assert shared.reads == 2


def test_inline_lists_are_not_remembered() -> None:
    reader = BlobReader(CountingStore(), MemoryBlobStore())
    assert reader.shuffle_descriptors("job", LIST, 0.0) is not reader.shuffle_descriptors("job", LIST, 0.0)


def test_a_fetch_is_repeated() -> None:
    assert BlobReader(CountingStore(5), MemoryBlobStore()).fetch("job", KEY) == LIST
    shared = CountingStore(7)
    with pytest.raises(BlobError, match="again"):
        BlobReader(shared, MemoryBlobStore()).fetch("job", KEY)
    assert shared.reads == 6
    with pytest.raises(ConfigError, match="retries=-1"):
        BlobReader(shared, MemoryBlobStore(), retries=-1)


def test_files_make_room() -> None:
    files = MemoryBlobStore()
    reader = BlobReader(CountingStore(), files, tracker=BlobTracker(2 * len(LIST)))
    for number in (0, 1, 0, 2):
        reader.fetch("job", BlobKey(f"shuffle-{number}"))
    assert sorted(files.keys("job")) == ["shuffle-0", "shuffle-2"]


def test_a_file_that_vanished_is_fetched_again() -> None:
    files = MemoryBlobStore()
    reader = BlobReader(CountingStore(), files)
    reader.fetch("job", KEY)
    files.delete("job", KEY)
    assert reader.fetch("job", KEY) == LIST
    assert files.keys("job") == [KEY]
