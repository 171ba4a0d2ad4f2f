"""What a store of blobs promises; what is offloaded and what happens when it cannot be."""

from __future__ import annotations

import logging

import pytest

from netstack.base.errors import ConfigError
from netstack.schedule.descriptors.blob_store import (
    BlobError,
    BlobKind,
    BlobStore,
    MemoryBlobStore,
    Offloader,
    OffloadRule,
)
from netstack.schedule.descriptors.descriptors import BlobKey


@pytest.fixture
def store() -> BlobStore:
    return MemoryBlobStore()


def test_put_get_delete(store: BlobStore) -> None:
    key = store.new_key(BlobKind.TASK_INFORMATION, b"content", "me")
    other = store.new_key(BlobKind.TASK_INFORMATION, b"content", "me")
    assert key != other
    assert key.startswith("task-040f06fd774092478d450774f5ba30c5da78acc8-me-")
    assert store.keys("job") == []
    store.put("job", key, b"content")
    assert (store.get("job", key), store.keys("job"), store.keys("other")) == (b"content", [key], [])
    store.delete("job", key)
    store.delete("job", key)
    store.delete("nobody", key)
    with pytest.raises(BlobError, match="no blob"):
        store.get("job", key)


class FullStore(BlobStore):
    def put(self, job: str, key: BlobKey, data: bytes) -> None:
        raise BlobError("the disk is full")

    def get(self, job: str, key: BlobKey) -> bytes:
        raise BlobError("the disk is full")

    def delete(self, job: str, key: BlobKey) -> None:
        raise AssertionError(key)

    def keys(self, job: str) -> list[BlobKey]:
        return []


def test_information_is_offloaded_by_size_and_inline_when_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryBlobStore()
    offloader = Offloader(store, "job", "me", OffloadRule(min_size_bytes=4))
    assert offloader.information(BlobKind.JOB_INFORMATION, b"abc") == b"abc"
    key = offloader.information(BlobKind.JOB_INFORMATION, b"abcd")
    assert store.keys("job") == [key]
    offloader.discard(key)
    offloader.discard(b"abc")
    assert store.keys("job") == []
    with caplog.at_level(logging.WARNING, "netstack"):
        assert Offloader(FullStore(), "job", "me", OffloadRule(0)).information(BlobKind.JOB_INFORMATION, b"x") == b"x"
    assert "sent inline, 1 bytes in every descriptor: the disk is full" in caplog.text


def test_the_first_generation_goes_by_size() -> None:
    rule = OffloadRule(min_size_bytes=100 * 1024, min_products=None)
    offloader = Offloader(MemoryBlobStore(), "job", "me", rule)
    assert isinstance(offloader.shuffle_descriptors(bytes(270 * 1024), 10_000, 10_000), str)
    assert isinstance(offloader.shuffle_descriptors(bytes(99 * 1024), 10_000, 10_000), bytes)
    by_default = Offloader(MemoryBlobStore(), "job", "me", OffloadRule(min_products=None))
    assert isinstance(by_default.shuffle_descriptors(bytes(270 * 1024), 10_000, 10_000), bytes)
    full = Offloader(FullStore(), "job", "me", OffloadRule(0, None))
    assert full.shuffle_descriptors(b"x", 1, 1) == b"x"


def test_the_second_generation_goes_by_the_product() -> None:
    offloader = Offloader(MemoryBlobStore(), "job", "me")
    assert isinstance(offloader.shuffle_descriptors(b"x", 2048, 2048), str)
    assert isinstance(offloader.shuffle_descriptors(b"x", 2048, 2047), bytes)
    full = Offloader(FullStore(), "job", "me", OffloadRule(min_products=0))
    with pytest.raises(BlobError, match="full"):
        full.shuffle_descriptors(b"x", 1, 1)


def test_thresholds_are_not_negative() -> None:
    with pytest.raises(ConfigError, match="min_size_bytes=-1"):
        OffloadRule(min_size_bytes=-1)
    with pytest.raises(ConfigError, match="min_products=-1"):
        OffloadRule(min_products=-1)
