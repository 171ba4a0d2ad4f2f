"""Which files go: the least recently used, as many as needed."""

from __future__ import annotations

import logging

import pytest

from netstack.errors import ConfigError, LocalProtocolError
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.taskmanager.blob_tracker import BlobTracker


def keys(found: list[tuple[str, BlobKey]]) -> list[str]:
    return [key for _, key in found]


def test_five_blobs_two_touched_two_needed() -> None:
    tracker = BlobTracker(5)
    for number in range(5):
        tracker.track("job", BlobKey(str(number)), 1)
    tracker.touch("job", BlobKey("1"))
    tracker.touch("job", BlobKey("2"))
    tracker.touch("job", BlobKey("none"))
    assert keys(tracker.to_delete(2)) == ["0", "3"]
    assert tracker.to_delete(0) == []
    for job, key in tracker.to_delete(2):
        tracker.untrack(job, key)
        tracker.untrack(job, key)
    assert (tracker.total_bytes, tracker.to_delete(2)) == (3, [])


def test_a_blob_larger_than_the_limit_empties_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    tracker = BlobTracker(5)
    tracker.track("job", BlobKey("a"), 1)
    with caplog.at_level(logging.WARNING, "netstack"):
        assert keys(tracker.to_delete(6)) == ["a"]
    assert "larger than the blob cache" in caplog.text


def test_there_are_never_more_than_so_many() -> None:
    tracker = BlobTracker(100, most=2)
    tracker.track("job", BlobKey("a"), 1)
    assert tracker.to_delete(1) == []
    tracker.track("job", BlobKey("b"), 1)
    assert keys(tracker.to_delete(1)) == ["a"]


def test_a_job_leaves() -> None:
    tracker = BlobTracker(5)
    tracker.track("one", BlobKey("a"), 1)
    tracker.track("two", BlobKey("a"), 2)
    assert tracker.untrack_job("one") == [("one", "a")]
    assert tracker.total_bytes == 2


def test_misuse() -> None:
    with pytest.raises(ConfigError, match="limit_bytes=0"):
        BlobTracker(0)
    tracker = BlobTracker(5)
    tracker.track("job", BlobKey("a"), 1)
    with pytest.raises(LocalProtocolError, match="tracked already; use touch"):
        tracker.track("job", BlobKey("a"), 1)
