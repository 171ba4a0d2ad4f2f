"""Builds the job of a scenario, with the operators of `operators` or those that record a history (`recorded_job`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from ...base.config import NetworkConfig
from ...exchange.credit.spare import FEWEST
from ...schedule.checkpoint.instructions import CheckpointSettings
from ...schedule.graph.settings import AdaptiveSettings, RestartSettings, SpeculationSettings
from ...schedule.graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
from ...schedule.graph.stream_graph import GlobalExchangeMode, StreamSettings
from . import feature_job, operators
from .operators import NUMBERER, SINK
from .recorded_job import checked_job
from .scenario import (
    ADAPTIVE,
    BLOCKING,
    CHECKED,
    HYBRID,
    MODES,
    SELECTIVE,
    STREAMING,
    TWO_SOURCES,
    Scenario,
    takes_checkpoints,
)
from .situations import happened

SEGMENTS: Final = 1024
"""Network memory of a job with its own network."""

_OPERATORS: Final = operators.__name__
_MODES: Final = {
    STREAMING: GlobalExchangeMode.ALL_EDGES_PIPELINED,
    BLOCKING: GlobalExchangeMode.ALL_EDGES_BLOCKING,
    ADAPTIVE: GlobalExchangeMode.ALL_EDGES_BLOCKING,
    HYBRID: GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
    SELECTIVE: GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE,
}


def job(scenario: Scenario, name: str, widths: tuple[int, ...]) -> StreamEnvironment:
    """Builds the job of a scenario.

    Args:
        scenario: the scenario.
        name: name of the job.
        widths: parallelism, in place of `scenario.parallelism`; the splits of sources stay.
    """
    if scenario.acts_as != "netstack":
        happened("jobs that act as Flink")
    if scenario.case is not None:
        return feature_job.job(scenario.case, name, widths)
    if scenario.movement == CHECKED:
        return checked_job(
            name,
            sources=scenario.parallelism[0],
            sinks=scenario.parallelism[-1],
            records=scenario.records,
            pace_s=scenario.pace_s,
            batch=scenario.batch,
            checkpoints=_checkpoints(scenario),
            network=network(scenario) if scenario.own_network else None,
        )
    return _Writer(scenario, name, widths).written()


@final
class _Writer:
    """Builds the stream graph of a scenario."""

    def __init__(self, scenario: Scenario, name: str, widths: tuple[int, ...]) -> None:
        is_streaming = scenario.movement == STREAMING
        self._scenario = scenario
        self._widths = widths
        self._splits = 0
        self._is_adaptive = scenario.movement == ADAPTIVE
        settings = StreamSettings(
            is_batch=not is_streaming,
            is_dynamic=self._is_adaptive,
            adaptive=AdaptiveSettings(max_parallelism=4, data_volume_per_task_bytes=2000)
            if self._is_adaptive
            else None,
            speculation=_SPECULATION if scenario.speculates else None,
            exchange_mode=_MODES[scenario.movement],
            checkpoints=_checkpoints(scenario) if asks_for_checkpoints(scenario) else None,
            restart=RestartSettings(kind=scenario.restart, delay_s=0.2, max_delay_s=3.0)
            if scenario.restart == "exponential"
            else RestartSettings(kind=scenario.restart, delay_s=0.2),
            network=network(scenario) if scenario.own_network else None,
        )
        self._environment = StreamEnvironment(name, max_parallelism=32, settings=settings)

    def written(self) -> StreamEnvironment:
        scenario = self._scenario
        stream: DataStream = self._source("source", 0, scenario.records)
        for number, stage in enumerate(scenario.stages):
            stream = self._staged(stream, f"{stage}-{number}", stage, number + 1)
        numbered = stream.key_by(f"{_OPERATORS}:key_of").process(
            f"{_OPERATORS}:Numberer", name=NUMBERER, is_adaptive=self._is_adaptive
        )
        counted = (
            self._wide(numbered, -2)
            .prompt(scenario.has_prompt)
            .key_by(f"{_OPERATORS}:key_of")
            .sink(f"{_OPERATORS}:Sink", name=SINK, job=self._environment.name, bad_commits=scenario.bad_commits)
        )
        counted.set_parallelism(self._widths[-1]).disable_chaining()
        return self._environment

    def _source(self, name: str, place: int, records: int) -> OperatorStream:
        scenario = self._scenario
        splits = scenario.parallelism[place]
        made = self._environment.source(
            f"{_OPERATORS}:Source",
            name=name,
            parameters={
                "records": records,
                "keys": scenario.keys,
                "pace_s": scenario.pace_s,
                "batch": scenario.batch,
                "first_split": self._splits,
                "splits": splits,
            },
        )
        self._splits += splits
        timeout_s = 0.02 if scenario.movement == STREAMING else None
        return made.set_buffer_timeout(timeout_s).set_parallelism(self._widths[place])

    def _staged(self, stream: DataStream, name: str, stage: str, place: int) -> DataStream:
        other: DataStream = stream
        if stage in TWO_SOURCES:
            source = self._source(f"{name}-other", place, self._scenario.records // 2)
            other = source.prompt(self._scenario.has_prompt)
        match stage:
            case "filter":
                made = stream.filter(f"{_OPERATORS}:two_thirds", name=name)
            case "double":
                made = stream.flat_map(f"{_OPERATORS}:twice", name=name)
            case "rebalance":
                made = stream.rebalance().map(f"{_OPERATORS}:same", name=name)
            case "rescale":
                made = stream.rescale().map(f"{_OPERATORS}:same", name=name)
            case "arrays":
                numbers = stream.map(f"{_OPERATORS}:packed", name=f"{name}-packed").with_format("int64").rebalance()
                made = numbers.process(f"{_OPERATORS}:Unpacked", name=name, keys=self._scenario.keys)
            case "tuples":
                tuples = stream.map(f"{_OPERATORS}:tupled", name=f"{name}-tupled").key_by(f"{_OPERATORS}:head_of")
                made = tuples.map(f"{_OPERATORS}:listed", name=name)
            case "union":
                made = stream.union(other).map(f"{_OPERATORS}:same", name=name)
            case "connect":
                is_broadcast = self._scenario.keys > 1
                second = other.broadcast() if is_broadcast else other.rebalance()
                made = stream.rebalance().connect(second, f"{_OPERATORS}:Both", name=name, is_broadcast=is_broadcast)
            case "broadcast":
                made = stream.broadcast().process(f"{_OPERATORS}:Part", name=name, must=False)
            case "custom":
                parted = stream.partition_custom(f"{_OPERATORS}:part_of")
                made = parted.process(f"{_OPERATORS}:Part", name=name, must=True)
            case "side":
                split = self._wide(stream.process(f"{_OPERATORS}:halves", name=name), place)
                both = split.union(split.side_output("odd").prompt(self._scenario.has_prompt))
                made = both.map(f"{_OPERATORS}:same", name=f"{name}-both")
            case "mistake":
                made = stream.process(
                    f"{_OPERATORS}:Mistake",
                    name=name,
                    number=self._scenario.records // 3,
                    times=2,
                    what=f"{name} of {self._environment.name}",
                )
            case _:
                made = stream.map(f"{_OPERATORS}:same", name=name)
        return self._wide(made, place)

    def _wide(self, stream: OperatorStream, place: int) -> OperatorStream:
        """Sets the parallelism of the scenario; a custom partitioner needs a known parallelism."""
        is_open = self._is_adaptive and "custom" not in self._scenario.stages
        return stream if is_open else stream.set_parallelism(self._widths[place])


_SPECULATION: Final = SpeculationSettings(
    baseline_lower_bound_s=1.0,
    check_interval_s=0.25,
    baseline_ratio=0.3,
    baseline_multiplier=1.1,
    block_slow_node_duration_s=3.0,
)


def asks_for_checkpoints(scenario: Scenario) -> bool:
    """Whether its job asks for checkpoints: each that takes them, and some batch jobs, which run without them."""
    return takes_checkpoints(scenario) or (scenario.mode != MODES[0] and not scenario.speculates)


def _checkpoints(scenario: Scenario) -> CheckpointSettings:
    return CheckpointSettings(
        interval_s=scenario.interval_s,
        timeout_s=20.0,
        unaligned=scenario.mode != "aligned",
        aligned_timeout_s=0.05 if scenario.mode == "timed" else 0.0,
    )


def network(scenario: Scenario) -> NetworkConfig:
    """The settings of every TaskManager: small buffers, so that there are many and records span them."""
    config = NetworkConfig.acting_as(
        scenario.acts_as,
        segment_size_bytes=scenario.segment_bytes,
        memory_bytes=SEGMENTS * scenario.segment_bytes,
        heartbeat_interval_s=2.0,
        heartbeat_timeout_s=6.0,
        debloat_target_s=0.2 if scenario.debloats else None,
        debloat_min_buffer_bytes=64,
        connect_timeout_s=5.0,
        sort_buffer_bytes=64 * 1024,
        resume_grace_s=scenario.resume_grace_s,
    )
    # In virtual time every reader is fast, and would borrow so many that no record waits in flight.
    return replace(config, spare_floating_buffers_per_gate=min(config.spare_floating_buffers_per_gate, FEWEST))
