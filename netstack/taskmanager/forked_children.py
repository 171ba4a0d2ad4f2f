"""What becomes of a process that user code forks off a slot's: it is its own, until it comes back to our code.

A child has the parent's sockets, the memory it shares with others, and a copy of all tasks. It may do what it likes.
But one that returns from the operator, or raises, as `sys.exit` does, would go on as a second process of the same slot,
and each of the two would take part of what comes. So it ends then.

Rules: nothing that others share is touched before that end. A child is ended by whatever would send or receive, and by
its event loop before that turns.
"""

from __future__ import annotations

import os
from typing import Any, Final, NoReturn

import trio

from ..transports._sockets import SocketStream
from ..transports.shm.stream import ShmStream

_TEXT: Final = (
    b"a process that an operator has forked (%d) came back to netstack, and ends; end it with os._exit, or start it by"
    b" subprocess or multiprocessing's spawn\n"
)
_STREAMS: Final[tuple[Any, ...]] = (SocketStream, ShmStream)


def end_forked_children() -> None:
    """From now on, for the rest of this process, its children end as soon as they come back."""

    def in_child() -> None:
        for stream in _STREAMS:
            stream.try_send = stream.try_receive_into = _end
        if trio.lowlevel.in_trio_run():  # not in a thread of user code's own, which has no loop to come back to
            trio.lowlevel.add_instrument(_EndOfStep())

    os.register_at_fork(after_in_child=in_child)


class _EndOfStep(trio.abc.Instrument):
    """Ends the process when the task that forked it waits, or has ended."""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        _end()


def _end(*_: Any) -> NoReturn:
    os.write(2, _TEXT % os.getpid())
    os._exit(1)
