"""The TaskManager's cache of values: number, size and age."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError
from netstack.cluster.taskmanager.group_cache import GroupCache


def test_get_put_clear() -> None:
    cache: GroupCache[str] = GroupCache()
    assert cache.get("job", "key", 0.0) is None
    cache.put("job", "key", "value", 0.0, 5)
    cache.put("job", "key", "newer", 0.0, 6)
    cache.put("other", "key", "theirs", 0.0)
    assert (cache.get("job", "key", 0.0), len(cache), cache.size_bytes) == ("newer", 2, 6)
    cache.clear("job")
    assert (cache.get("job", "key", 0.0), cache.get("other", "key", 0.0), cache.size_bytes) == (None, "theirs", 0)


def test_the_least_recently_used_goes() -> None:
    cache: GroupCache[int] = GroupCache(max_entries=2)
    cache.put("job", "a", 1, 0.0)
    cache.put("job", "b", 2, 0.0)
    cache.get("job", "a", 0.0)
    cache.put("job", "c", 3, 0.0)
    assert [cache.get("job", key, 0.0) for key in "abc"] == [1, None, 3]


def test_a_limit_of_one_keeps_the_newest() -> None:
    cache: GroupCache[int] = GroupCache(max_entries=1)
    cache.put("job", "a", 1, 0.0)
    cache.put("job", "b", 2, 0.0)
    assert [cache.get("job", key, 0.0) for key in "ab"] == [None, 2]


def test_what_was_not_used_for_a_while_is_gone() -> None:
    cache: GroupCache[int] = GroupCache(expire_after_s=1.0)
    cache.put("job", "a", 1, 0.0)
    cache.put("job", "b", 2, 0.5)
    assert cache.get("job", "a", 0.9) == 1
    assert cache.get("job", "b", 1.5) is None
    assert cache.get("job", "a", 1.5) == 1
    assert cache.get("job", "a", 3.5) is None
    assert len(cache) == 0


def test_sizes_are_bounded() -> None:
    cache: GroupCache[int] = GroupCache(max_bytes=10)
    cache.put("job", "a", 1, 0.0, 6)
    cache.put("job", "b", 2, 0.0, 5)
    assert [cache.get("job", key, 0.0) for key in "ab"] == [None, 2]
    cache.put("job", "c", 3, 0.0, 11)
    assert (cache.get("job", "c", 0.0), cache.size_bytes) == (None, 5)


@pytest.mark.parametrize("bounds", [{"max_entries": 0}, {"max_bytes": 0}, {"expire_after_s": 0.0}])
def test_bounds_are_positive(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be more than 0"):
        GroupCache(**bounds)
