"""What netstack asks of a Spark session, whatever kind of session it is.

Takes: a session. Gives: its `Driver`: `classic` calls the JVM that this process started, `connect` a server elsewhere.

Rules: nothing else in the package calls what is private in pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

from ..errors import ConfigError

OLDEST: Final = (4, 0)
OLDEST_SOURCE: Final = (4, 2)


@final
@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Of a DataFrame's partitions, as far as it is known before anything runs.

    Attributes:
        partitions: how many; None is not known.
        is_straight: whether each partition of its last stage is made of one partition of every RDD before it, as a
            barrier stage wants it.
        has_barrier: whether that stage has a barrier already.
    """

    partitions: int | None
    is_straight: bool
    has_barrier: bool


@final
@dataclass(frozen=True, slots=True)
class Executors:
    """All executors that a session has or had: Spark names a lost one by its id only.

    Attributes:
        hosts: of each, by id.
        active: ids of those that Spark takes for alive.
    """

    hosts: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[str] = frozenset()

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """Hosts that have none any more."""
        return tuple(sorted(set(self.hosts.values()) - {self.hosts[each] for each in self.active}))

    def active_on(self, hosts: Collection[str]) -> list[str]:
        """Ids of those on some hosts that Spark takes for alive."""
        return [each for each in sorted(self.active) if self.hosts[each] in hosts]


class Driver(Protocol):
    """A session, from outside."""

    def setting(self, name: str) -> str | None:
        """A property of the session; None where it is not set."""

    def archives(self) -> Collection[str]:
        """Names of what `add_archive` has sent."""

    def add_archive(self, path: Path) -> None:
        """Puts a zip into the path of every executor's Python."""

    def archives_first(self) -> AbstractContextManager[None]:
        """A block: Python workers of jobs that are made in it leave the folder they start in out of their path."""

    def slots(self, profile: Any = None) -> int:
        """How many tasks run at once, of a resource profile or of the default one."""

    def layout(self, df: Any) -> PartitionLayout:
        """What is known of a DataFrame's partitions."""

    def collected_lists(self) -> Any:
        """What tasks add lists to, by `add`; this process reads all of them in its `value`.

        Raises:
            ConfigError: such a session has none.
        """


def driver_of(spark: Any) -> Driver:
    """The driver of a session."""
    if hasattr(spark, "sparkContext"):
        from .classic import ClassicDriver

        return ClassicDriver(spark)
    from .connect import ConnectDriver

    return ConnectDriver(spark)


def check_version(oldest: tuple[int, int] = OLDEST, what: str = "netstack on Spark") -> None:
    """Whether this pyspark is new enough.

    Args:
        oldest: the first that will do.
        what: wants it.

    Raises:
        ConfigError: it is older, or there is none.
    """
    wanted = ".".join(map(str, oldest))
    try:
        from pyspark import __version__ as version
    except ImportError as error:
        raise ConfigError(f"pyspark is not installed: pip install 'pyspark>={wanted}'") from error
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise ConfigError(f"{what} needs pyspark {wanted} or newer, and this is {version}")
