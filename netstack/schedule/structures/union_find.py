"""Disjoint sets of small numbers: which of them were joined, however often.

Takes: pairs. Gives: a representative for each number, and the sets in the order of their least members.

Rules: iterative; joining and finding cost nearly nothing, whatever the order.
"""

from __future__ import annotations

from typing import final


@final
class UnionFind:
    """Sets of the numbers 0 to n - 1; at first each is alone."""

    __slots__ = ("_parents",)

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find(self, item: int) -> int:
        """The least member of the set an item is in."""
        parents = self._parents
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    def join(self, one: int, other: int) -> None:
        """Makes one set of two; the least member stands for it."""
        first, second = self.find(one), self.find(other)
        self._parents[max(first, second)] = min(first, second)

    def sets(self) -> list[list[int]]:
        """All sets, by their least members; each in order."""
        found: dict[int, list[int]] = {}
        for item in range(len(self._parents)):
            found.setdefault(self.find(item), []).append(item)
        return list(found.values())
