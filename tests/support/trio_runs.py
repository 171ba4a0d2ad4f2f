"""How async tests run: in virtual time that never runs ahead of a thread, or in real time; none can hang for ever.

Takes: an async test. Gives: a plain one for pytest, which keeps the signature for fixtures and parameters.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
import trio.testing

from netstack.transport import ByteStream, transport_for

FOR_EVER_S: Final = 1e9
"""Of virtual time: who waits longer waits for nothing."""

PATIENCE_S: Final = 30
"""Of real time."""

THREAD_TURN_S: Final = 0.0005
"""How long virtual time rests while a thread works, before it looks again."""

_numbers = itertools.count()


def virtual_clock(autojump_threshold_s: float = 0.0) -> trio.testing.MockClock:
    """A clock that jumps to the next deadline when every task waits and no thread of trio's works.

    Without the second condition time runs as far ahead as a thread takes on a busy machine: heartbeats are lost that
    nobody was slow to answer.
    """
    clock = trio.testing.MockClock(autojump_threshold=autojump_threshold_s)
    jump = clock._autojump

    def jump_unless_a_thread_works() -> None:
        if trio.to_thread.current_default_thread_limiter().borrowed_tokens:
            time.sleep(THREAD_TURN_S)
        else:
            jump()

    clock._autojump = jump_unless_a_thread_works  # type: ignore[method-assign]
    return clock


def run_virtual(test: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Runs an async function in virtual time; returns what it does. What would hang fails."""

    async def main() -> Any:
        with trio.fail_after(FOR_EVER_S):
            return await test(*arguments)

    return trio.run(main, clock=virtual_clock())


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time. What would hang fails."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        run_virtual(functools.partial(test, *arguments, **keywords))

    return run


def real(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in real time; what would hang fails after half a minute."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(PATIENCE_S):
                await test(*arguments, **keywords)

        trio.run(main)

    return run


async def streams() -> tuple[ByteStream, ByteStream]:
    """Both ends of a stream in this process."""
    url = f"memory://control{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    dialled = await transport_for(url).connect(url)
    accepted = await listener.accept()
    listener.close()
    return dialled, accepted
