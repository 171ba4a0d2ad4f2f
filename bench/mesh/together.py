"""Several daemons at once: the same call on all of them, and which of several failures is the cause of the others.

Takes: calls; what daemons and their tasks report. Gives: all results or the first failure; a rank for each failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from netstack.errors import NetstackError
from netstack.taskmanager.remote_job import Failed

_Got = TypeVar("_Got")


def cause_rank(news: Failed | NetstackError) -> int:
    """What is told first is the smaller: a task's own error (0), a daemon that is gone, a timeout, what others lost."""
    if not isinstance(news, Failed):
        return 1
    if news.is_secondary:
        return 3
    return 2 if news.kind == trio.TooSlowError.__name__ else 0


async def on_all(calls: Sequence[Callable[[], Awaitable[_Got]]]) -> list[_Got]:
    """Calls all at once.

    Returns:
        The results, in the order of the calls.

    Raises:
        NetstackError: of the first to fail, which cancels the others.
    """
    found: dict[int, _Got] = {}
    failures: list[NetstackError] = []
    async with trio.open_nursery() as nursery:

        async def one(index: int) -> None:
            try:
                found[index] = await calls[index]()
            except NetstackError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        for index in range(len(calls)):
            nursery.start_soon(one, index)
    if failures:
        raise failures[0]
    return [found[index] for index in range(len(calls))]
