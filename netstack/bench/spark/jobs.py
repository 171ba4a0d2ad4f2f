"""`run_job`: runs a Spark job in a thread, and cancels it at a deadline and on Ctrl-C.

`collect()` in the main thread would swallow Ctrl-C while it reads the JVM's answer.
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
    """A job was cancelled at its deadline.

    Args:
        deadline_s: the deadline, in seconds.
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
