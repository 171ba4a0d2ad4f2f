"""Network memory of a TaskManager, leased to jobs in order; and short garbage collections for its process.

Takes: requests. Gives: leases in the order of the requests; `short_collections`.

A full garbage collection stops all threads, so no heartbeat is sent; with half a million channels one took 1.9 s.
Therefore objects that survive a collection of `LONG_S` are excluded from later ones (`gc.freeze`). Cyclic garbage among
them stays until the release function is called, when no job is left.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import trio

from ...base.errors import ConfigError, RequestRefused
from ...base.units import format_size

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES: Final = 32 * 1024 * 1024
"""The largest that glibc sets by itself."""


def keep_freed_memory() -> bool:
    """Lets this process, and those forked from it, keep up to 64 MiB of freed heap.

    glibc returns the end of its heap to the system as soon as 128 KiB of it are free. A task that makes some hundred
    records of 1 KiB and drops them then gets fresh pages for the next ones, and each page costs a fault: measured, 1
    KiB records over 16 channels took 2.6 s of CPU per GB instead of 1.4. glibc raises this limit by itself when a block
    of 32 MiB is freed; this does the same at once.

    Returns:
        False if nothing was changed: the C library is not glibc, or the environment says how it should behave
        (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`).
    """
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_BYTES)
    )


@final
class TaskMemory:
    """The network memory of a TaskManager.

    Attributes:
        memory_bytes: total memory for network buffers.
        free_memory_bytes: memory that no job holds.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = self.free_memory_bytes = memory_bytes
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    async def acquire(self, memory_bytes: int, *, timeout_s: float) -> None:
        """Waits for its turn and takes memory.

        Raises:
            RequestRefused: the request exceeds the total, or not enough memory became free in time.
            ConfigError: the timeout is negative.

        Cancellation: takes nothing.
        """
        if not timeout_s >= 0:
            raise ConfigError(f"timeout of {timeout_s} s for memory: must be at least 0")
        if memory_bytes > self.memory_bytes:
            raise RequestRefused(
                f"the job needs {format_size(memory_bytes)} of network buffers, but this TaskManager has"
                f" {format_size(self.memory_bytes)}: start it with more --memory, or use fewer buffers (each"
                " counts as at least 560 bytes)"
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
        refusal = RequestRefused(  # built before the withdrawal, which may change the free memory
            f"{format_size(memory_bytes)} of network buffers did not become free within {timeout_s:g} s:"
            f" {format_size(self.free_memory_bytes)} of {format_size(self.memory_bytes)} are free; wait for other jobs"
        )
        self._withdraw(entry)
        raise refusal

    async def acquire_rest(self, least_bytes: int) -> int:
        """Waits for its turn and a minimum, then takes all free memory.

        Args:
            least_bytes: minimum; capped at the total.

        Returns:
            The number of bytes, to be passed to `release`.

        Cancellation: takes nothing.
        """
        least_bytes = min(least_bytes, self.memory_bytes)
        await self.acquire(least_bytes, timeout_s=math.inf)
        rest_bytes, self.free_memory_bytes = self.free_memory_bytes, 0
        return least_bytes + rest_bytes

    def release(self, memory_bytes: int) -> None:
        """Returns memory."""
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
    """Keeps garbage collections short while the block runs; yields a function that ends all exclusions."""
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
