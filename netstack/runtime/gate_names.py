"""Short unique names of open gates.

Taking and returning a name is O(log gates with this description).
"""

from __future__ import annotations

import heapq
from typing import final


@final
class GateNames:
    """The names in use."""

    __slots__ = ("_bases",)

    def __init__(self) -> None:
        self._bases: dict[str, _Numbers] = {}

    def take(self, base: str) -> str:
        """Returns the first free name with this base."""
        numbers = self._bases.get(base)
        if numbers is None:
            numbers = self._bases[base] = _Numbers()
        numbers.used += 1
        if numbers.free:
            number = heapq.heappop(numbers.free)
        else:
            numbers.highest += 1
            number = numbers.highest
        return base if number == 1 else f"{base}#{number}"

    def give_back(self, base: str, name: str) -> None:
        """Makes a name available again."""
        numbers = self._bases[base]
        numbers.used -= 1
        if not numbers.used:
            del self._bases[base]
        else:
            heapq.heappush(numbers.free, 1 if name == base else int(name.rpartition("#")[2]))


@final
class _Numbers:
    __slots__ = ("free", "highest", "used")

    def __init__(self) -> None:
        self.highest = 0
        self.used = 0
        self.free: list[int] = []
