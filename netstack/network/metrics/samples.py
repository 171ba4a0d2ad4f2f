"""Reads the values of the catalogue's metrics, and computes how a task spent its time.

Takes: a `NetworkStatistics`. Gives: `samples` to the Prometheus export, `as_dict` to reports, `TaskTimes` of one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...exchange.inbound.statistics import GateStatistics
from ...exchange.outbound.statistics import ResultPartitionStatistics
from ..connection.statistics import NetworkStatistics
from .catalogue import CATALOGUE, Metric, Scope


class Sample(NamedTuple):
    """One value of one metric.

    Attributes:
        labels: identify the item the value belongs to; empty for values of the TaskManager.
        value: in the metric's unit.
    """

    metric: Metric
    labels: Mapping[str, str]
    value: float


def samples(statistics: object, *, detailed: bool = False, catalogue: Sequence[Metric] = CATALOGUE) -> list[Sample]:
    """Returns every value of every metric, in the order of the catalogue."""
    items: dict[Scope, list[tuple[dict[str, str], object]]] = {}
    samples = []
    for metric in catalogue:
        if metric.is_detailed and not detailed:
            continue
        scope = metric.scope
        if scope not in items:
            items[scope] = [
                (dict(zip(scope.labels, values, strict=True)), item) for values, item in scope.items(statistics)
            ]
        for labels, item in items[scope]:
            value = metric.read(item)
            if value is not None:
                samples.append(Sample(metric, labels, value))
    return samples


def as_dict(statistics: NetworkStatistics) -> dict[str, float | dict[str, float]]:
    """Returns the metrics without details as plain JSON: {name: value} or {name: {partition or gate: value}}.

    Metrics of partitions and gates are present even if there are no partitions or gates.
    """
    result: dict[str, float | dict[str, float]] = {}
    by_item: dict[str, dict[str, float]] = {
        metric.name: {} for metric in CATALOGUE if metric.scope.labels and not metric.is_detailed
    }
    for metric, labels, value in samples(statistics):
        if labels:
            (item,) = labels.values()
            by_item[metric.name][item] = value
        else:
            result[metric.name] = value
    return {**result, **by_item}


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """How a task that reads one gate and writes one partition spent the last minute (55 to 60 s), in ms per second.

    Attributes:
        idle_ms_per_s: waiting for input.
        soft_ms_per_s: waiting for a buffer before a record.
        hard_ms_per_s: waiting for a buffer inside a record.
    """

    idle_ms_per_s: float
    soft_ms_per_s: float
    hard_ms_per_s: float

    @classmethod
    def of(cls, gate: GateStatistics | None, partition: ResultPartitionStatistics | None) -> TaskTimes:
        """The times of the task that reads `gate` (None for a source) and writes `partition` (None for a sink)."""
        return cls(
            0.0 if gate is None else gate.idle.ms_per_s,
            0.0 if partition is None else partition.soft_backpressured.ms_per_s,
            0.0 if partition is None else partition.hard_backpressured.ms_per_s,
        )

    @property
    def backpressured_ms_per_s(self) -> float:
        """Soft plus hard back-pressure."""
        return self.soft_ms_per_s + self.hard_ms_per_s

    @property
    def busy_ms_per_s(self) -> float:
        """The remaining time: 1000 - min(1000, idle + back-pressured)."""
        return 1000.0 - min(1000.0, self.idle_ms_per_s + self.backpressured_ms_per_s)
