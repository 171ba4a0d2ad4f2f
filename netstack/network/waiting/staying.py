"""Resident visitors: a writer that keeps the lock of `visits` between its calls needs no lock call for a record.

Takes: a record, in the thread that wrote the last one. Gives: whether it was written.

Between its calls other threads may take the lock from the visitor; during a call they cannot. A call sets
`Stay.is_active` and then checks `Door.is_wanted`; another thread sets `is_wanted` and then checks `is_active`. So at
least one of them sees the other. This relies on the interpreter's lock, which orders the memory accesses of threads.
The compiled build uses `staying.c` instead; this module is its reference.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, final

from ...base.errors import LocalProtocolError, PoolDestroyed


@final
class Door:
    """The state that the visitors of one event loop share.

    Attributes:
        is_wanted: whether a thread waits for the lock.
        give_way: passes the lock on; called when a resident visitor has ended its call.
    """

    def __init__(self, give_way: Callable[[Stay], None]) -> None:
        self.is_wanted = False
        self.give_way = give_way


@final
class Stay:
    """The state of one visitor that may keep the lock.

    Attributes:
        is_active: whether it is in a call that did not use `Visits.enter`.
        is_resident: whether it holds the lock.
        thread: the thread that last used it.
        claim: has one element while the visitor is resident; the thread that removes it gets the lock.
    """

    def __init__(self, door: Door) -> None:
        self.door = door
        self.is_active = False
        self.is_resident = False
        self.thread = 0
        self.claim: list[None] = []


def staying_emitter(
    stay: Stay, try_emit: Callable[[Any], bool], unsent: dict[Any, None], flush_connections: Callable[[], None], /
) -> Callable[[Any], bool]:
    """Returns a function that writes a record if its thread is resident and there is room; else it does nothing.

    Args:
        stay: of the visitor.
        try_emit: writes a record; returns whether there was room.
        unsent: the connections that have something to send.
        flush_connections: sends it.

    The function raises RecordError, errors of the selector, and in the main thread KeyboardInterrupt, if Ctrl-C came
    during the call.
    """
    door = stay.door

    def emit(record: Any, /) -> bool:
        if stay.is_active:
            return False
        stay.is_active = True  # a signal handler cannot interrupt between this and `try`
        try:
            if door.is_wanted or not stay.is_resident or stay.thread != get_ident():
                return False
            is_written = try_emit(record)
            if unsent:
                flush_connections()
            return is_written
        except (LocalProtocolError, PoolDestroyed):
            return False  # the call that follows raises it
        finally:
            stay.is_active = False
            if door.is_wanted:
                door.give_way(stay)

    return emit
