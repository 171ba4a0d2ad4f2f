"""A blob travels once to a TaskManager; memory first, its own store second, the link last."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import final

import pytest
import trio

from netstack.base.errors import ConfigError
from netstack.cluster.control.messages import SLICE_BYTES
from netstack.cluster.control.reports import FetchBlob
from netstack.cluster.taskmanager.blob_reader import BlobReader, KeptBlob
from netstack.schedule.descriptors.blob_store import BlobError
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress

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

    async def fetch(self, blob: KeptBlob) -> None:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        if self.reads <= self.failures:
            raise BlobError("try again")
        blob.write(LIST)


def descriptors(reader: BlobReader, link: Link, now_s: float, *, job: str = "job") -> ShuffleDescriptors:
    fetched = trio.run(reader.fetch_all, job, [KEY], link.fetch)
    return reader.shuffle_descriptors(job, KEY, fetched, now_s)


def test_the_second_task_finds_the_value() -> None:
    link, reader = Link(), BlobReader()
    first = descriptors(reader, link, 0.0)
    assert descriptors(reader, link, 299.0) is first
    again = descriptors(reader, link, 700.0)
    assert again is not first
    assert link.reads == 1
    reader.job_left("job")
    descriptors(reader, link, 700.0)
    assert link.reads == 2


def test_a_list_that_came_inline_is_read_once_for_all_consumers() -> None:
    reader = BlobReader()
    first = reader.shuffle_descriptors("job", LIST, {}, 0.0)
    assert reader.shuffle_descriptors("job", bytes(bytearray(LIST)), {}, 0.0) is first


def test_a_fetch_is_repeated() -> None:
    assert trio.run(BlobReader().fetch, "job", KEY, Link(5).fetch).read() == LIST
    link = Link(7)
    with pytest.raises(BlobError, match="again"):
        trio.run(BlobReader().fetch, "job", KEY, link.fetch)
    assert link.reads == 6
    with pytest.raises(ConfigError, match="retries=-1"):
        BlobReader(retries=-1)


def test_those_who_ask_at_one_time_share_one_journey_and_a_cancelled_one_is_taken_over() -> None:
    link, reader = Link(), BlobReader()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scopes = []

            async def read() -> None:
                with trio.CancelScope() as scope:
                    scopes.append(scope)
                    assert (await reader.fetch("job", KEY, link.fetch)).read() == LIST

            for _ in range(10):
                nursery.start_soon(read)
            while not link.reads:
                await trio.lowlevel.checkpoint()
            scopes[0].cancel()

    trio.run(main)
    assert link.reads <= 2


def test_blobs_make_room() -> None:
    link, reader = Link(), BlobReader(2 * len(LIST))
    for number in (0, 1, 0, 2, 0, 1):
        trio.run(reader.fetch, "job", BlobKey(f"shuffle-{number}"), link.fetch)
    assert link.reads == 4  # only 1 had to be fetched again
    assert reader.kept_bytes == 2 * len(LIST)


def test_a_blob_larger_than_the_cache_is_kept_alone(caplog: pytest.LogCaptureFixture) -> None:
    link, reader = Link(), BlobReader(2 * len(LIST))
    for number in (0, 1):
        trio.run(reader.fetch, "job", BlobKey(f"shuffle-{number}"), link.fetch)

    async def fetch(blob: KeptBlob) -> None:
        blob.write(bytes(2 * len(LIST) + 1))

    with caplog.at_level(logging.WARNING, "netstack"):
        trio.run(reader.fetch, "job", BlobKey("shuffle-2"), fetch)
    assert "larger than the blob cache" in caplog.text
    assert (reader.kept_bytes, reader.evicted) == (2 * len(LIST) + 1, 2)


def test_there_are_never_more_blobs_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netstack.cluster.taskmanager.blob_reader.MOST_BLOBS", 2)
    link, reader = Link(), BlobReader()
    for job in ("a", "b", "a", "c", "a"):
        trio.run(reader.fetch, job, KEY, link.fetch)
    assert (link.reads, reader.evicted) == (3, 1)
    reader.job_left("a")
    assert reader.kept_bytes == len(LIST)


def test_a_package_stays_for_the_next_job() -> None:
    link, reader = Link(), BlobReader()
    for job in ("a", "b"):
        trio.run(reader.fetch, job, BlobKey("code-0"), link.fetch)
        trio.run(reader.fetch, job, KEY, link.fetch)
        reader.job_left(job)
    assert link.reads == 3
    assert reader.kept_bytes == len(LIST)


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES, 3 * SLICE_BYTES + 1])
def test_a_blob_is_read_part_by_part_and_leaves_no_file(tmp_path: Path, size: int) -> None:
    data = bytes(size - 1) + b"x" if size else b""
    key = BlobKey(f"code-{hashlib.sha256(data).hexdigest()}")
    reader = BlobReader(directory=str(tmp_path))

    async def fetch(blob: KeptBlob) -> None:
        await trio.lowlevel.checkpoint()
        for offset in range(0, size, 50_000):
            blob.write(data[offset : offset + 50_000])
        blob.check()

    async def main() -> bytes:
        read = b""
        while len(read) < size or not read:
            part = await reader.part("job", FetchBlob(key, len(read)), fetch)
            assert part == await reader.part_of_kept(FetchBlob(key, len(read)))
            assert part.total == size
            read += part.data
            if not size:
                break
        return read

    assert trio.run(main) == data
    assert not list(tmp_path.iterdir())
    unknown = trio.run(reader.part_of_kept, FetchBlob("code-1", 0))
    assert (unknown.total, unknown.data) == (-1, b"it is not cached at this TaskManager")


def test_a_full_disk_is_an_error_of_the_blob(tmp_path: Path) -> None:
    blob = KeptBlob(BlobKey("code-0"), str(tmp_path / "not there"))
    with pytest.raises(BlobError, match=f"blob code-0 cannot be written in {tmp_path}/not there: .*; free space"):
        blob.write(b"x")
