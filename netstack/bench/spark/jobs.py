"""A Spark job that can be stopped: it runs in a thread, and this one waits.

Takes: what to run. Gives: its result; or cancels the job at the deadline, and on Ctrl-C.

`collect()` in the main thread would swallow Ctrl-C: the JVM's answer is being read there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from netstack.spark.apart import Apart

_Result = TypeVar("_Result")

_LOOK_S: Final = 0.1
_CANCEL_S: Final = 10.0  # Spark kills Python workers two seconds after it cancelled their job


class JobTooSlow(Exception):
    """A job passed its deadline and was cancelled.

    Args:
        deadline_s: in seconds.
        has_begun: whether Spark had found as many slots as it needs.
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
        description: for Spark's pages.
        work: one action on an RDD.
        deadline_s: then the job is cancelled.
        tick: called ten times a second; must not call Spark. What it raises cancels the job.

    Raises:
        JobTooSlow: at the deadline.
        KeyboardInterrupt: after the job was cancelled.
        BaseException: whatever `work` raised.
    """

    def body() -> _Result:
        context.setJobGroup(group, description)
        return work()

    apart = Apart(body)
    began_s = time.monotonic()
    try:
        while not apart.is_over(_LOOK_S):
            elapsed_s = time.monotonic() - began_s
            tick()
            if elapsed_s > deadline_s:
                raise JobTooSlow(deadline_s, bool(context.statusTracker().getJobIdsForGroup(group)))
    except BaseException:
        context.cancelJobGroup(group)
        apart.is_over(_CANCEL_S)
        raise
    return apart.result()
