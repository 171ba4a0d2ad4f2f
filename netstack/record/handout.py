"""Elements that have come together, handed out one by one: the per-record path of `async for`.

Takes: what has come, and a way to wait for more. Gives: an asynchronous iterator.

It is by itself because it is compiled: a coroutine costs as much as all else that is done for a small record, and a
compiled one less than half of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, final


@final
class Ready:
    """What has come and was not handed out: what all iterators of one reader share.

    Attributes:
        elements: they, an iterator over a list (so that they can be counted).
    """

    __slots__ = ("elements",)

    def __init__(self) -> None:
        self.elements: Iterator[Any] = iter(())


@final
class Handout:
    """Iterates over what is ready, and over what comes; holds nothing itself, so any number may take turns."""

    __slots__ = ("_more", "_ready")

    def __init__(self, ready: Ready, more: Callable[[], Awaitable[list[Any] | None]]) -> None:
        """Hands out what is in `ready`, where it puts what `more` returns: at least one element, or None at the end."""
        self._ready = ready
        self._more = more

    def __aiter__(self) -> Handout:
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next element; no checkpoint while there is one. Cancellation: nothing is lost, ask again."""
        ready = self._ready
        for element in ready.elements:
            return element
        elements = await self._more()
        if elements is None:
            raise StopAsyncIteration
        ready.elements = iter(elements)
        return next(ready.elements)
