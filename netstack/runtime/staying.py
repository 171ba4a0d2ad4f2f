"""Visitors that stay: a record of a thread's own writer without a call of the lock (`visits`).

Takes: a record, in the thread that wrote the last one. Gives: whether it was written.

Who comes again and again keeps the lock between its calls, and whoever wants in takes it away then. Between its calls
others may take the lock; during one they cannot: the visitor sets `Stay.is_active`, then looks at `Door.is_wanted`;
they set `is_wanted`, then look at `is_active`. So one of both sees the other. This relies on the interpreter's lock,
which orders what threads write and read. It is by itself because it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, final

from ..errors import LocalProtocolError, PoolDestroyed


@final
class Door:
    """Of one event loop.

    Attributes:
        is_wanted: whether somebody waits for the lock.
    """

    def __init__(self, give_way: Callable[[Stay], None]) -> None:
        """Args: lets the next visitor in, when a visitor that stays has ended its call."""
        self.is_wanted = False
        self.give_way = give_way


@final
class Stay:
    """One visitor that comes again and again.

    Attributes:
        is_active: whether it is in a call that did without `Visits.enter`.
        is_resident: whether it has the lock.
        thread: which thread it is.
        claim: who takes its one element has the lock instead.
    """

    def __init__(self, door: Door) -> None:
        self.door = door
        self.is_active = False
        self.is_resident = False
        self.thread = 0
        self.claim: list[None] = []


@final
class StayingEmitter:
    """Writes records of a visitor that has stayed."""

    def __init__(
        self,
        stay: Stay,
        try_emit: Callable[[Any], bool],
        unsent: dict[Any, None],
        flush_connections: Callable[[], None],
        *,
        is_off: bool,
    ) -> None:
        """Args: who; what writes a record; what is to be sent, and what sends it; whether nothing is written here."""
        self._stay = stay
        self._door = stay.door
        self._try_emit = try_emit
        self._unsent = unsent
        self._flush_connections = flush_connections
        self._is_off = is_off

    def emit(self, record: Any, /) -> bool:
        """Writes a record if its thread has stayed inside and there is room; if not, nothing has happened.

        Raises:
            RecordError, and what a selector raises.
            KeyboardInterrupt: in the main thread, if Ctrl-C came meanwhile.
        """
        stay = self._stay
        if stay.is_active or self._is_off:
            return False
        stay.is_active = True  # nothing that a signal handler could interrupt stands between this and `try`
        try:
            if self._door.is_wanted or not stay.is_resident or stay.thread != get_ident():
                return False
            is_written = self._try_emit(record)
            if self._unsent:
                self._flush_connections()
            return is_written
        except (LocalProtocolError, PoolDestroyed):
            return False  # told by the call that follows
        finally:
            stay.is_active = False
            if self._door.is_wanted:
                self._door.give_way(stay)
