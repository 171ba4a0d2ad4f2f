"""`end_stage`: a shuffle of Spark's that leaves every row in its partition.

A barrier stage runs all its tasks or none, so it may contain nothing that uses some of its partitions (`show`, `limit`)
or combines them with others (`union`, `coalesce`). All of that works in the stage after a shuffle, and Spark repeats a
barrier stage before a shuffle when an executor was lost.

Spark moves a row to the partition that the hash of an expression selects (`repartitionById` needs 4.1). So each
partition gets a number whose hash selects that same partition.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42


def end_stage(df: Any, partitions: int) -> Any:
    """Returns the DataFrame after a shuffle that moves no row to another partition.

    Args:
        df: the DataFrame.
        partitions: the number of its partitions.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    numbers = F.array(*(F.lit(number) for number in numbers_for(partitions)))
    return df.repartition(partitions, F.element_at(numbers, F.spark_partition_id() + 1))


def numbers_for(partitions: int) -> list[int]:
    """Returns, for each partition, the least number that Spark's hash partitioning puts there."""
    numbers = dict[int, int]()
    for number in itertools.count():
        numbers.setdefault(spark_hash(number) % partitions, number)
        if len(numbers) == partitions:
            return [numbers[partition] for partition in range(partitions)]
    raise AssertionError("counting does not end")


def spark_hash(number: int) -> int:
    """Returns Spark's `hash` of an int: Murmur3, 32 bits, signed."""
    word = _rotated(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(_SEED ^ word, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - ((mixed & 0x80000000) << 1)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK
