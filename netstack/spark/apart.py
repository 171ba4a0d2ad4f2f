"""`Apart`: a call into Spark in a thread of its own, so that Ctrl-C interrupts the waiting thread and not the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

_Result = TypeVar("_Result")

_LOOK_S: Final = 0.1


@final
class Apart(Generic[_Result]):
    """Starts a function in a thread of its own.

    Ctrl-C in a call into the JVM leaves half an answer on the connection and a trace on the terminal; in another thread
    the call is not interrupted. The caller waits for an event, because an interrupted `Thread.join` takes the thread
    for dead.
    """

    def __init__(self, work: Callable[[], _Result]) -> None:
        from pyspark import InheritableThread

        self._work = work
        self._over = threading.Event()
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        InheritableThread(target=self._body, daemon=True).start()

    def is_over(self, wait_s: float) -> bool:
        """Waits up to `wait_s`; returns whether the function has ended."""
        return self._over.wait(wait_s)

    def result(self) -> _Result:
        """Waits for the end; returns what the function returned, or raises what it raised."""
        while not self.is_over(_LOOK_S):
            pass
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _body(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()
