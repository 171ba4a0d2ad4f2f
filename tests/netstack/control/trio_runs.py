"""How async tests of control connections run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from netstack.transport import ByteStream, transport_for

_numbers = itertools.count()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time. What would hang fails; threads make the clock run far ahead."""
    return _running(test, 1e9, lambda: trio.testing.MockClock(autojump_threshold=0))


def real(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in real time; what would hang fails after thirty seconds."""
    return _running(test, 30, lambda: None)


def _running(test: Callable[..., Awaitable[None]], seconds: float, clock: Callable[[], Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(seconds):
                await test(*arguments, **keywords)

        trio.run(main, clock=clock())

    return run


async def streams() -> tuple[ByteStream, ByteStream]:
    """Both ends of a stream in this process."""
    url = f"memory://control{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    dialled = await transport_for(url).connect(url)
    accepted = await listener.accept()
    listener.close()
    return dialled, accepted
