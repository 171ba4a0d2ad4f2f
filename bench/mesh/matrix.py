"""Which subtask sits where, and what each of them reads and writes.

Takes: a `MeshSpec`, the address of every host's data. Gives: `Placement`s; a `RemoteTask` for each subtask; how
much memory and how many slots a host needs.

Sources, relays and sinks are numbered host by host, in the order of `--hosts`. Every source writes one partition with
`channels` subpartitions for each sink; sink j reads subpartitions j x channels and following of every source's
partition, its own host's included. With relays, a relay takes the place of each sink, and returns what it reads on
channel c of source s on subpartition s x channels + c; sink s reads those of every relay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from netstack import GatePlan, NetworkConfig, PartitionPlan, required_buffers
from netstack.taskmanager.remote_task import RemoteGate, RemotePartition, RemoteTask

from ..ends import SPARE_SEGMENTS, config_of
from .spec import MeshSpec

SOURCE: Final = "source"
RELAY: Final = "relay"
SINK: Final = "sink"
_MODULE: Final = "netstack.bench.mesh.invokables"


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """One subtask.

    Attributes:
        task: `source`, `relay` or `sink`.
        subtask: its number among all of its task.
        host: index of its host.
    """

    task: str
    subtask: int
    host: int

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"


@final
class Matrix:
    """Where everything is.

    Attributes:
        spec: the settings.
        placements: every subtask; task by task, in their order.
    """

    __slots__ = ("_hosts", "placements", "spec")

    def __init__(self, spec: MeshSpec) -> None:
        self.spec = spec
        self._hosts = spec.parsed_hosts
        sources = _placed(SOURCE, (host.sources for host in self._hosts))
        sinks = _placed(SINK, (host.sinks for host in self._hosts))
        relays = [Placement(RELAY, each.subtask, each.host) for each in sinks] if spec.relay else []
        self.placements: tuple[Placement, ...] = (*sources, *relays, *sinks)

    def of_task(self, task: str) -> list[Placement]:
        """All subtasks of a task, in their order."""
        return [each for each in self.placements if each.task == task]

    def on_host(self, host: int, task: str | None = None) -> list[Placement]:
        """The subtasks of one host."""
        return [each for each in self.placements if each.host == host and task in (None, each.task)]

    def upstream(self) -> list[Placement]:
        """Whose partitions every sink reads, in the order of its gate: all sources, or all relays."""
        return self.of_task(RELAY if self.spec.relay else SOURCE)

    def sources_of(self, sink: int) -> list[int]:
        """Whose records arrive in each group of a sink's channels: source subtasks, in the order of `upstream`."""
        return [sink] * self.spec.sinks if self.spec.relay else list(range(self.spec.sources))

    def lane_bases(self, sink: int) -> list[int]:
        """The first of a source's lanes that arrives in each group of a sink's channels."""
        channels = self.spec.channels
        if self.spec.relay:
            return [relay * channels for relay in range(self.spec.sinks)]
        return [sink * channels] * self.spec.sources

    def slots(self, host: int) -> int:
        """Slots a host gives: a source, a relay and a sink share one."""
        return max(self._hosts[host].sources, self._hosts[host].sinks)

    def config(self, host: int) -> NetworkConfig:
        """Settings of a host's TaskManager, with memory for every buffer its subtasks may use."""
        config = config_of(self.spec)
        gates, partitions = {}, {}
        for each in self.on_host(host):
            producers = self._producers(each)
            if producers:
                local = sum(producer.host == host for producer in producers)
                gates[f"{each}.0"] = GatePlan(len(producers) * self.spec.channels, local * self.spec.channels)
            if subpartitions := self._subpartitions(each):
                partitions[str(each)] = PartitionPlan(subpartitions)
        plan = required_buffers(gates=gates, partitions=partitions, connections=len(self._hosts) - 1, config=config)
        assert plan.maximum is not None, "benchmarks write bounded partitions"
        return dataclasses.replace(config, memory_bytes=(plan.maximum + SPARE_SEGMENTS) * config.segment_size_bytes)

    def tasks(self, host: int, addresses: Sequence[str]) -> list[RemoteTask]:
        """What to deploy on a host.

        Args:
            host: its index.
            addresses: where each host's data is read.
        """
        return [
            RemoteTask(
                each.task,
                each.subtask,
                f"{_MODULE}:{each.task}",
                self._parameters(each),
                self._subpartitions(each),
                self._gates(each, addresses),
            )
            for each in self.on_host(host)
        ]

    def as_rows(self) -> list[dict[str, Any]]:
        """A row for each host, as plain JSON values."""
        rows = []
        for index, host in enumerate(self._hosts):
            numbers = {
                f"{task}s": [each.subtask for each in self.on_host(index, task)] for task in (SOURCE, RELAY, SINK)
            }
            rows.append({"address": host.address, **numbers})
        return rows

    def _parameters(self, each: Placement) -> dict[str, Any]:
        parameters: dict[str, Any] = {"spec": self.spec.as_dict()}
        if each.task == SINK:
            parameters["lane_bases"] = self.lane_bases(each.subtask)
            parameters["group_hosts"] = [producer.host for producer in self.upstream()]
        return parameters

    def _subpartitions(self, each: Placement) -> int:
        if each.task == SINK:
            return 0
        return (self.spec.sources if each.task == RELAY else self.spec.sinks) * self.spec.channels

    def _producers(self, each: Placement) -> list[Placement]:
        """Whose partitions a subtask reads."""
        if each.task == SOURCE:
            return []
        return self.upstream() if each.task == SINK else self.of_task(SOURCE)

    def _gates(self, each: Placement, addresses: Sequence[str]) -> tuple[RemoteGate, ...]:
        producers = self._producers(each)
        if not producers:
            return ()
        partitions = tuple(
            RemotePartition(addresses[producer.host], producer.task, producer.subtask) for producer in producers
        )
        return (RemoteGate(partitions, each.subtask * self.spec.channels, self.spec.channels),)


def _placed(task: str, counts: Iterable[int]) -> list[Placement]:
    hosts = [host for host, count in enumerate(counts) for _ in range(count)]
    return [Placement(task, subtask, host) for subtask, host in enumerate(hosts)]
