"""Runs blocking functions in threads, never in the event loop; in virtual time they are plain calls.

Takes: a function without arguments. Gives: its result, in the event loop; a nursery for background tasks, which is
cancelled when its block ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

import trio

_Result = TypeVar("_Result")


class InThread(Protocol):
    """Runs a blocking function: `in_thread`, or a plain call in virtual time."""

    def __call__(self, function: Callable[[], _Result]) -> Awaitable[_Result]:
        """Waits for the result, even if cancelled."""


_INSTEAD: Final[ContextVar[InThread | None]] = ContextVar("netstack_instead_of_threads", default=None)


async def in_thread(function: Callable[[], _Result], *, abandon_on_cancel: bool = False) -> _Result:
    """Runs a blocking function in a thread.

    Args:
        function: the function.
        abandon_on_cancel: whether cancellation returns at once and leaves the thread running.

    Cancellation otherwise waits for the function to end, because it uses files or other resources until then.
    """
    instead = _INSTEAD.get()
    if instead is not None:
        return await instead(function)
    return await trio.to_thread.run_sync(function, abandon_on_cancel=abandon_on_cancel)


@contextmanager
def no_threads(instead: InThread) -> Iterator[None]:
    """In the block, and in tasks started there, `in_thread` calls `instead`: virtual time cannot wait for threads."""
    token = _INSTEAD.set(instead)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks live as long as the block.

    An error of the block is raised unchanged, not inside an exception group. An error of a task cancels the block and
    is raised in a group.

    Cancellation: the tasks are cancelled and awaited.
    """
    failed: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except trio.Cancelled:
            raise
        except BaseException as error:
            failed = error
        finally:
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
