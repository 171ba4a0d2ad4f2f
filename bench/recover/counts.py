"""What a sink counts of each key, and the comparison with what an undisturbed run counts.

Takes: records as they come; at the end the counts of all sinks. Gives: how many were lost, repeated, out of order.

Rules: everything is in the state of the key, so that a checkpoint takes it along and a restart sets it back. The sum of
digests shows what equal counts would hide: one record lost and another of the same key repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from .records import MASK

COUNT: Final = 0
SUM: Final = 1
DISORDERED: Final = 2
_NEXT: Final = 3
_QUOTED: Final = 5

KeyCounts = MutableMapping[int, list[int]]
"""By key: records, sum of digests, records behind a later one; then for each split the least number to come."""


def count(counts: KeyCounts, splits: int, key: int, split: int, number: int, digest: int) -> None:
    """Counts one record."""
    state = counts.get(key)
    if state is None:
        state = counts[key] = [0] * (_NEXT + splits)
    state[COUNT] += 1
    state[SUM] = (state[SUM] + digest) & MASK
    if number < state[_NEXT + split]:
        state[DISORDERED] += 1
    else:
        state[_NEXT + split] = number + 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """How counts differ from those of an undisturbed run.

    Attributes:
        lost: records that are in no count.
        repeated: records that were counted more than once.
        disordered: records that were counted after a later one of the same key and split.
        problems: the same in words, the first few keys.
    """

    lost: int
    repeated: int
    disordered: int
    problems: tuple[str, ...]


def compare(expected: Mapping[int, list[int]], sinks: Iterable[KeyCounts]) -> Comparison:
    """Compares the final counts of all sinks with what they must be.

    Args:
        expected: by key: records, sum of digests.
        sinks: the counts of each; a key that several of them have counts for is added up.
    """
    found: KeyCounts = {}
    for counts in sinks:
        for key, (number, digests, disordered, *_) in counts.items():
            total = found.setdefault(key, [0, 0, 0])
            total[COUNT] += number
            total[SUM] = (total[SUM] + digests) & MASK
            total[DISORDERED] += disordered
    lost = repeated = 0
    problems = []
    for key in sorted(expected.keys() | found.keys()):
        wanted, wanted_sum = expected.get(key, (0, 0))
        number, digests, _ = found.get(key, (0, 0, 0))
        if (number, digests) == (wanted, wanted_sum):
            continue
        if number == wanted:  # as many were lost as were repeated: at least one of each
            lost, repeated = lost + 1, repeated + 1
            problems.append(f"key {key}: {number} records, but not the ones that were sent")
        else:
            lost, repeated = lost + max(0, wanted - number), repeated + max(0, number - wanted)
            problems.append(f"key {key}: {number} records were counted, {wanted} were sent")
    more = len(problems) - _QUOTED
    told = (*problems[:_QUOTED], *([f"and {more} keys more"] if more > 0 else []))
    return Comparison(lost, repeated, sum(state[DISORDERED] for state in found.values()), told)
