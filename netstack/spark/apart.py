"""A call into Spark in a thread of its own, so that Ctrl-C interrupts whoever waits and not the call.

Takes: a function. Gives: `Apart`: its result, or its error, when it is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

_Result = TypeVar("_Result")

_LOOK_S: Final = 0.1


@final
class Apart(Generic[_Result]):
    """Calls a function in a thread of its own, at once.

    A call into the JVM that Ctrl-C interrupts leaves half an answer behind and a trace on the terminal. In a thread it
    is not interrupted, and this one can wait for it (not by `Thread.join`: interrupted once, it takes any thread for
    dead).
    """

    def __init__(self, work: Callable[[], _Result]) -> None:
        from pyspark import InheritableThread

        self._work = work
        self._over = threading.Event()
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        InheritableThread(target=self._body, daemon=True).start()

    def is_over(self, wait_s: float) -> bool:
        """Whether it is, after so many seconds at most."""
        return self._over.wait(wait_s)

    def result(self) -> _Result:
        """Waits for it.

        Raises:
            BaseException: whatever the function raised.
        """
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
