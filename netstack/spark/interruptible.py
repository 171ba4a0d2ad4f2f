"""Calls into Spark in threads of their own, so that Ctrl-C interrupts the waiting thread and not the call.

`Apart` calls a function; `run_job` runs a job, and cancels it at a deadline and on Ctrl-C.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, final

_Result = TypeVar("_Result")

_LOOK_S: Final = 0.1
_CANCEL_S: Final = 10.0  # Spark kills Python workers two seconds after it cancelled their job


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


class JobTooSlow(Exception):
    """A job was cancelled at its deadline.

    Args:
        has_begun: whether Spark had enough slots to start it.
    """

    def __init__(self, deadline_s: float, has_begun: bool) -> None:
        super().__init__(f"no result after {deadline_s:g} s")
        self.has_begun = has_begun


def run_job(
    context: Any,
    group: str,
    description: str,
    work: Callable[[], _Result],
    *,
    deadline_s: float,
    tick: Callable[[], None] = lambda: None,
) -> _Result:
    """Runs `work` as a job group.

    Args:
        context: the SparkContext.
        group: unique among the jobs of the session.
        description: the description in Spark's UI.
        work: one action on an RDD.
        deadline_s: the job is cancelled after this time.
        tick: called ten times a second; must not call Spark. An error that it raises cancels the job.

    Raises:
        JobTooSlow: the deadline has passed.
        KeyboardInterrupt: Ctrl-C; the job was cancelled.
        BaseException: whatever `work` or `tick` raised.
    """

    def body() -> _Result:
        context.setJobGroup(group, description)
        return work()

    thread = Apart(body)
    began_s = time.monotonic()
    try:
        while not thread.is_over(_LOOK_S):
            elapsed_s = time.monotonic() - began_s
            tick()
            if elapsed_s > deadline_s:
                raise JobTooSlow(deadline_s, bool(context.statusTracker().getJobIdsForGroup(group)))
    except BaseException:
        context.cancelJobGroup(group)
        thread.is_over(_CANCEL_S)
        raise
    return thread.result()
