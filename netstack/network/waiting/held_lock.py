"""The lock of the loop, kept between calls: so a writer needs no lock call for a record.

Takes: a record, in the thread that wrote the last one. Gives: whether it was written.

Between its calls other threads may take the lock from the visitor; during a call they cannot. A call sets
`HeldLock.is_active` and then checks `Entry.is_wanted`; another thread sets `is_wanted` and then checks `is_active`. So
at least one of them sees the other. This relies on the interpreter's lock, which orders the memory accesses of threads.
The compiled build uses `held_lock.c` instead; this module is its reference.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, final

from ...base.errors import LocalProtocolError, PoolDestroyed


@final
class Entry:
    """What all visitors of one event loop look at before they take its lock, or keep it.

    Attributes:
        is_wanted: whether a thread waits for the lock.
        give_way: passes the lock on; called when a visitor that keeps the lock has ended its call.
    """

    def __init__(self, give_way: Callable[[HeldLock], None]) -> None:
        self.is_wanted = False
        self.give_way = give_way


@final
class HeldLock:
    """The lock as one visitor has it that may keep it between its calls.

    Attributes:
        is_active: whether the visitor is in a call that did not use `LoopLock.enter`.
        is_held: whether the visitor holds the lock.
        thread: the thread that last used it.
        claim: has one element while the lock is held; the thread that removes it gets the lock.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.is_active = False
        self.is_held = False
        self.thread = 0
        self.claim: list[None] = []


def holding_emitter(
    held: HeldLock, try_emit: Callable[[Any], bool], unsent: dict[Any, None], flush_connections: Callable[[], None], /
) -> Callable[[Any], bool]:
    """Returns a function that writes a record if its thread holds the lock and there is room; else it does nothing.

    Args:
        held: the lock as the visitor has it.
        try_emit: writes a record; returns whether there was room.
        unsent: the connections that have something to send.
        flush_connections: sends it.

    The function raises RecordError, errors of the selector, and in the main thread KeyboardInterrupt, if Ctrl-C came
    during the call.
    """
    entry = held.entry

    def emit(record: Any, /) -> bool:
        if held.is_active:
            return False
        held.is_active = True  # a signal handler cannot interrupt between this and `try`
        try:
            if entry.is_wanted or not held.is_held or held.thread != get_ident():
                return False
            is_written = try_emit(record)
            if unsent:
                flush_connections()
            return is_written
        except (LocalProtocolError, PoolDestroyed):
            return False  # the call that follows raises it
        finally:
            held.is_active = False
            if entry.is_wanted:
                entry.give_way(held)

    return emit
