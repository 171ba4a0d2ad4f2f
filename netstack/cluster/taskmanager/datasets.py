"""Kept datasets of a TaskManager: partitions that outlive their job.

Takes: names of sealed partitions, drop commands. Gives: the keys of the datasets at this TaskManager.

Rules: a dataset stays until the JobManager drops it or the TaskManager ends, independent of the job and the link. While
there is one, the shared network stays open, since it serves the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ...base.errors import ConfigError
from ...network.environment import NetworkEnvironment
from .environments import Environments


@final
class KeptDatasets:
    """The kept datasets of one TaskManager."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self._names: dict[str, tuple[str, ...]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the datasets."""
        return tuple(self._names)

    def keep(self, key: str, names: Iterable[str], environment: NetworkEnvironment) -> None:
        """Keeps partitions of a job after its end.

        Args:
            key: key of the dataset.
            names: names of the partitions, which only `drop` releases from now on.
            environment: their network environment.

        Raises:
            ConfigError: the environment is the job's own and ends with it.
        """
        if environment is not self._environments.shared:
            raise ConfigError("a job with its own network cannot keep datasets: remove its `network` setting")
        if key not in self._names:
            self._environments.stay()
        self._names[key] = (*self._names.get(key, ()), *names)

    def drop(self, key: str) -> None:
        """Releases a dataset; ignores an unknown key."""
        names = self._names.pop(key, None)
        if names is None:
            return
        environment = self._environments.shared
        if environment is not None:
            for name in names:
                environment.release_partition(name)
        self._environments.leave()
