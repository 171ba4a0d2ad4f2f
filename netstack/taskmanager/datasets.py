"""What outlives its job on a TaskManager: partitions of datasets that were kept under a name.

Takes: names of sealed partitions, and which datasets nobody wants any more. Gives: which datasets are here.

Rules: a dataset is here until the JobManager drops it or the TaskManager ends, whatever becomes of the job and of the
link. While one is, the network that jobs share stays open, since its partitions are read through that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ..errors import ConfigError
from ..runtime.network_environment import NetworkEnvironment
from .environments import Environments


@final
class KeptDatasets:
    """Those of one TaskManager.

    Args:
        environments: of the TaskManager.
    """

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self._names: dict[str, tuple[str, ...]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Which are here, as the JobManager calls them."""
        return tuple(self._names)

    def keep(self, key: str, names: Iterable[str], environment: NetworkEnvironment) -> None:
        """Partitions of a job stay when it ends.

        Args:
            key: of their dataset.
            names: of the partitions; nobody else releases them from now on.
            environment: where they are.

        Raises:
            ConfigError: that is the job's own, and goes with it.
        """
        if environment is not self._environments.shared:
            raise ConfigError("a job with a network of its own cannot leave datasets behind: leave `network` out")
        if key not in self._names:
            self._environments.stay()
        self._names[key] = (*self._names.get(key, ()), *names)

    def drop(self, key: str) -> None:
        """Nobody wants a dataset any more; one that is not here is ignored."""
        names = self._names.pop(key, None)
        if names is None:
            return
        environment = self._environments.shared
        if environment is not None:
            for name in names:
                environment.release_partition(name)
        self._environments.leave()
