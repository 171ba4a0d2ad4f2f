"""Placement of the subtasks of a run over hosts, and the channels between them.

Sources, relays and sinks are numbered host by host, in the order of `--hosts`. Every source writes one partition with
`channels` subpartitions for each sink; sink j reads subpartitions j x channels and following of every source's
partition, including its own host's. With relays, a relay takes the place of each sink, and returns what it reads on
channel c of source s on subpartition s x channels + c; sink s reads those of every relay. The subtasks of a host share
one slot, and so one connection from each other host; with `connections` they share that many slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from netstack import GatePlan, NetworkConfig, PartitionPlan, required_buffers
from netstack.exchange.credit.spare import FEWEST
from netstack.schedule.graph.job_graph import OperatorKind
from netstack.schedule.graph.stream_graph import (
    ChainingStrategy,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)
from netstack.schedule.slots.slot_sharing import FixedPlacement

from ...endpoints import SPARE_SEGMENTS, config_of
from .spec import MeshSpec

SOURCE: Final = "source"
RELAY: Final = "relay"
SINK: Final = "sink"
_MODULE: Final = "netstack_bench.places.hosts.invokables"


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """One subtask: `task` is `source`, `relay` or `sink`, `host` the index of its host."""

    task: str
    subtask: int
    host: int

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"


@final
class Matrix:
    """All subtasks of a run, task by task."""

    __slots__ = ("_hosts", "placements", "spec")

    def __init__(self, spec: MeshSpec) -> None:
        self.spec = spec
        self._hosts = spec.parsed_hosts
        sources = _placed(SOURCE, (host.sources for host in self._hosts))
        sinks = _placed(SINK, (host.sinks for host in self._hosts))
        relays = [Placement(RELAY, each.subtask, each.host) for each in sinks] if spec.relay else []
        self.placements: tuple[Placement, ...] = (*sources, *relays, *sinks)

    def of_task(self, task: str) -> list[Placement]:
        """All subtasks of a task, in order."""
        return [each for each in self.placements if each.task == task]

    def on_host(self, host: int, task: str | None = None) -> list[Placement]:
        """The subtasks of one host."""
        return [each for each in self.placements if each.host == host and task in (None, each.task)]

    def upstream(self) -> list[Placement]:
        """The subtasks whose partitions every sink reads, in the order of its gate: all sources, or all relays."""
        return self.of_task(RELAY if self.spec.relay else SOURCE)

    def sources_of(self, sink: int) -> list[int]:
        """The source subtask of each group of a sink's channels, in the order of `upstream`."""
        return [sink] * self.spec.sinks if self.spec.relay else list(range(self.spec.sources))

    def lane_bases(self, sink: int) -> list[int]:
        """The first lane of the source in each group of a sink's channels."""
        channels = self.spec.channels
        if self.spec.relay:
            return [relay * channels for relay in range(self.spec.sinks)]
        return [sink * channels] * self.spec.sources

    def slots(self, host: int) -> int:
        """Slots of a host: a source, a relay and a sink share one, and all of them if `connections` is 1."""
        return min(self.spec.connections, max(self._hosts[host].sources, self._hosts[host].sinks))

    def graph(self, name: str) -> StreamGraph:
        """The job: invokables, and the channels between them. It never restarts: figures of two attempts would mix."""
        tasks = [(SOURCE, self.spec.sources), (SINK, self.spec.sinks)]
        if self.spec.relay:
            tasks.insert(1, (RELAY, self.spec.sinks))
        nodes = [
            StreamNode(
                name=task,
                kind=OperatorKind.INVOKABLE,
                function=f"{_MODULE}:{task}",
                parallelism=parallelism,
                is_source=task == SOURCE,
                strategy=ChainingStrategy.NEVER,
                parameters={"spec": self.spec.as_dict()},
            )
            for task, parallelism in tasks
        ]
        edges = [
            StreamEdge(source=number, target=number + 1, partitioner=Partitioner.REBALANCE, channels=self.spec.channels)
            for number in range(len(nodes) - 1)
        ]
        return StreamGraph(
            name=name, nodes=tuple(nodes), edges=tuple(edges), settings=StreamSettings(network=self.network())
        )

    def placed(self, taskmanagers: Sequence[str]) -> FixedPlacement:
        """The TaskManager of each subtask; `taskmanagers` are their names in the order of the hosts."""
        taskmanagers_of: dict[str, list[str]] = {}
        for each in self.placements:
            taskmanagers_of.setdefault(each.task, []).append(taskmanagers[each.host])
        return FixedPlacement(taskmanagers_of, self.spec.connections)

    def network(self) -> NetworkConfig:
        """Network settings of the run on every host, with memory for every buffer that any host's subtasks may use.

        Local channels use no credit. Where all slots of a host share a process, some memory is spare. `--memory` sets
        it.
        """
        config = config_of(self.spec)
        if self.spec.memory_bytes is not None:
            return config
        most = max(self._segments(host, config) for host in range(len(self._hosts)))
        return dataclasses.replace(config, memory_bytes=most * config.segment_size_bytes)

    def _segments(self, host: int, config: NetworkConfig) -> int:
        gates, partitions = {}, {}
        for each in self.on_host(host):
            producers = self._producers(each)
            if producers:
                local = sum(self._slot(producer) == self._slot(each) for producer in producers)
                gates[f"{each}.0"] = GatePlan(len(producers) * self.spec.channels, local * self.spec.channels)
            if subpartitions := self._subpartitions(each):
                partitions[str(each)] = PartitionPlan(subpartitions)
        connections = sum(map(self.slots, range(len(self._hosts)))) - 1
        plan = required_buffers(gates=gates, partitions=partitions, connections=connections, config=config)
        assert plan.maximum is not None, "benchmarks write bounded partitions"
        most = self.spec.spare_buffers  # of all gates of a host together: they share its line
        spare = max(most, len(gates) * min(most, FEWEST)) if gates else 0
        return plan.maximum + spare + SPARE_SEGMENTS

    def _slot(self, each: Placement) -> tuple[int, int]:
        number = each.subtask - self.on_host(each.host, each.task)[0].subtask
        return each.host, number % self.spec.connections

    def as_rows(self) -> list[dict[str, Any]]:
        """A row for each host, as JSON values."""
        rows = []
        for index, host in enumerate(self._hosts):
            numbers = {
                f"{task}s": [each.subtask for each in self.on_host(index, task)] for task in (SOURCE, RELAY, SINK)
            }
            rows.append({"address": host.address, **numbers})
        return rows

    def _subpartitions(self, each: Placement) -> int:
        if each.task == SINK:
            return 0
        return (self.spec.sources if each.task == RELAY else self.spec.sinks) * self.spec.channels

    def _producers(self, each: Placement) -> list[Placement]:
        if each.task == SOURCE:
            return []
        return self.upstream() if each.task == SINK else self.of_task(SOURCE)


def _placed(task: str, counts: Iterable[int]) -> list[Placement]:
    hosts = [host for host, count in enumerate(counts) for _ in range(count)]
    return [Placement(task, subtask, host) for subtask, host in enumerate(hosts)]
