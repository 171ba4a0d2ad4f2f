"""A Spark session of Spark Connect: plans go to a server, and there is no JVM to be called.

Takes: a session. Gives: `ConnectDriver`. The server tells little: how DataFrames are partitioned is not known, and
tasks cannot tell this process anything but their rows.
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
    """See `Driver`.

    Args:
        spark: the session.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def setting(self, name: str) -> str | None:
        """See `Driver`."""
        value: str | None = self._spark.conf.get(name, None)
        return value

    def archives(self) -> Collection[str]:
        """See `Driver`."""
        return _SENT.setdefault(self._spark, set())

    def add_archive(self, path: Path) -> None:
        """See `Driver`."""
        self._spark.addArtifacts(str(path), pyfile=True)
        _SENT.setdefault(self._spark, set()).add(path.name)

    def archives_first(self) -> AbstractContextManager[None]:
        """See `Driver`; here the server decides."""
        return contextlib.nullcontext()

    def slots(self, profile: Any = None) -> int:
        """See `Driver`. Runs a job: a range has as many partitions as there are slots, unless somebody set it."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        if profile is not None:
            raise ConfigError("over Spark Connect the slots of a resource profile are not known: leave out profile")
        places = self._spark.range(_ROWS).select(F.spark_partition_id().alias("place"))
        return int(places.agg(F.max("place")).collect()[0][0]) + 1

    def layout(self, df: Any) -> PartitionLayout:
        """See `Driver`: nothing is known."""
        return PartitionLayout(None, is_straight=False, has_barrier=False)

    def collected_lists(self) -> Any:
        """See `Driver`."""
        raise ConfigError("statistics come by an accumulator, and Spark Connect has none: open a classic session")
