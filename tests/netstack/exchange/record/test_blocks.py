"""Memory is used again when nobody looks at it any more, and never before, whatever the interpreter counts."""

from __future__ import annotations

import numpy as np
import pytest

from netstack.exchange.record.blocks import GRAIN_BYTES, BlockCache


def test_a_block_that_nobody_looks_at_is_used_again() -> None:
    cache = BlockCache()
    first = cache.take(100)
    first[:] = 7
    del first
    assert (cache.take(100) == 7).all(), "the same memory"


@pytest.mark.parametrize("look", [lambda taken: taken, lambda taken: taken[3:5], memoryview, np.asarray])
def test_a_block_that_somebody_looks_at_is_not(look: object) -> None:
    cache = BlockCache()
    taken = cache.take(GRAIN_BYTES)
    taken[:] = 7
    seen = look(taken)  # type: ignore[operator]
    del taken
    for _ in range(10):
        cache.take(GRAIN_BYTES)[:] = 9
    assert bytes(seen) == b"\x07" * len(seen)
