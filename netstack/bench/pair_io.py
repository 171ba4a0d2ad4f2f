"""What the two sides of `isolate` and `channels` are given in their worker processes.

Takes: the conversation with whoever leads them (`bench.pair`). Gives: `PairIo` to a side, and `serve`, the main
function of a worker module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import trio

from .worker import arguments_of, reporting
from .worker_io import Link

Summary: TypeAlias = dict[str, Any]
Side: TypeAlias = Callable[["PairIo"], Awaitable[Summary]]


class PairIo:
    """What a side of a pair is given.

    Attributes:
        settings: the job's.
        scratch: a folder of this run, for sockets; removed afterwards.
    """

    def __init__(self, link: Link) -> None:
        """Waits for the job."""
        job = link.wait("job")
        self.settings: dict[str, Any] = job["settings"]
        self.scratch = Path(job["scratch"])
        self._link = link

    def watch(self, records: Callable[[], int]) -> None:
        """Counts progress by this."""
        self._link.progress = records

    def publish(self, address: str) -> None:
        """Tells the other side where this one listens."""
        self._link.send("address", address=address)

    async def peer_address(self) -> str:
        """Waits for the address the other side published."""
        return str((await self._wait("address"))["address"])

    async def ready(self) -> int:
        """Waits until the other side is ready too.

        Returns:
            The start time both are given, CLOCK_MONOTONIC in nanoseconds, a moment ahead.
        """
        self._link.send("ready")
        return int((await self._wait("go"))["start_ns"])

    async def producer_summary(self) -> Summary:
        """For the consumer: waits until the producer is done."""
        return await self._wait("producer_done")

    async def _wait(self, event: str) -> dict[str, Any]:
        """In a thread, so that the TaskManager's tasks go on; cancelled, the thread ends with the process."""
        return await trio.to_thread.run_sync(self._link.wait, event, abandon_on_cancel=True)


def serve(produce: Side, consume: Side) -> int:
    """The main function of a worker module.

    Returns:
        The exit code.
    """
    side = produce if arguments_of(None).role == "producer" else consume

    def work(link: Link) -> None:
        link.send("done", **trio.run(_run, side, link))

    return reporting(work)


async def _run(side: Side, link: Link) -> Summary:
    return await side(PairIo(link))
