"""What a plan needs: the worked table of gates, the bounds of partitions, and that opening takes exactly that."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from netstack import ChannelDescriptor, NetworkConfig, open_network
from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.requirements import (
    LANDING_SEGMENTS,
    GatePlan,
    PartitionPlan,
    gate_buffers,
    partition_buffers,
    required_buffers,
)


@pytest.mark.parametrize(
    ("channels", "exclusive", "expected", "total"),
    [
        (499, 2, (2, 1, 8), 1006),
        (500, 2, (1, 500, 508), 1008),
        (999, 2, (1, 1, 1007), 2006),
        (1000, 2, (0, 1000, 2008), 2008),
        (1001, 0, (0, 1, 8), 8),
    ],
)
def test_the_table_of_gates(channels: int, exclusive: int, expected: tuple[int, int, int], total: int) -> None:
    config = NetworkConfig(exclusive_buffers_per_channel=exclusive, max_required_buffers_per_gate=1000)
    buffers = gate_buffers(channels, config)
    assert (buffers.exclusive_each, buffers.pool_required, buffers.pool_maximum) == expected
    assert buffers.exclusive_each * channels + buffers.pool_maximum == total


def test_without_a_bound_every_channel_has_its_exclusive_buffers() -> None:
    buffers = gate_buffers(5000, NetworkConfig())
    assert (buffers.exclusive_each, buffers.pool_required, buffers.pool_maximum) == (2, 1, 8)


@pytest.mark.parametrize(
    ("kind", "subpartitions", "expected"),
    [
        (ResultPartitionType.PIPELINED, 4, (5, None)),
        (ResultPartitionType.PIPELINED_BOUNDED, 1, (2, 10)),
        (ResultPartitionType.PIPELINED_BOUNDED, 4, (5, 16)),
        (ResultPartitionType.PIPELINED_BOUNDED, 1000, (1001, 2008)),
    ],
)
def test_the_bounds_of_partitions(
    kind: ResultPartitionType, subpartitions: int, expected: tuple[int, int | None]
) -> None:
    assert partition_buffers(kind, subpartitions, NetworkConfig()) == expected


def test_the_guarantee_wins_over_a_small_bound() -> None:
    few = NetworkConfig(exclusive_buffers_per_channel=1, floating_buffers_per_gate=1)
    assert partition_buffers(ResultPartitionType.PIPELINED_BOUNDED, 8, few) == (9, 9)


def test_a_plan_is_summed_and_compared_with_the_memory() -> None:
    config = NetworkConfig(memory_bytes=100 * 32 * 1024)
    needed = required_buffers(
        gates={"words": GatePlan(40), "mixed": GatePlan(4, local=3)},
        partitions={"out": PartitionPlan(10)},
        connections=2,
        config=config,
    )
    assert [(row.name, row.exclusive, row.required, row.maximum) for row in needed.rows] == [
        ("words", 80, 81, 88),
        ("mixed", 2, 3, 10),
        ("out", 0, 11, 28),
        ("connections", 0, 32, 32),
    ]
    assert needed.required == 127
    assert needed.maximum == 158
    assert needed.missing == 27
    assert needed.missing_bytes == 27 * 32 * 1024


def test_local_channels_need_nothing() -> None:
    assert required_buffers(gates={"g": GatePlan(7, local=7)}).required == 0


def test_an_unbounded_partition_has_no_maximum() -> None:
    plan = {"p": PartitionPlan(3, ResultPartitionType.PIPELINED)}
    assert required_buffers(partitions=plan).maximum is None


@pytest.mark.parametrize("plan", [GatePlan(0), GatePlan(2, local=3), GatePlan(2, local=-1)])
def test_a_gate_that_cannot_be_is_named(plan: GatePlan) -> None:
    with pytest.raises(ConfigError, match="gate 'words'"):
        required_buffers(gates={"words": plan})


def test_a_partition_that_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="partition 'out': 0 subpartitions"):
        required_buffers(partitions={"out": PartitionPlan(0)})
    with pytest.raises(ConfigError, match="connections=-1"):
        required_buffers(connections=-1)


async def test_what_is_computed_is_what_is_promised(autojump_clock: MockClock) -> None:
    config = NetworkConfig(memory_bytes=200 * 32 * 1024, max_required_buffers_per_gate=40)
    async with open_network("memory://a", config) as producer, open_network("memory://b", config) as consumer:
        producer.create_partition("p", subpartitions=30)
        await consumer.open_gate([ChannelDescriptor(producer.address, "p", index) for index in range(30)])
        needed = required_buffers(gates={"g": GatePlan(30)}, connections=1, config=config)
        assert consumer.statistics().pool.required_segments == needed.required == 40 + LANDING_SEGMENTS
        needed = required_buffers(partitions={"p": PartitionPlan(30)}, config=config)
        assert producer.statistics().pool.required_segments == needed.required == 31
