"""How async tests run: in real time, or in virtual time that never runs ahead of a thread; and none for ever.

Takes: an async test, with a clock if it asked for `autojump_clock`. Gives: a run of trio with a limit. pytest-trio has
neither a limit nor a clock that waits for threads, and one clock for all examples of a hypothesis test; so such a test
is a plain one, which calls `run_virtual` for each example.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import trio
from trio.abc import Clock, Instrument
from trio.testing import MockClock

from netstack.base.transport import ByteStream, transport_for

FOR_EVER_S: Final = 1e9
"""Of virtual time: who waits longer waits for nothing."""

PATIENCE_S: Final = 300
"""Of real time."""

REAL_S: Final = 600
"""Of real time, for a test in virtual time: one that never waits moves no clock, and would fill the memory."""

THREAD_TURN_S: Final = 0.0005
"""How long virtual time rests while a thread works, before it looks again."""

_numbers = itertools.count()


def virtual_clock(autojump_threshold_s: float = 0.0) -> MockClock:
    """A clock that jumps to the next deadline when every task waits and no thread of trio's works.

    Without the second condition time runs as far ahead as a thread takes on a busy machine: heartbeats are lost that
    nobody was slow to answer.
    """
    clock = MockClock(autojump_threshold=autojump_threshold_s)
    jump = clock._autojump

    def jump_unless_a_thread_works() -> None:
        if trio.to_thread.current_default_thread_limiter().borrowed_tokens:
            time.sleep(THREAD_TURN_S)
        else:
            jump()

    clock._autojump = jump_unless_a_thread_works  # type: ignore[method-assign]
    return clock


@final
class _RealLimit(Instrument):
    """Ends a test by its own limit when `REAL_S` are over, at its next checkpoint."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._ends_at = time.monotonic() + REAL_S

    def before_io_wait(self, timeout: float) -> None:
        """Called in each round of the event loop."""
        if time.monotonic() > self._ends_at:
            self._scope.deadline = -math.inf


def run_limited(
    test: Callable[[], Awaitable[Any]], *, clock: Clock | None = None, instruments: Sequence[Instrument] = ()
) -> Any:
    """Runs a test and its fixtures as `trio.run` does; one that would hang fails, in virtual time at once."""

    async def main() -> Any:
        with trio.fail_after(PATIENCE_S if clock is None else FOR_EVER_S) as scope:
            trio.lowlevel.add_instrument(_RealLimit(scope))
            return await test()

    return trio.run(main, clock=clock, instruments=instruments)


def run_virtual(test: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Runs an async function in a virtual time of its own; returns what it does. What would hang fails."""
    return run_limited(lambda: test(*arguments), clock=virtual_clock())


async def streams() -> tuple[ByteStream, ByteStream]:
    """Both ends of a stream in this process."""
    url = f"memory://control{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    dialled = await transport_for(url).connect(url)
    accepted = await listener.accept()
    listener.close()
    return dialled, accepted
