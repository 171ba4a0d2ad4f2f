"""Determinism: fixes every source of chance in a process while a simulation runs.

Takes: a seed. Gives: a block in which two runs of the same code are identical.

Trio orders ready tasks by its own random generator; identifiers are random; synchronising files takes long and has no
effect here. Sets of strings have another order in each process: a command that replays a seed runs with
PYTHONHASHSEED=0 (`hash_is_fixed`).
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
import math
import os
import random
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

import trio
import trio._core._run

from ...cluster.task import latency

TICK_S: Final = 0.000_25
READS_AT_MOST: Final = 1_000_000
"""Limit of clock reads. Trio reads the clock in each round, so this stops a simulation without progress."""

_NEVER_S: Final = 999_999_999.0


@final
class JumpingClock(trio.abc.Clock):
    """A clock for `trio.run`, if no task waits for sockets or threads: it stands still while a task can run.

    It behaves like `trio.testing.MockClock` with `autojump_threshold=0`, but needs one round of trio's loop per jump
    instead of two. Jumps end at whole ticks: everything due within a tick happens in one round, in the seed's order.

    Args:
        give_up: called with a reason after `READS_AT_MOST` reads.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._now_s = 0.0
        self._give_up = give_up
        self._reads = 0
        self._due: list[list[Any]] = []  # heap of [due_s, order, callback]; a cancelled callback is None
        self._order = itertools.count()

    def start_clock(self) -> None:
        """Does nothing: the clock starts at 0."""

    def current_time(self) -> float:
        """Seconds since the run began."""
        self._reads += 1
        if self._reads == READS_AT_MOST:
            self._give_up(f"no end: tasks have read the clock {READS_AT_MOST} times")
        return self._now_s

    def call_at(self, due_s: float, callback: Callable[[], object]) -> list[Any]:
        """Schedules a callback, at half the cost of a cancel scope with a deadline; it must not raise.

        Returns:
            The entry; set its last item to None to cancel the callback.
        """
        entry = [due_s, next(self._order), callback]
        heapq.heappush(self._due, entry)
        return entry

    async def sleep_until(self, due_s: float) -> None:
        """Sleeps like `trio.sleep_until`, without a cancel scope."""
        if due_s <= self._now_s:
            await trio.lowlevel.checkpoint()
            return
        entry = self.call_at(due_s, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))

        def abort(_: object) -> trio.lowlevel.Abort:
            entry[2] = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def sleep(self, seconds: float) -> None:
        """Sleeps like `trio.sleep`, without a cancel scope."""
        await self.sleep_until(self._now_s + seconds)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jumps to the deadline or to an earlier callback; trio calls it when no task can run."""
        due = self._due
        while due and due[0][2] is None:
            heapq.heappop(due)
        if due and due[0][0] < deadline:
            deadline = due[0][0]
        if deadline == math.inf:
            return _NEVER_S
        if deadline > self._now_s:
            self._now_s = max(deadline, math.ceil(deadline / TICK_S) * TICK_S)
        while due and due[0][0] <= self._now_s:
            callback = heapq.heappop(due)[2]
            if callback is not None:
                callback()
        return 0.0


_RUN: Final[Any] = trio._core._run
_ROUNDS_A_POLL: Final = 100


def hash_is_fixed() -> bool:
    """Whether sets of strings have the same order in every process."""
    return os.environ.get("PYTHONHASHSEED") == "0"


@final
class _Registered:
    """Replaces trio's method that registers deadlines, a generator that takes a twentieth of the time."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        new = math.inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = _RUN.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != math.inf:
                deadlines.remove(old, scope)
            if new != math.inf:
                deadlines.add(new, scope)


@final
class _Order(random.Random):
    """Shuffles ready tasks as `random.Random` does, in half of its calls."""

    def shuffle(self, tasks: Any) -> None:
        """Shuffles in place."""
        bits = self.getrandbits
        for last in range(len(tasks) - 1, 0, -1):
            size = (last + 1).bit_length()
            other = bits(size)
            while other > last:
                other = bits(size)
            tasks[last], tasks[other] = tasks[other], tasks[last]


@final
class _Value:
    """Replaces `outcome.Value`, whose objects check that they are used once."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def unwrap(self) -> object:
        return self.value


def _joins(status: Any) -> None:
    """Replaces the second half of the constructor of trio's cancel status: a new one has nothing to recalculate."""
    parent = status._parent
    if parent is not None:
        parent._children.add(status)
        if parent.effectively_cancelled or status._scope._cancel_called:
            status.recalculate()


@contextlib.contextmanager
def determined(seed: int, clock: JumpingClock | None = None) -> Iterator[None]:
    """Makes the block deterministic, and restores everything afterwards.

    Args:
        seed: seed of all random choices.
        clock: clock of the run, read directly; None: through trio.
    """
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        random.seed(seed)
        for holder, name, instead in (
            (_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (_RUN, "_r", _Order(seed)),
            (_RUN, "Value", _Value),
            (_RUN.CancelStatus, "__attrs_post_init__", _joins),
            (_RUN, "Instruments", dict),  # no instruments; trio checks them several times per step of each task
            (trio.CancelScope, "_might_change_registered_deadline", lambda scope: _Registered(scope)),
            *(() if clock is None else _of_clock(clock)),
            (secrets, "token_hex", lambda size: chance.randbytes(size).hex()),
            (secrets, "token_bytes", chance.randbytes),
            (os, "fsync", _nothing),
            (latency, "clock_ns", lambda: int(trio.current_time() * 1e9)),
            (trio.to_thread, "run_sync", _no_thread),
        ):
            stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, instead)
        if gc.isenabled():  # a collection would run finalizers at another moment in a replay
            gc.disable()
            stack.callback(gc.enable)
        yield


@final
class _NoSockets(_RUN.TheIOManager):  # type: ignore[misc]
    """Polls sockets rarely: no task waits for one, and only signals arrive there."""

    _rounds = 0

    def get_events(self, timeout: float) -> Any:
        self._rounds += 1
        return () if self._rounds % _ROUNDS_A_POLL and timeout == 0.0 else super().get_events(timeout)


def _of_clock(clock: JumpingClock) -> Iterator[tuple[Any, str, Any]]:
    yield _RUN, "TheIOManager", _NoSockets
    for holder in (trio, _RUN):
        yield holder, "current_time", clock.current_time
    yield trio, "sleep", clock.sleep
    yield trio, "sleep_until", clock.sleep_until


def _nothing(_descriptor: int) -> None:
    """Skips synchronising: power never fails here."""


async def _no_thread(function: Any, *_: Any, **__: Any) -> None:
    """Rejects threads: a virtual clock does not wait for them."""
    raise AssertionError(f"{function} would run in a thread, not on the disk of a simulated host")
