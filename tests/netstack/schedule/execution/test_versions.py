"""A callback that comes late finds another version."""

from __future__ import annotations

from netstack.schedule.execution import ExecutionVersions
from netstack.schedule.structures import index_array


def test_what_was_recorded_before_a_bump_is_stale() -> None:
    versions = ExecutionVersions()
    versions.grow(3)
    before = versions.record(index_array([0, 1, 2]))
    again = versions.bump(index_array([1]))
    assert versions.current(before).tolist() == [0, 2]
    assert versions.current(before[1:]).tolist() == [2]
    assert versions.current(again).tolist() == [1]
    versions.grow(1)
    versions.bump(index_array([0, 3]))
    assert versions.current(before).tolist() == [2]
    assert versions.current(again).tolist() == [1]
