"""`Driver`: the interface to a Spark session; `drivers` finds the one of a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

from ..base.errors import ConfigError

OLDEST: Final = (4, 0)
OLDEST_SOURCE: Final = (4, 2)


@final
@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The partitions of a DataFrame, as far as they are known before it runs.

    Attributes:
        partitions: their number; None is unknown.
        is_straight: whether each partition of the last stage depends on one partition of every RDD before it, as a
            barrier stage requires.
        has_barrier: whether the last stage is a barrier stage already.
    """

    partitions: int | None
    is_straight: bool
    has_barrier: bool


@final
@dataclass(frozen=True, slots=True)
class Executors:
    """All executors of a session, lost ones included: Spark's errors have only the id of a lost executor.

    Attributes:
        hosts: the host of each executor, by id.
        active: the ids of the executors that Spark considers alive.
    """

    hosts: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[str] = frozenset()

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """The hosts that have lost all their executors."""
        return tuple(sorted(set(self.hosts.values()) - {self.hosts[each] for each in self.active}))

    def active_on(self, hosts: Collection[str]) -> list[str]:
        """Returns the ids of the active executors on these hosts."""
        return [each for each in sorted(self.active) if self.hosts[each] in hosts]


class Driver(Protocol):
    """A Spark session."""

    def setting(self, name: str) -> str | None:
        """Returns a property of the session; None if it is not set."""

    def archives(self) -> Collection[str]:
        """Returns the names of the archives that `add_archive` has sent."""

    def add_archive(self, path: Path) -> None:
        """Adds a zip to the path of every executor's Python."""

    def archives_first(self) -> AbstractContextManager[None]:
        """Opens a block: the Python workers of jobs created in it ignore their working folder when they import."""

    def slots(self, profile: Any = None) -> int:
        """Returns the number of tasks that can run at once, of a resource profile or of the default one."""

    def layout(self, df: Any) -> PartitionLayout:
        """Returns what is known of a DataFrame's partitions."""

    def collected_lists(self) -> Any:
        """Returns an accumulator: tasks `add` lists to it, and this process reads them from its `value`.

        Raises:
            ConfigError: the session has no accumulators.
        """


def is_classic(spark: Any) -> bool:
    """Whether a session has a JVM of this process; a session of Spark Connect has none."""
    return hasattr(spark, "sparkContext")


def check_version(oldest: tuple[int, int] = OLDEST, what: str = "netstack on Spark") -> None:
    """Checks the version of pyspark.

    Args:
        oldest: the oldest version that is supported.
        what: the feature that needs it, for the error text.

    Raises:
        ConfigError: pyspark is older or not installed.
    """
    wanted = ".".join(map(str, oldest))
    try:
        from pyspark import __version__ as version
    except ImportError as error:
        raise ConfigError(f"pyspark is not installed: pip install 'pyspark>={wanted}'") from error
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise ConfigError(f"{what} needs pyspark {wanted} or newer, and this is {version}")
