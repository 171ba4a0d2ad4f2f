"""Defers Ctrl-C while the main thread is inside the data path, where an exception would corrupt state.

Takes: whether the main thread is inside. Gives: KeyboardInterrupt when it has left.

As in trio, this applies only if SIGINT has Python's default handler. Another handler that raises, for this or any other
signal, interrupts wherever the program is: inside the data path it ends the connection, reader or writer concerned.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from .staying import Stay


@final
class Interrupts:
    """The state of the main thread; `INTERRUPTS` is the only instance."""

    __slots__ = ("_is_pending", "is_inside", "stays")

    def __init__(self) -> None:
        self.is_inside = False
        """Whether the main thread is inside; only the main thread sets this."""
        self.stays: set[Stay] = set()
        """Resident visitors of the main thread, which may be inside without setting `is_inside`."""
        self._is_pending = False

    def protect(self) -> None:
        """Defers Ctrl-C from now on; no effect outside the main thread, or if the program has its own handler."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._on_signal)

    def leave(self) -> None:
        """Marks the main thread as outside. Raises KeyboardInterrupt if Ctrl-C was deferred."""
        self.is_inside = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def postpone(self) -> None:
        """Defers a KeyboardInterrupt that was caught where its catcher cannot end: the next `leave` raises it."""
        self._is_pending = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        active = [stay for stay in list(self.stays) if stay.is_active]
        for stay in active:
            stay.door.is_wanted = True  # so that it calls `leave` when its call ends
        if self.is_inside or active:
            self._is_pending = True
        else:
            signal.default_int_handler(number, frame)


INTERRUPTS = Interrupts()
