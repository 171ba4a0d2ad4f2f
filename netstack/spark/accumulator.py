"""A Spark accumulator of lists. Executors import it by name, so it is defined at the top of a module."""

from __future__ import annotations

from typing import Any, final

from pyspark.accumulators import AccumulatorParam


@final
class ListParam(AccumulatorParam[list[Any]]):
    """Concatenates lists."""

    def zero(self, value: list[Any]) -> list[Any]:
        """Returns the initial value of a task: an empty list."""
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - pyspark's names
        """Appends the second list to the first."""
        value1.extend(value2)
        return value1
