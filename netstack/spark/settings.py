"""`SparkSettings`: the master, the number of nodes, and the properties of a session for barrier stages.

Without these properties a barrier stage waits minutes in silence for slots that are missing, or puts two nodes on one
host. A comment beside each property has the reason.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, final

from ..base.errors import ConfigError

_LOCAL: Final = re.compile(r"local\[(\d+)\]")
DEFAULT_NODES: Final = 2
_JVM_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # starts in two thirds of the time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The settings of a session and of the nodes that run in it.

    Attributes:
        master: `local[N]`, `spark://HOST:PORT`, `yarn` or `k8s://https://HOST:PORT`.
        nodes: the number of TaskManagers, one for each barrier task; None is N of `local[N]`, else 2.
        executor_cores: the CPUs of an executor; on a cluster each executor runs one node.
        executor_memory: the memory of an executor's JVM, which does little but start Python.
        shared_hosts: whether two nodes may run on one host; in local mode they always may.
        node_ports: first and last port a node may listen on, for firewalls; None is any port.
        start_timeout_s: the longest time for a barrier stage to start.
        setup_timeout_s: the longest time to open sockets and exchange addresses.
        grace_s: how long after a run's planned end the driver cancels its job.
        tables_timeout_s: the longest time to write the tables of a sweep.
        is_measured: whether Spark's speed is measured; then the JVM has its default compiler, and starts more slowly.
        app_name: the name in Spark's UI.
        nodes_flag: the command's flag for `nodes`, for errors.
        log_file: the file for Spark's output; None is a temporary file, which errors name.
    """

    master: str = f"local[{DEFAULT_NODES}]"
    nodes: int | None = None
    executor_cores: int = 1
    executor_memory: str = "512m"
    shared_hosts: bool = False
    node_ports: tuple[int, int] | None = None
    start_timeout_s: float = 20.0
    setup_timeout_s: float = 20.0
    grace_s: float = 40.0
    wait_for_executors_s: float = 60.0
    tables_timeout_s: float = 90.0
    is_measured: bool = False
    app_name: str = "netstack-bench"
    nodes_flag: str = "--nodes"
    log_file: str | None = None

    def __post_init__(self) -> None:
        """Refuses a master without barrier stages, and numbers out of range."""
        if self.master.startswith("local") and not self.is_local:
            raise ConfigError(f"--master {self.master}: give local[N] with the number of nodes, such as local[2]")
        if not (self.is_local or self.is_yarn or self.master.startswith(("spark://", "k8s://"))):
            raise ConfigError(
                f"--master {self.master}: give local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
            )
        if self.is_yarn and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            raise ConfigError("--master yarn: set HADOOP_CONF_DIR to the folder with the cluster's configuration")
        if self.node_count < 1:
            raise ConfigError(f"{self.nodes_flag} {self.nodes}: the least is 1")
        if self.is_local and self.node_count > self._local_slots:
            raise ConfigError(
                f"{self.nodes_flag} {self.nodes} with --master {self.master}: a barrier stage needs all its slots at"
                f" once; give --master local[{self.nodes}]"
            )

    @property
    def is_local(self) -> bool:
        """Whether executors run in this process's JVM."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def is_yarn(self) -> bool:
        """Whether YARN places the executors."""
        return self.master == "yarn"

    @property
    def node_count(self) -> int:
        """The number of nodes of a run."""
        if self.nodes is not None:
            return self.nodes
        return self._local_slots if self.is_local else DEFAULT_NODES

    @property
    def needs_distinct_hosts(self) -> bool:
        """Whether two nodes on one host are an error."""
        return not (self.is_local or self.shared_hosts)

    @property
    def start_s(self) -> float:
        """The approximate time to start a session, with the extra time of its first run."""
        return 8.0 if self.is_local else 20.0

    @property
    def tables_s(self) -> float:
        """The approximate time to write the tables."""
        return 8.0 if self.is_local else 12.0

    @property
    def _local_slots(self) -> int:
        match = _LOCAL.fullmatch(self.master)
        return int(match.group(1)) if match else 0

    def properties(self) -> dict[str, str]:
        """Returns Spark's properties for a session."""
        cores, nodes = self.executor_cores, self.node_count
        flags = "" if self.is_measured else _JVM_FLAGS
        properties = {
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",  # default: 15 s, 40 times
            "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2" if self.is_local else "20",
            "spark.barrier.sync.timeout": f"{max(30, int(self.setup_timeout_s) + 10)}s",  # default: a year
            "spark.dynamicAllocation.enabled": "false",  # not allowed with barrier stages
            "spark.task.maxFailures": "1",
            "spark.cleaner.referenceTracking.blocking": "false",  # True would wait minutes for a lost host
            "spark.driver.memory": "2g" if self.is_measured else "512m",
            "spark.sql.shuffle.partitions": str(min(nodes, 4)),
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",  # it overwrites the progress bar
        }
        if flags:
            properties |= {"spark.driver.extraJavaOptions": flags, "spark.executor.extraJavaOptions": flags}
        if self.is_local:
            properties["spark.driver.host"] = "127.0.0.1"
            properties["spark.driver.bindAddress"] = "127.0.0.1"
        else:
            properties |= {
                "spark.executor.cores": str(cores),
                "spark.task.cpus": str(cores),  # one slot per executor
                "spark.cores.max": str(nodes * cores),  # one executor per node; the master spreads them over workers
                "spark.executor.instances": str(nodes),  # the same for YARN and Kubernetes, which do not spread
                "spark.executor.memory": self.executor_memory,
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{self.wait_for_executors_s:g}s",
            }
            if not self.master.startswith("spark://"):
                # Python and buffers; the container's limit includes them
                properties["spark.executor.memoryOverhead"] = "1g"
        return properties
