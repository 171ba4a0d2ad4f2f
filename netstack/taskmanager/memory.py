"""Memory of a TaskManager: which job holds how much for network buffers, which one waits; short collections of garbage.

Takes: requests. Gives: leases, in the order of the requests; `short_collections`, for the process of a TaskManager.

While a full collection runs no thread does, and no sign of life is given; with half a million channels it took 1.9 s.
So what has survived a collection of `LONG_S` is not visited again (`gc.freeze`): the next one visits what is new.
Garbage in cycles among what was set aside stays until `release` is called, when no job is left.
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import trio

from ..errors import ConfigError, RequestRefused
from ..units import format_size


@final
class TaskMemory:
    """What a TaskManager has to give.

    Attributes:
        memory_bytes: of network buffers, in all.
        free_memory_bytes: not held.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = self.free_memory_bytes = memory_bytes
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    async def acquire(self, memory_bytes: int, *, timeout_s: float) -> None:
        """Waits for its turn and for what it wants.

        Raises:
            RequestRefused: it wants more than there is in all, or it was not given back in time by others.
            ConfigError: the timeout is below 0.

        Cancellation: nothing is held.
        """
        if not timeout_s >= 0:
            raise ConfigError(f"a timeout of {timeout_s} s for memory; give 0 or more")
        if memory_bytes > self.memory_bytes:
            raise RequestRefused(
                f"{format_size(memory_bytes)} of network buffers were asked for, and this TaskManager has"
                f" {format_size(self.memory_bytes)}: start it with more --memory, or use fewer buffers (each"
                " counts as 560 bytes at least)"
            )
        entry = (memory_bytes, trio.Event())
        self._waiting.append(entry)
        self._serve()
        try:
            with trio.move_on_after(timeout_s):
                await entry[1].wait()
        except BaseException:
            if entry[1].is_set():
                self.release(memory_bytes)
            else:
                self._withdraw(entry)
            raise
        if entry[1].is_set():
            return
        refusal = RequestRefused(  # before it makes way: its text tells what it found
            f"{format_size(memory_bytes)} of network buffers were not free within {timeout_s:g} s:"
            f" {format_size(self.free_memory_bytes)} of {format_size(self.memory_bytes)} are; wait for the other jobs"
        )
        self._withdraw(entry)
        raise refusal

    async def acquire_rest(self, least_bytes: int) -> int:
        """Waits for its turn and for memory, then takes all that is free.

        Args:
            least_bytes: that it waits for; less if there is less in all.

        Returns:
            How much it is, to be given to `release`.

        Cancellation: nothing is held.
        """
        least_bytes = min(least_bytes, self.memory_bytes)
        await self.acquire(least_bytes, timeout_s=math.inf)
        rest_bytes, self.free_memory_bytes = self.free_memory_bytes, 0
        return least_bytes + rest_bytes

    def release(self, memory_bytes: int) -> None:
        """Gives back what was acquired."""
        self.free_memory_bytes += memory_bytes
        self._serve()

    def _withdraw(self, entry: tuple[int, trio.Event]) -> None:
        self._waiting.remove(entry)
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            memory_bytes, served = self._waiting[0]
            if memory_bytes > self.free_memory_bytes:
                return
            self._waiting.popleft()
            self.free_memory_bytes -= memory_bytes
            served.set()


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
