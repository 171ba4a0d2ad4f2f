"""One entry a group, made once, dropped with its blob."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.descriptors.blob_store import (
    BlobError,
    BlobStore,
    DescriptorCache,
    MemoryBlobStore,
    Offloader,
    OffloadRule,
)
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.schedule.descriptors.shuffle import UNKNOWN, ShuffleDescriptors, TaskManagerLocation

LOCATIONS = [TaskManagerLocation("a", "tcp://a:1"), TaskManagerLocation("b", "tcp://b:1")]
ALL = OffloadRule(min_products=0)
NONE = OffloadRule(min_products=1 << 60)


def descriptors(*taskmanagers: int, index: list[int] | None = None) -> ShuffleDescriptors:
    positions = list(range(len(taskmanagers))) if index is None else index
    attempts = [0] * len(taskmanagers)
    return ShuffleDescriptors.of(
        "job", "words", LOCATIONS, index=positions, partition=positions, attempt=attempts, taskmanager=taskmanagers
    )


@pytest.mark.parametrize("rule", [ALL, NONE])
def test_four_descriptors_in_order_inline_or_offloaded(rule: OffloadRule) -> None:
    store = MemoryBlobStore()
    cache = DescriptorCache(Offloader(store, "job", "me", rule))
    assert cache.lists(0) is None
    made = cache.put(0, descriptors(0, 1, 0, 1), 4)
    for _ in range(4):
        assert cache.lists(0) == made
    (part,) = made
    data = part if isinstance(part, bytes) else store.get("job", part)
    again = ShuffleDescriptors.decompress(data)
    assert [str(again.descriptor(row).partition) for row in range(4)] == [f"job/words/{row}.0" for row in range(4)]
    statistics = cache.statistics()
    assert (statistics.groups, statistics.misses) == (1, 1)
    assert statistics.blobs == len(store.keys("job")) == (1 if rule is ALL else 0)
    assert statistics.plain_bytes > 80
    assert statistics.compressed_bytes == len(data)


def test_what_becomes_known_is_a_further_list() -> None:
    store = MemoryBlobStore()
    cache = DescriptorCache(Offloader(store, "job", "me", ALL))
    assert len(cache.put(0, descriptors(UNKNOWN, UNKNOWN, UNKNOWN, 1), 4)) == 1
    assert len(cache.add(0, descriptors(0, 1, index=[0, 2]))) == 2
    assert len(cache.add(0, descriptors(1, index=[1]))) == 3
    assert len(cache.blobs()) == 3
    cache.invalidate([0, 5])
    assert (store.keys("job"), cache.lists(0)) == ([], None)


def test_invalidation_takes_one_group_and_clear_all() -> None:
    store = MemoryBlobStore()
    cache = DescriptorCache(Offloader(store, "job", "me", ALL))
    for group in range(4):
        cache.put(group, descriptors(0), 1)
    cache.invalidate([2])
    assert [group for group in range(4) if cache.lists(group)] == [0, 1, 3]
    assert len(store.keys("job")) == 3
    cache.clear()
    assert (store.keys("job"), cache.statistics().groups) == ([], 0)


def test_a_group_has_one_entry() -> None:
    cache = DescriptorCache(Offloader(MemoryBlobStore(), "job", "me", NONE))
    with pytest.raises(LocalProtocolError, match="put them first"):
        cache.add(0, descriptors(0))
    cache.put(0, descriptors(0), 1)
    with pytest.raises(LocalProtocolError, match="invalidate them first"):
        cache.put(0, descriptors(0), 1)


class FullStore(BlobStore):
    def put(self, job: str, key: BlobKey, data: bytes) -> None:
        raise BlobError("the disk is full")

    def get(self, job: str, key: BlobKey) -> bytes:
        raise BlobError(key)

    def delete(self, job: str, key: BlobKey) -> None:
        raise AssertionError(key)

    def keys(self, job: str) -> list[BlobKey]:
        return []


def test_a_failed_upload_leaves_no_entry() -> None:
    cache = DescriptorCache(Offloader(FullStore(), "job", "me", ALL))
    with pytest.raises(BlobError, match="full"):
        cache.put(0, descriptors(0), 1)
    assert cache.lists(0) is None
