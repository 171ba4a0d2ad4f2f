"""Ctrl-C while the main thread is where an exception would tear something: put off until it is out.

Takes: whether the main thread is inside. Gives: KeyboardInterrupt when it has left.

As trio does it, and only where SIGINT does what Python makes it do. Another handler that raises, of this signal or of
any other, strikes where the program happens to be: inside, it ends the connection, the reader or the writer it hits.
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
    """There is one main thread, so there is one of these (`INTERRUPTS`)."""

    __slots__ = ("_is_pending", "is_inside", "stays")

    def __init__(self) -> None:
        self.is_inside = False
        """Whether the main thread is inside; only it sets this."""
        self.stays: set[Stay] = set()
        """Where the main thread may be inside without saying so here."""
        self._is_pending = False

    def protect(self) -> None:
        """From now on Ctrl-C is put off; in another thread than the main one, or with a handler of somebody's, not."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._on_signal)

    def leave(self) -> None:
        """The main thread is out. Raises KeyboardInterrupt if there was one."""
        self.is_inside = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        active = [stay for stay in list(self.stays) if stay.is_active]
        for stay in active:
            stay.door.is_wanted = True  # so that it looks here when its call ends
        if self.is_inside or active:
            self._is_pending = True
        else:
            signal.default_int_handler(number, frame)


INTERRUPTS = Interrupts()
