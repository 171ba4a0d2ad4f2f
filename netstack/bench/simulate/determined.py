"""Nothing is left to chance but the seed: what else decides in a process is held still while a simulation runs.

Takes: a seed. Gives: a block in which two runs of the same thing are the same run.

Trio picks the order of tasks that are ready by a random generator of its own; identifiers are random; files are
synchronised, which takes long and changes nothing here. Sets of texts have an order of their own in each process: a
command that replays a seed runs with PYTHONHASHSEED=0 (`hash_is_fixed`).
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import secrets
from collections.abc import Iterator
from typing import Any, Final, final

import trio
import trio._core._run

from netstack.task import latency

from .clock import JumpingClock

_RUN: Final[Any] = trio._core._run
_ROUNDS_A_POLL: Final = 100


def hash_is_fixed() -> bool:
    """Whether sets of texts have the same order in every such process."""
    return os.environ.get("PYTHONHASHSEED") == "0"


@final
class _Registered:
    """A scope of trio is entered or left, which may change the deadlines that its run waits for.

    It does what trio's own method does, which is a generator, and takes a twentieth of a simulation.
    """

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


@contextlib.contextmanager
def determined(seed: int, clock: JumpingClock | None = None) -> Iterator[None]:
    """See the module; restores everything.

    Args:
        seed: decides.
        clock: of the run, which then gives the time without a look for the run; None: trio looks for it.
    """
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(_RUN._r.setstate, _RUN._r.getstate())
        random.seed(seed)
        _RUN._r.seed(seed)
        for holder, name, instead in (
            (_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (_RUN, "Instruments", dict),  # nobody watches; trio asks several times for each step of each task
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
        if gc.isenabled():  # what a collection finishes would be finished at another moment next time
            gc.disable()
            stack.callback(gc.enable)
        yield


@final
class _NoSockets(_RUN.TheIOManager):  # type: ignore[misc]
    """Polls sockets rarely: no task waits for one; only a signal arrives there."""

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
    """No power fails here."""


async def _no_thread(function: Any, *_: Any, **__: Any) -> None:
    """A clock that jumps waits for no thread."""
    raise AssertionError(f"{function} would run in a thread, not on the disk of a simulated host")
