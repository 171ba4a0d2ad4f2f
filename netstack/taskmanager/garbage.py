"""Python's full collections of garbage, kept short: while one runs no thread does, and no sign of life is given.

Takes: nothing. Gives: `short_collections`, for the process of a TaskManager.

A full collection visits every object; with half a million channels it took 1.9 s, and with four such processes on two
busy processors longer than a heartbeat timeout. So what has survived a collection of `LONG_S` is not visited again
(`gc.freeze`): the next one visits what is new. Garbage in cycles among what was set aside stays until `release` is
called, when no job is left.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

LONG_S: Final = 0.5

_FULL: Final = 2


@contextmanager
def short_collections(long_s: float = LONG_S) -> Iterator[Callable[[], None]]:
    """Keeps collections of this process short while the block runs; gives what releases all that was set aside."""
    began_s = 0.0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal began_s
        if info["generation"] != _FULL:
            return
        if phase == "start":
            began_s = time.perf_counter()
        elif time.perf_counter() - began_s >= long_s:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield gc.unfreeze
    finally:
        gc.callbacks.remove(watch)
        gc.unfreeze()
