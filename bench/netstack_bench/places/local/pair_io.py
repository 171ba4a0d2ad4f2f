"""The interface of `isolate` and `channels` in their worker processes, and the main function of a worker module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import trio

from .worker import arguments_of, reporting
from .worker_io import Link, SideIo

Summary: TypeAlias = dict[str, Any]
Side: TypeAlias = Callable[["PairIo"], Awaitable[Summary]]


class PairIo(SideIo):
    """The interface of one side of a pair."""

    def __init__(self, link: Link) -> None:
        job = link.wait("job")
        super().__init__(link, Path(job["scratch"]))
        self.settings: dict[str, Any] = job["settings"]

    async def peer_address(self) -> str:
        """Waits for the address of the other side."""
        return str((await self._wait("address"))["address"])

    async def ready(self) -> int:
        """Waits until the other side is ready too; returns the common start time (CLOCK_MONOTONIC, a moment ahead)."""
        self._link.send("ready")
        return int((await self._wait("go"))["start_ns"])

    async def producer_summary(self) -> Summary:
        """For the consumer: waits for the summary of the producer."""
        return await self._wait("finish")

    async def _wait(self, event: str) -> dict[str, Any]:
        return await trio.to_thread.run_sync(self._link.wait, event, abandon_on_cancel=True)


def serve(produce: Side, consume: Side) -> int:
    """The main function of a worker module; returns the exit code."""
    side = produce if arguments_of(None).role == "producer" else consume

    def work(link: Link) -> None:
        link.send("done", **trio.run(side, PairIo(link)))

    return reporting(work)
