"""A Spark accumulator that keeps what tasks tell.

Takes: lists, from tasks. Gives: one list in the driver. In a module of its own, because executors import it by name.
"""

from __future__ import annotations

from typing import Any, final

from pyspark.accumulators import AccumulatorParam


@final
class ListParam(AccumulatorParam[list[Any]]):
    """Lists, one after the other."""

    def zero(self, value: list[Any]) -> list[Any]:
        """What every task begins with."""
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - pyspark's names
        """Both."""
        value1.extend(value2)
        return value1
