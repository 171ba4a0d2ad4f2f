"""What has survived a long collection is not visited again, until all of it is released."""

from __future__ import annotations

import gc

from netstack.cluster.taskmanager.memory import short_collections


def test_survivors_of_a_long_collection_are_set_aside_until_they_are_released() -> None:
    gc.collect()
    immortal = gc.get_freeze_count()  # some Pythons set such objects aside themselves
    with short_collections(0.0) as release:
        kept = [[number] for number in range(1000)]
        before = gc.get_freeze_count()
        gc.collect()
        assert gc.get_freeze_count() - before >= len(kept)
        release()
        assert gc.get_freeze_count() == 0
    with short_collections(3600):
        gc.collect()
        assert gc.get_freeze_count() <= immortal
    assert gc.get_freeze_count() == 0
