"""Tasks that serve a block of code, such as the pumps under an open connection.

Takes: nothing. Gives: a nursery that is cancelled when the block ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


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
