"""How a sweep or a job uses a Spark cluster: where, how many nodes, and what makes a barrier stage behave.

Takes: the master's URL and numbers. Gives: `SparkSettings`, and the properties of a session.

Why each property is set is beside it; without them a barrier stage waits minutes in silence for slots that never come,
or puts two nodes on one host.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, final

from ..errors import ConfigError

_LOCAL: Final = re.compile(r"local\[(\d+)\]")
DEFAULT_NODES: Final = 2
_JVM_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # starts in two thirds of the time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Where and how nodes are placed.

    Attributes:
        master: `local[N]`, `spark://HOST:PORT`, `yarn` or `k8s://https://HOST:PORT`.
        nodes: TaskManagers, one per barrier task; None is N of `local[N]`, else 2.
        executor_cores: CPUs of a node's executor; on a cluster the executor runs one node, so this many are its own.
        executor_memory: of an executor's JVM, which only holds Python's hand.
        shared_hosts: whether two nodes may sit on one host; always so in local mode.
        node_ports: first and last port a node may listen on, for firewalls; None is any.
        start_timeout_s: for a barrier stage to begin.
        setup_timeout_s: for sockets and for the exchange of addresses.
        grace_s: beyond a run's own length, until the driver cancels its job.
        wait_for_executors_s: how long a session waits until all executors have come.
        tables_timeout_s: how long the tables of a sweep may take.
        is_measured: whether Spark's own speed is: then its JVM compiles as it does by default, and starts more slowly.
        app_name: in Spark's pages.
        nodes_flag: what the command calls `nodes`, for errors.
        log_file: where Spark's own output goes; None is a temporary file that is named in errors.
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
        """Refuses a master that has no barrier stages or numbers that cannot be."""
        if self.master.startswith("local") and not self.is_local:
            raise ConfigError(f"--master {self.master}: write local[N] with N nodes, such as local[2]")
        if not (self.is_local or self.is_yarn or self.master.startswith(("spark://", "k8s://"))):
            raise ConfigError(
                f"--master {self.master}: give local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
            )
        if self.is_yarn and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            raise ConfigError("--master yarn: set HADOOP_CONF_DIR to the folder that says where the cluster is")
        if self.node_count < 1:
            raise ConfigError(f"{self.nodes_flag} {self.nodes}: the least is 1")
        if self.is_local and self.node_count > self._local_slots:
            raise ConfigError(
                f"{self.nodes_flag} {self.nodes} with --master {self.master}: a barrier stage needs all its slots at"
                f" once; give --master local[{self.nodes}]"
            )

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside this process's JVM."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def is_yarn(self) -> bool:
        """Whether Hadoop places executors."""
        return self.master == "yarn"

    @property
    def node_count(self) -> int:
        """How many nodes a run has."""
        if self.nodes is not None:
            return self.nodes
        return self._local_slots if self.is_local else DEFAULT_NODES

    @property
    def needs_distinct_hosts(self) -> bool:
        """Whether two nodes on one host are an error."""
        return not (self.is_local or self.shared_hosts)

    @property
    def start_s(self) -> float:
        """About how long a session takes to start, its first run's extra included."""
        return 8.0 if self.is_local else 20.0

    @property
    def tables_s(self) -> float:
        """About how long the tables take at the end."""
        return 8.0 if self.is_local else 12.0

    @property
    def _local_slots(self) -> int:
        found = _LOCAL.fullmatch(self.master)
        return int(found.group(1)) if found else 0

    def properties(self) -> dict[str, str]:
        """Spark's properties for a session."""
        cores, nodes = self.executor_cores, self.node_count
        flags = "" if self.is_measured else _JVM_FLAGS
        found = {
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",  # 15 s, 40 times: ten minutes of silence
            "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2" if self.is_local else "20",
            "spark.barrier.sync.timeout": f"{max(30, int(self.setup_timeout_s) + 10)}s",  # a year
            "spark.dynamicAllocation.enabled": "false",  # barrier stages refuse it
            "spark.task.maxFailures": "1",
            "spark.cleaner.referenceTracking.blocking": "false",  # would wait minutes for a lost host
            "spark.driver.memory": "2g" if self.is_measured else "512m",
            "spark.sql.shuffle.partitions": str(min(nodes, 4)),
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",  # it writes over our bar
        }
        if flags:
            found |= {"spark.driver.extraJavaOptions": flags, "spark.executor.extraJavaOptions": flags}
        if self.is_local:
            found["spark.driver.host"] = "127.0.0.1"
            found["spark.driver.bindAddress"] = "127.0.0.1"
        else:
            found |= {
                "spark.executor.cores": str(cores),
                "spark.task.cpus": str(cores),  # one slot per executor
                "spark.cores.max": str(nodes * cores),  # one executor per node, which the master spreads over workers
                "spark.executor.instances": str(nodes),  # the same, as YARN and Kubernetes count; they do not spread
                "spark.executor.memory": self.executor_memory,
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{self.wait_for_executors_s:g}s",
            }
            if not self.master.startswith("spark://"):
                found["spark.executor.memoryOverhead"] = (
                    "1g"  # containers are killed that take more: Python and buffers
                )
        return found
