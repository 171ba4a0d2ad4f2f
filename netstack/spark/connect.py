"""`ConnectDriver`: a session of Spark Connect, which sends plans to a server and has no JVM in this process.

The partitioning of a DataFrame is unknown, and tasks can send nothing but rows to this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from ..base.errors import ConfigError
from .driver import PartitionLayout
from .failures import SHORTAGE, SparkFailed, explain, spark_errors

_SENT: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
_ROWS: Final = 1 << 16  # at least one in each partition
_PARALLELISM: Final = "spark.sql.leafNodeDefaultParallelism"


@final
class ConnectDriver:
    """The `Driver` of a session of Spark Connect."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def setting(self, name: str) -> str | None:
        """Returns a property of the session."""
        value: str | None = self._spark.conf.get(name, None)
        return value

    def archives(self) -> Collection[str]:
        """Returns the names of the archives that this process has sent."""
        return _SENT.setdefault(self._spark, set())

    def add_archive(self, path: Path) -> None:
        """Adds a zip to the path of every executor's Python."""
        self._spark.addArtifacts(str(path), pyfile=True)
        _SENT.setdefault(self._spark, set()).add(path.name)

    def archives_first(self) -> AbstractContextManager[None]:
        """Does nothing: the server sets the environment of its Python workers."""
        return contextlib.nullcontext()

    def slots(self, profile: Any = None) -> int:
        """Runs a barrier stage with the default number of partitions, which is the number of slots if nobody set it.

        Without this stage a number that is too large would end the server: with adaptive execution, Spark's scheduler
        stops when a barrier stage before a shuffle has too few slots.

        Raises:
            ConfigError: the default number of partitions is larger than the number of slots; or a profile is given.
            SparkFailed: the stage failed for another reason.
        """
        if profile is not None:
            raise ConfigError("Spark Connect does not report the slots of a resource profile: leave out profile")
        try:
            return len(self._spark.range(_ROWS).mapInArrow(_first_row, "id bigint", barrier=True).collect())
        except spark_errors() as error:
            if SHORTAGE not in str(error):
                python = "PYSPARK_PYTHON of the Connect server"
                raise SparkFailed(explain(error, tasks="all its", python=python).text) from error
            raise ConfigError(
                f"exchange: the session has fewer slots than its default number of partitions: set {_PARALLELISM} to"
                " the number of slots"
            ) from error

    def layout(self, df: Any) -> PartitionLayout:
        """Returns an unknown layout."""
        return PartitionLayout(None, is_straight=False, has_barrier=False)

    def collected_lists(self) -> Any:
        """Raises ConfigError: Spark Connect has no accumulators."""
        raise ConfigError("statistics need an accumulator, and Spark Connect has none: open a classic session")


def _first_row(batches: Iterator[Any]) -> Iterator[Any]:
    """The function of the stage that counts slots: a row for each task."""
    yield from [each.slice(0, 1) for each in batches][:1]
