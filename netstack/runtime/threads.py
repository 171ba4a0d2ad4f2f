"""What blocks runs in a thread, never in the event loop; where time is virtual, it is a plain call.

Takes: a function without arguments. Gives: its result, back in the event loop; a nursery for tasks that serve a block
of code, cancelled when the block ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

import trio

_Result = TypeVar("_Result")


class InThread(Protocol):
    """Runs something that blocks: `in_thread`; in virtual time, a call."""

    def __call__(self, function: Callable[[], _Result]) -> Awaitable[_Result]:
        """Waits for its result, also when cancelled."""


_INSTEAD: Final[ContextVar[InThread | None]] = ContextVar("netstack_instead_of_threads", default=None)


async def in_thread(function: Callable[[], _Result], *, abandon_on_cancel: bool = False) -> _Result:
    """Runs something that blocks in a thread.

    Args:
        function: what it runs.
        abandon_on_cancel: whether cancellation leaves it to itself.

    Cancellation waits for its end, if it is not abandoned: what it works on, mostly files, is in use until then.
    """
    instead = _INSTEAD.get()
    if instead is not None:
        return await instead(function)
    return await trio.to_thread.run_sync(function, abandon_on_cancel=abandon_on_cancel)


@contextmanager
def no_threads(instead: InThread) -> Iterator[None]:
    """Within the block, and in tasks begun there, `in_thread` is `instead`: a clock that jumps waits for no thread."""
    token = _INSTEAD.set(instead)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks live as long as the block.

    What the block raises leaves as it is, not inside an exception group; what a task raises cancels the block and
    leaves in a group.

    Cancellation: the tasks are cancelled, and awaited.
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
