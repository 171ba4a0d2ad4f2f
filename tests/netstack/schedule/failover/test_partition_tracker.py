"""Where partitions are, and which of them are still there."""

from __future__ import annotations

import numpy as np

from netstack.schedule.failover.release import NOWHERE, PartitionTracker
from netstack.schedule.structures import index_array


def test_tracked_lost_released_forgotten() -> None:
    tracker = PartitionTracker()
    tracker.grow(5)
    every = index_array(range(5))
    assert tracker.tracked(every).tolist() == []
    tracker.track(index_array([0, 1, 2, 3]), index_array([7, 8, 7, 9]), np.array([0, 1, 0, 2], np.uint32))
    assert tracker.tracked(every).tolist() == [0, 1, 2, 3]
    tracker.lose(range(7, 8))
    tracker.release(index_array([3]))
    assert tracker.is_tracked.tolist() == [False, True, False, False, False]
    # Lost ones keep their place: whoever is sent there tells that they are gone.
    assert tracker.is_registered.tolist() == [True, True, True, True, False]
    tracker.forget(index_array([0, 1]))
    assert tracker.places.tolist() == [NOWHERE, NOWHERE, 7, 9, NOWHERE]
    assert tracker.attempts[3] == 2
    assert len(tracker) == 5
