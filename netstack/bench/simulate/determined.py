"""Nothing is left to chance but the seed: what else decides in a process is held still while a simulation runs.

Takes: a seed. Gives: a block in which two runs of the same thing are the same run.

Trio picks the order of tasks that are ready by a random generator of its own; identifiers are random; files are
synchronised, which takes long and changes nothing here. Sets of texts have an order of their own in each process: a
command that replays a seed runs with PYTHONHASHSEED=0 (`hash_is_fixed`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import secrets
from collections.abc import Iterator
from typing import Any, Final

import trio
import trio._core._run

from netstack.task import latency

_RUN: Final[Any] = trio._core._run


def hash_is_fixed() -> bool:
    """Whether sets of texts have the same order in every such process."""
    return os.environ.get("PYTHONHASHSEED") == "0"


@contextlib.contextmanager
def determined(seed: int) -> Iterator[None]:
    """See the module; restores everything."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(_RUN._r.setstate, _RUN._r.getstate())
        random.seed(seed)
        _RUN._r.seed(seed)
        for holder, name, instead in (
            (_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (_RUN, "Instruments", dict),  # nobody watches; trio asks several times for each step of each task
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


def _nothing(_descriptor: int) -> None:
    """No power fails here."""


async def _no_thread(function: Any, *_: Any, **__: Any) -> None:
    """A clock that jumps waits for no thread."""
    raise AssertionError(f"{function} would run in a thread, not on the disk of a simulated host")
