"""`ConnectDriver`: a session of Spark Connect, which sends plans to a server and has no JVM in this process.

The partitioning of a DataFrame is unknown, and tasks can send nothing but rows to this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from ..errors import ConfigError
from .driver import PartitionLayout

_SENT: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
_ROWS: Final = 1 << 16


@final
class ConnectDriver:
    """The `Driver` of a session of Spark Connect.

    Args:
        spark: the session.
    """

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
        """Runs a job that counts the partitions of a range: by default one for each slot."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        if profile is not None:
            raise ConfigError("Spark Connect does not report the slots of a resource profile: leave out profile")
        places = self._spark.range(_ROWS).select(F.spark_partition_id().alias("place"))
        return int(places.agg(F.max("place")).collect()[0][0]) + 1

    def layout(self, df: Any) -> PartitionLayout:
        """Returns an unknown layout."""
        return PartitionLayout(None, is_straight=False, has_barrier=False)

    def collected_lists(self) -> Any:
        """Raises ConfigError: Spark Connect has no accumulators."""
        raise ConfigError("statistics need an accumulator, and Spark Connect has none: open a classic session")
